"""Published data sets: downloads through the readers of PyG and OGB, and raw folders read without these packages.

Nothing else in the library uses the network. Raw folders are as their authors publish them. OGB node sets:
``raw/edge.csv.gz``, ``raw/node-feat.csv.gz``, ``raw/node-label.csv.gz`` and
``split/<scheme>/{train,valid,test}.csv.gz``. Amazon (co-purchases, without features): ``adj_list.txt``, ``label.txt``,
``train_idx-0.06.txt``, ``test_idx.txt``.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmc.data.pyg import as_csr, from_dataset, from_splits
from lmc.errors import DataError, GraphError
from lmc.graph import CSR, SPLITS, Graph

TIMEOUT = 20.0  # seconds without an answer before a download is given up

BAGS_OF_WORDS = {
    "cora": "Planetoid",
    "citeseer": "Planetoid",
    "pubmed": "Planetoid",
    "amazon-photo": "Amazon",
    "coauthor-physics": "Coauthor",
    "dblp": "CitationFull",
}
"""Sets with sparse features: PyG's reader, which calls the set by the last part of its name."""
DENSE = {"reddit": "Reddit", "flickr": "Flickr"}
"""Sets with dense features: PyG's reader."""
OGB = ("ogbn-arxiv", "ogbn-products")


def fetch(name: str, root: Path) -> Graph:
    """Download the set ``name`` into ``root`` and read it; errors of the reader are passed on."""
    if name not in (*BAGS_OF_WORDS, *DENSE, *OGB, "ppi"):
        raise DataError(f"expected a set that can be downloaded (got {name}): bring its file")
    return read_folder(name, root / "downloads" / name)


def read_folder(name: str, folder: Path) -> Graph:
    """Read the set ``name`` from ``folder``; its reader downloads what is missing there."""
    root = str(folder)
    with _timeout(TIMEOUT):
        if name in OGB:
            return _ogb(root, name)
        from torch_geometric import datasets

        if name == "ppi":
            train, val, test = (datasets.PPI(root, split) for split in SPLITS)
            return from_splits(train, val, test, name=name, symmetrise=True, task="labels")
        if name in DENSE:
            return from_dataset(getattr(datasets, DENSE[name])(root), name=name, symmetrise=True)
        return _sparse(getattr(datasets, BAGS_OF_WORDS[name])(root, name.split("-")[-1]), name)


def per_class_split(y: Tensor, train: int = 20, val: int = 30, seed: int = 0) -> dict[str, Tensor]:
    """Masks for a set without a split: ``train`` and ``val`` nodes of every class, the others for test."""
    rng = np.random.default_rng(seed)
    split = np.full(y.numel(), 2)
    for c in range(int(y.max()) + 1):
        members = rng.permutation((y == c).nonzero().squeeze(1).numpy())
        split[members[:train]] = 0
        split[members[train : train + val]] = 1
    return {f"{key}_mask": torch.from_numpy(split == k) for k, key in enumerate(SPLITS)}


def _ogb(root: str, name: str) -> Graph:
    try:
        from ogb.nodeproppred import NodePropPredDataset
    except ImportError as error:
        raise DataError(f"expected the ogb package for {name} (got none): pip install ogb") from error
    dataset = NodePropPredDataset(name, root)
    graph, y = dataset[0]
    return _ogb_graph(graph["edge_index"], graph["node_feat"], y, dataset.get_idx_split(), name)


def _sparse(dataset: Any, name: str) -> Graph:
    """The graph of a set of bags of words: features are sparse, and it is split by class if it has no split."""
    data = dataset[0]
    if getattr(data, "train_mask", None) is None:
        data.update(per_class_split(data.y))
    dense = from_dataset([data], name=name, symmetrise=True)
    assert isinstance(dense.x, Tensor)
    return replace(dense, x=as_csr(dense.x))


def read_ogb(folder: Path, name: str) -> Graph:
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
    with _named(folder):
        return _ogb_graph(edges.T, x, y, split, name)


def _ogb_graph(edges: np.ndarray, x: np.ndarray, y: np.ndarray, split: Mapping[str, np.ndarray], name: str) -> Graph:
    """A graph from OGB's arrays: y is [n, 1], unknown classes are NaN, the validation split is called valid."""
    classes = np.where(np.isnan(y), -1, y).astype(np.int64)
    masks: dict[str, Any] = {"train": split["train"], "val": split["valid"], "test": split["test"]}
    return Graph.from_edges(np.ascontiguousarray(edges), x, classes, **masks, name=name, symmetrise=True)


def read_amazon(folder: Path, name: str) -> Graph:
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
    edges = np.stack([source, np.concatenate(rows) if rows else source])
    y = _table(folder / "label.txt", np.float32)
    held_out = _table(folder / "test_idx.txt", np.int64)[:, 0]
    tenth = np.arange(held_out.size) % 10 == 0
    train = _table(folder / "train_idx-0.06.txt", np.int64)[:, 0]
    masks: dict[str, Any] = {"train": train, "val": held_out[tenth], "test": held_out[~tenth]}
    every = torch.arange(n + 1, dtype=torch.int32)
    with _named(folder):
        identity = CSR(every, every[:-1], torch.ones(n), n)
        return Graph.from_edges(edges, identity, y, **masks, name=name, symmetrise=True, task="labels")


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Name the folder in the message of a graph that is refused."""
    try:
        yield
    except GraphError as error:
        raise GraphError(f"{folder}: {error}") from error


def _table(path: Path, dtype: type, delimiter: str | None = None) -> np.ndarray:
    if not path.is_file():
        raise DataError(f"expected {path} (got no such file): unpack the whole set there")
    try:
        return np.loadtxt(path, delimiter=delimiter, dtype=dtype, ndmin=2)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(f"expected a table of numbers in {path} (got {error}): unpack the set again") from error


@contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    """Set a timeout for all sockets: without one, a download over a blocked network may hang for minutes."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
