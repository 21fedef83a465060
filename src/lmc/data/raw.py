"""Readers of the published raw files of the named sets, one per form of publication.

A reader takes the files of a set, by their names, and its entry in the catalog. It returns the arguments of
:meth:`lmc.Graph.from_edges`. Sizes that the catalog states are checked before files are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lmc.data import planetoid
from lmc.data.arrays import check_pointers, naming, read_json, read_lists, read_npy, read_npz, read_table
from lmc.data.catalog import Named, Raw
from lmc.errors import DataError, GraphError
from lmc.graph import SPLITS, Graph
from lmc.graph.checks import csr_of

Files = Mapping[str, Path]
TRAIN_SHARE, VAL_SHARE, TEST_SHARE = 0.0006, 0.01, 0.1
"""The split that is drawn for SNAP's Amazon, which has none: shares of the nodes with a label."""
MEMBERSHIPS = 100
"""The most communities of SNAP's Amazon that a node may be in, on average."""


def locate(raw: Raw, folder: Path) -> dict[str, Path]:
    """The files of the form ``raw`` that are in ``folder`` or in ``raw/`` in it, packed by gzip or not."""
    found = {}
    for file in raw.files:
        places = [base / name for base in (folder, folder / "raw") for name in (file, file.removesuffix(".gz"))]
        path = next((place for place in places if place.is_file()), None)
        if path is not None:
            found[file] = path
    return found


def read(raw: Raw, entry: Named, folder: Path) -> Graph:
    """The graph of the set ``entry`` from its raw files in ``folder``, with its features as they are published."""
    files = locate(raw, folder)
    missing = [file for file in raw.files if file not in files]
    if missing:
        raise DataError(
            f"expected {', '.join(missing)} in {folder} or {folder / 'raw'} (got no such file): "
            f"unpack or copy all files of {entry.name} there: {', '.join(raw.files)}"
        )
    with naming(folder, f"the raw files of {entry.name}"):
        parts = READERS[raw.reader](files, entry)
        try:
            task = "labels" if entry.multi_label else "classes"
            given: dict[str, Any] = {"num_classes": entry.classes, "name": entry.name, "symmetrise": True, "task": task}
            return Graph.from_edges(parts.pop("edges"), **parts, **given)
        except GraphError as error:
            raise GraphError(f"{folder}: {error}") from error


def _planetoid(files: Files, entry: Named) -> dict[str, Any]:
    by_part = {name.removeprefix(f"ind.{entry.name}."): path for name, path in files.items()}
    return planetoid.read(by_part, entry.nodes, entry.features, entry.classes)


def _saint(files: Files, entry: Named) -> dict[str, Any]:
    """GraphSAINT: a CSR of the edges, features, a class per node and lists of nodes by role."""
    n, path = entry.nodes, files["adj_full.npz"]
    classes = read_json(files["class_map.json"], dict)
    with naming(files["class_map.json"], f"a class for each of {n} nodes"):
        y = _in_order(classes, n)
    roles = read_json(files["role.json"], dict)
    with naming(files["role.json"], "the lists tr, va and te"):
        masks = {split: _mask(roles[key], n) for split, key in zip(SPLITS, ("tr", "va", "te"), strict=True)}
    edges = _csr_edges(path, n, "indptr", "indices", "shape")
    x = read_npy(files["feats.npy"], n, entry.features).astype(np.float32)
    return {"edges": edges, "x": x, "y": y, **masks}


def _in_order(values: Mapping[str, Any], n: int) -> np.ndarray:
    """The values of the keys "0" to "n-1" as one array."""
    if len(values) != n:
        raise ValueError(f"{len(values)} entries")
    return np.array([values[str(node)] for node in range(n)])


def _mask(nodes: Any, n: int) -> np.ndarray:
    """The mask [n] of the node numbers ``nodes``."""
    numbers = np.asarray(nodes)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or numbers.size > n:
        raise ValueError(f"no list of at most {n} node numbers")
    if not (numbers.min() >= 0 and numbers.max() < n):
        raise ValueError(f"node numbers {numbers.min()} to {numbers.max()} of {n} nodes")
    mask = np.zeros(n, dtype=bool)
    mask[numbers] = True
    return mask


def _csr_edges(path: Path, n: int, *keys: str) -> np.ndarray:
    """The edges [2, E] of the adjacency that an archive holds by rows; its values are not read."""
    parts = read_npz(path, keys)
    with naming(path, f"an adjacency with the keys {', '.join(keys)}"):
        indptr, indices, shape = (parts[key] for key in keys)
        if check_pointers(indptr, indices, shape, "adj") != (n, n):
            raise ValueError(f"shape {list(shape)} instead of [{n}, {n}]")
        return np.stack([np.repeat(np.arange(n), np.diff(indptr).astype(np.int64)), indices.astype(np.int64)])


def _ppi(files: Files, entry: Named) -> dict[str, Any]:
    """Three collections of graphs, each numbered from 0; the collection of a node is its split."""
    xs, ys, edges = [], [], []
    sizes: list[int] = []
    for split in ("train", "valid", "test"):
        x = read_npy(files[f"{split}_feats.npy"], cols=entry.features)
        ys.append(read_npy(files[f"{split}_labels.npy"], len(x), entry.classes))
        edges.append(_links(files[f"{split}_graph.json"], len(x))[0] + sum(sizes))
        xs.append(x.astype(np.float32))
        sizes.append(len(x))
    which = np.repeat(np.arange(3), sizes)
    masks = {split: which == k for k, split in enumerate(SPLITS)}
    return {"edges": np.concatenate(edges, axis=1), "x": np.concatenate(xs), "y": np.concatenate(ys), **masks}


def _links(path: Path, n: int) -> tuple[np.ndarray, list[Any]]:
    """The edges [2, E] of a graph in the node-link form of networkx, which numbers nodes by position; and its nodes."""
    content = read_json(path, dict)
    with naming(path, f"nodes and links between {n} nodes"):
        pairs = [(link["source"], link["target"]) for link in content["links"]]
        edges = np.array(pairs).reshape(-1, 2).T
        whole = edges.dtype.kind == "i" and (edges >= 0).all() and (edges < n).all()
        if len(content["nodes"]) != n or not whole:
            raise ValueError(f"{len(content['nodes'])} nodes, or links to other nodes")
        return edges, content["nodes"]


def _sage(files: Files, entry: Named) -> dict[str, Any]:
    """GraphSAGE's own PPI: one graph whose nodes say their split. Features are standardised as GraphSAGE does."""
    n = entry.nodes
    edges, nodes = _links(files["ppi-G.json"], n)
    order, labels = (read_json(files[f"ppi-{part}.json"], dict) for part in ("id_map", "class_map"))
    feats = read_npy(files["ppi-feats.npy"], n, entry.features).astype(np.float32)
    with naming(files["ppi-G.json"].parent, "ids that are in ppi-id_map.json and ppi-class_map.json"):
        ids = [str(node["id"]) for node in nodes]
        rows = np.array([order[key] for key in ids])
        if not np.array_equal(np.sort(rows), np.arange(n)):
            raise ValueError("rows of features that do not belong to one node each")
        y = np.array([labels[key] for key in ids])
        val, test = (np.array([bool(node[key]) for node in nodes]) for key in ("val", "test"))
    x, train = feats[rows], ~(val | test)
    return {"edges": edges, "x": standardise(x, train), "y": y, "train": train, "val": val & ~test, "test": test}


def _ogb(files: Files, entry: Named) -> dict[str, Any]:
    """OGB's csv files. Edges are directed (arxiv) or listed once (products); an unknown class is NaN."""
    *tables, train, val, test = files.values()
    n = entry.nodes
    edges = read_table(tables[0], np.int64, 2, 2 * entry.edges + n, ",")
    x = read_table(tables[1], np.float32, entry.features, n, ",")
    y = read_table(tables[2], np.float64, 1, n, ",")[:, 0]
    masks = {}
    for split, path in zip(SPLITS, (train, val, test), strict=True):
        nodes = read_table(path, np.int64, 1, n, ",")[:, 0]
        with naming(path, "node numbers"):
            masks[split] = _mask(nodes, n)
    return {"edges": edges.T, "x": x, "y": np.where(np.isnan(y), -1, y).astype(np.int64), **masks}


def _sse(files: Files, entry: Named) -> dict[str, Any]:
    """Amazon as SSE and IGNN publish it: rows ``count neighbour neighbour ...`` and 0/1 labels.

    There is no validation split; every tenth test node, in their order, is used for validation (not in the paper).
    """
    n, path = entry.nodes, files["adj_list.txt"]
    what = f"lists of the neighbours of {n} nodes"
    rows = read_lists(path, what, 2 * entry.edges + 2 * n)
    with naming(path, what):
        if len(rows) != n or not all(row[0] == row.size - 1 for row in rows):
            raise ValueError(f"{len(rows)} rows, or rows that do not begin with their number of neighbours")
        edges = np.stack([np.repeat(np.arange(n), [row.size - 1 for row in rows]), np.concatenate(rows)[_tails(rows)]])
    y = read_table(files["label.txt"], np.float32, entry.classes, n)
    train, held_out = (read_table(files[f], np.int64, 1, n)[:, 0] for f in ("train_idx-0.06.txt", "test_idx.txt"))
    tenth = np.arange(held_out.size) % 10 == 0
    masks = {"train": train, "val": held_out[tenth], "test": held_out[~tenth]}
    with naming(files["test_idx.txt"].parent, "node numbers in train_idx-0.06.txt and test_idx.txt"):
        masks = {split: _mask(nodes, n) for split, nodes in masks.items()}
    return {"edges": edges, "x": None, "y": y, **masks}


def _tails(rows: list[np.ndarray]) -> np.ndarray:
    """Which entries of the concatenated ``rows`` are not the first of their row."""
    sizes = np.array([row.size for row in rows])
    tail = np.ones(sizes.sum(), dtype=bool)
    tail[np.cumsum(sizes) - sizes] = False
    return tail


def _snap(files: Files, entry: Named) -> dict[str, Any]:
    """Amazon as SNAP publishes it: edges, and a line of members per community.

    Labels are the memberships in the largest communities. The split is drawn with seed 0 (SNAP has none): 0.06 % of the
    nodes with a label for training, 1 % for validation, 10 % for test.
    """
    edge_file, community_file = files.values()
    pairs = read_table(edge_file, np.int64, 2, 2 * entry.edges)
    ids, numbered = np.unique(pairs, return_inverse=True)
    n = ids.size
    what = f"{entry.classes} communities of these nodes"
    groups = read_lists(community_file, what, MEMBERSHIPS * n)
    with naming(community_file, what):
        largest = sorted(groups, key=len, reverse=True)[: entry.classes]
        if len(largest) < entry.classes or not all(np.isin(group, ids).all() for group in largest):
            raise ValueError(f"{len(groups)} communities, or members without edges")
    y = np.zeros((n, entry.classes), dtype=np.float32)
    for label, group in enumerate(largest):
        y[np.searchsorted(ids, group), label] = 1
    labelled = np.random.default_rng(0).permutation(np.flatnonzero(y.any(axis=1)))
    sizes = [max(1, round(share * labelled.size)) for share in (TRAIN_SHARE, VAL_SHARE, TEST_SHARE)]
    drawn = np.split(labelled, np.cumsum(sizes))[:3]
    masks = {split: _mask(nodes, n) for split, nodes in zip(SPLITS, drawn, strict=True)}
    return {"edges": numbered.reshape(-1, 2).T, "x": None, "y": y, **masks}


def _benchmark(files: Files, entry: Named) -> dict[str, Any]:
    """The npz files of gnn-benchmark and graph2gauss: adjacency and features by rows, and a class per node."""
    (path,) = files.values()
    edges = _csr_edges(path, entry.nodes, "adj_indptr", "adj_indices", "adj_shape")
    parts = read_npz(path, ("attr_indptr", "attr_indices", "attr_data", "attr_shape", "labels"))
    with naming(path, "features attr_* by rows, and labels"):
        indptr, indices, data = (parts[f"attr_{key}"] for key in ("indptr", "indices", "data"))
        shape = check_pointers(indptr, indices, parts["attr_shape"], "attr")
        if shape != (entry.nodes, entry.features) or data.shape != indices.shape:
            raise ValueError(f"features {list(shape)} instead of [{entry.nodes}, {entry.features}]")
        x = csr_of(indptr, indices, data.astype(np.float32), entry.features)
        y = parts["labels"].astype(np.int64)
        return {"edges": edges, "x": x, "y": y, **per_class_split(y)}


def per_class_split(y: np.ndarray, train: int = 20, val: int = 30, seed: int = 0) -> dict[str, np.ndarray]:
    """Masks for a set without a split: ``train`` and ``val`` nodes of every class, the others for test."""
    rng = np.random.default_rng(seed)
    split = np.full(y.size, 2)
    for label in range(int(y.max()) + 1):
        members = rng.permutation((y == label).nonzero()[0])
        split[members[:train]] = 0
        split[members[train : train + val]] = 1
    return {key: split == k for k, key in enumerate(SPLITS)}


def standardise(x: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and deviation 1 over the training rows; a column that is constant there is only shifted."""
    rows = x[train].astype(np.float64)
    mean, deviation = rows.mean(axis=0), rows.std(axis=0)
    return (x - mean.astype(x.dtype)) / np.where(deviation > 0, deviation, 1).astype(x.dtype)


READERS: dict[str, Callable[[Files, Named], dict[str, Any]]] = {
    "planetoid": _planetoid,
    "graphsaint": _saint,
    "ppi": _ppi,
    "graphsage": _sage,
    "ogb": _ogb,
    "sse": _sse,
    "snap": _snap,
    "gnn-benchmark": _benchmark,
}
