"""Raw folders as their makers publish them, read without their packages.

OGB node sets: ``raw/edge.csv.gz  raw/node-feat.csv.gz  raw/node-label.csv.gz  split/<scheme>/{train,valid,test}.csv.gz``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lmc.errors import DataError, GraphError
from lmc.graph import Graph


def read_ogb(folder: Path, *, name: str) -> Graph:
    """The graph of an unpacked OGB node set. Its edges are directed or listed once: they are symmetrised."""
    raw = folder / "raw"
    edges = _table(raw / "edge.csv.gz", np.int64)
    x = _table(raw / "node-feat.csv.gz", np.float32)
    y = _table(raw / "node-label.csv.gz", np.float64)
    schemes = sorted(path for path in (folder / "split").glob("*") if path.is_dir())
    if len(schemes) != 1:
        raise DataError(
            f"expected one folder in {folder / 'split'} (got {len(schemes)}): unpack the set again, keep one scheme"
        )
    split = {key: _table(schemes[0] / f"{key}.csv.gz", np.int64)[:, 0] for key in ("train", "valid", "test")}
    try:
        return ogb_graph(edges.T, x, y, split, name=name)
    except GraphError as error:
        raise GraphError(f"{folder}: {error}") from error


def ogb_graph(
    edge_index: np.ndarray, x: np.ndarray, y: np.ndarray, split: Mapping[str, np.ndarray], *, name: str
) -> Graph:
    """OGB's arrays as a graph: y is [n, 1], unknown classes are NaN, the middle split is called valid."""
    classes = np.where(np.isnan(y), -1, y).astype(np.int64)
    return Graph.from_edges(
        np.ascontiguousarray(edge_index),
        x,
        classes,
        train=split["train"],
        val=split["valid"],
        test=split["test"],
        name=name,
        symmetrise=True,
    )


def _table(path: Path, dtype: type) -> np.ndarray:
    if not path.is_file():
        raise DataError(f"expected {path} (got no such file): unpack the whole set there")
    try:
        return np.loadtxt(path, delimiter=",", dtype=dtype, ndmin=2)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(
            f"expected a table of numbers in {path} (got {error}): unpack the set again"
        ) from error
