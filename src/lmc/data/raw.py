"""Raw folders as their authors publish them, read without their packages.

OGB node sets: ``raw/edge.csv.gz``, ``raw/node-feat.csv.gz``, ``raw/node-label.csv.gz`` and
``split/<scheme>/{train,valid,test}.csv.gz``. Amazon (co-purchases, without features): ``adj_list.txt``,
``label.txt``, ``train_idx-0.06.txt``, ``test_idx.txt``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from lmc.errors import DataError, GraphError
from lmc.graph import CSR, Graph


def read_ogb(folder: Path, *, name: str) -> Graph:
    """The graph of an unpacked OGB node set; its edges are directed or listed once, so they are symmetrised."""
    raw = folder / "raw"
    edges = _table(raw / "edge.csv.gz", np.int64, ",")
    x = _table(raw / "node-feat.csv.gz", np.float32, ",")
    y = _table(raw / "node-label.csv.gz", np.float64, ",")
    schemes = sorted(path for path in (folder / "split").glob("*") if path.is_dir())
    if len(schemes) != 1:
        raise DataError(
            f"expected one folder in {folder / 'split'} (got {len(schemes)}): unpack the set again, keep one scheme"
        )
    split = {key: _table(schemes[0] / f"{key}.csv.gz", np.int64, ",")[:, 0] for key in ("train", "valid", "test")}
    try:
        return ogb_graph(edges.T, x, y, split, name=name)
    except GraphError as error:
        raise GraphError(f"{folder}: {error}") from error


def ogb_graph(
    edge_index: np.ndarray, x: np.ndarray, y: np.ndarray, split: Mapping[str, np.ndarray], *, name: str
) -> Graph:
    """A graph from OGB's arrays: y is [n, 1], unknown classes are NaN, the validation split is called valid."""
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


def read_amazon(folder: Path, *, name: str = "amazon", portion: str = "0.06") -> Graph:
    """The Amazon co-purchase graph: rows ``count neighbour neighbour ...`` and 0/1 labels.

    Nodes have no features: x is the identity, so that a first layer learns a row for each node. The authors publish no
    validation split; every tenth test node, in their order, is used for validation (not in the paper).
    """
    path = folder / "adj_list.txt"
    try:
        with path.open() as lines:
            rows = [np.array(line.split()[1:], dtype=np.int64) for line in lines]
    except (OSError, ValueError) as error:
        raise DataError(f"expected lists of neighbours in {path} (got {error}): copy it again") from error
    n = len(rows)
    source = np.repeat(np.arange(n), [row.size for row in rows])
    train = _table(folder / f"train_idx-{portion}.txt", np.int64)[:, 0]
    held_out = _table(folder / "test_idx.txt", np.int64)[:, 0]
    every_tenth = np.arange(held_out.size) % 10 == 0
    every = torch.arange(n + 1, dtype=torch.int32)
    try:
        return Graph.from_edges(
            np.stack([source, np.concatenate(rows) if rows else source]),
            CSR(every, every[:-1], torch.ones(n), n),
            _table(folder / "label.txt", np.float32),
            train=train,
            val=held_out[every_tenth],
            test=held_out[~every_tenth],
            name=name,
            symmetrise=True,
        )
    except GraphError as error:
        raise GraphError(f"{folder}: {error}") from error


def _table(path: Path, dtype: type, delimiter: str | None = None) -> np.ndarray:
    if not path.is_file():
        raise DataError(f"expected {path} (got no such file): unpack the whole set there")
    try:
        return np.loadtxt(path, delimiter=delimiter, dtype=dtype, ndmin=2)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"expected a table of numbers in {path} (got {error}): unpack the set again") from error
