"""``lmc.load``: anything that names or contains a graph becomes a :class:`lmc.Graph`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lmc.data import fetch as _fetch
from lmc.data import lookalikes, npz, registry
from lmc.data.raw import read_amazon, read_ogb
from lmc.errors import DataError
from lmc.graph import Graph


def load(
    source: Any,
    *,
    data_dir: str | Path | None = None,
    seed: int = 0,
    scale: float | None = None,
    symmetrise: bool = False,
) -> Graph:
    """Load and check the graph that ``source`` names or contains.

    Args:
        source: a name (see :func:`lmc.data.names`; ``"arxiv-like@0.1"`` is a lookalike at a tenth of its size),
            the path of an ``.npz`` file, a PyG ``Data``, a PyG data set (several graphs become one disjoint
            union), or a :class:`lmc.Graph`, which is returned as it is.
        data_dir: the first folder to search, before $LMC_DATA and the user's cache. A set that is in none of them is
            downloaded and stored in the cache.
        seed: of a lookalike; real sets do not depend on it.
        scale: of a lookalike: the factor on its nodes and edges.
        symmetrise: repair one-way edges, duplicates and self-loops instead of refusing them. Sets that are
            published as directed graphs (ogbn-arxiv) are always repaired.

    Raises:
        DataError: the name is unknown, or the file is missing or damaged; the message says where to put which file.
        GraphError: the arrays do not form a graph.
    """
    if isinstance(source, Graph):
        return source
    if isinstance(source, os.PathLike):
        _no_scale(scale, str(source))
        return npz.read(Path(source), symmetrise=symmetrise)
    if not isinstance(source, str):
        _no_scale(scale, type(source).__name__)
        return _from_pyg(source, symmetrise)
    lookalike = lookalikes.parse(source)
    if lookalike is not None:
        name, suffix = lookalike
        if scale is not None and suffix is not None and scale != suffix:
            raise DataError(f"expected one scale (got {source!r} and scale={scale:g}): drop one")
        return lookalikes.make(name, seed=seed, scale=next((s for s in (scale, suffix) if s is not None), 1.0))
    _no_scale(scale, source)
    if source.endswith(".npz") or os.sep in source:
        return npz.read(source, symmetrise=symmetrise)
    return _named(registry.canonical(source), data_dir, symmetrise)


def _named(name: str, data_dir: str | Path | None, symmetrise: bool) -> Graph:
    entry = registry.REAL[name]
    place = registry.find(name, data_dir)
    if place is not None and place.is_dir():
        return _from_folder(name, place)
    if place is not None:
        return npz.read(place, name=name, symmetrise=symmetrise or entry.directed)
    root = registry.cache_dir()
    try:
        graph = _fetch.fetch(name, root)
    except Exception as error:  # a reader or the network may raise anything
        raise DataError(_missing(entry, data_dir, error)) from error
    npz.write(graph, root / f"{name}.npz")
    return graph


def _from_folder(name: str, folder: Path) -> Graph:
    if name == "amazon":
        return read_amazon(folder, name=name)
    if name.startswith("ogbn-"):
        return read_ogb(folder, name=name)
    try:
        return _fetch.read_folder(name, folder)
    except Exception as error:  # PyG's readers may raise anything on damaged files
        raise DataError(
            f"expected the raw files of {name} in {folder} ({type(error).__name__}: {error}): copy them again"
        ) from error


def _missing(entry: registry.Named, data_dir: str | Path | None, error: Exception) -> str:
    files = " or ".join(f"{stem}.npz" for stem in registry.spellings(entry.name))
    places = " or ".join(str(folder) for folder in registry.folders(data_dir))
    return (
        f"expected the files of {entry.name} (got none, and no download: {type(error).__name__}: {error}): "
        f"put {files} into {places}, or set $LMC_DATA to the folder that has it; "
        f"meanwhile {entry.lookalike!r} is a stand-in that needs no file"
    )


def _from_pyg(source: Any, symmetrise: bool) -> Graph:
    from torch_geometric.data import Data, Dataset

    from lmc.data import pyg

    if isinstance(source, Data):
        return pyg.from_data(source, symmetrise=symmetrise)
    if isinstance(source, Dataset):
        name = str(getattr(source, "name", type(source).__name__)).lower()
        return pyg.from_dataset(source, name=name, symmetrise=symmetrise)
    raise DataError(
        f"expected a name, a path, a PyG Data or data set, or an lmc.Graph (got {type(source).__name__}): "
        f"for arrays of your own use lmc.Graph.from_edges"
    )


def _no_scale(scale: float | None, source: str) -> None:
    if scale is not None:
        raise DataError(f"expected a scale for lookalikes only (got scale={scale:g} for {source}): drop it")
