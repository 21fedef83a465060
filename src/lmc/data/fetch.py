"""Downloads, through the readers of PyG and OGB. Nothing else in the library touches the network."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmc.data.pyg import as_csr, from_dataset, from_splits
from lmc.data.raw import ogb_graph
from lmc.errors import DataError
from lmc.graph import Graph

PATIENCE = 20.0  # seconds without an answer before a download is given up


def fetch(name: str, root: Path) -> Graph:
    """Download the set ``name`` into ``root`` and read it. Raises whatever the reader raises."""
    if name not in READERS:
        raise DataError(f"expected a set that can be downloaded (got {name}): bring its file")
    return read_folder(name, root / "downloads" / name)


def read_folder(name: str, folder: Path) -> Graph:
    """Let the reader of ``name`` work in ``folder``; it downloads what is missing there."""
    with _timeout(PATIENCE):
        return READERS[name](str(folder), name)


def per_class_split(y: Tensor, train: int = 20, val: int = 30, seed: int = 0) -> dict[str, Tensor]:
    """Masks for a set without a split: ``train`` and ``val`` nodes of every class, the rest for test."""
    rng = np.random.default_rng(seed)
    split = np.full(y.numel(), 2)
    for c in range(int(y.max()) + 1):
        members = rng.permutation((y == c).nonzero().squeeze(1).numpy())
        split[members[:train]] = 0
        split[members[train : train + val]] = 1
    return {f"{key}_mask": torch.from_numpy(split == k) for k, key in enumerate(("train", "val", "test"))}


def _planetoid(root: str, name: str) -> Graph:
    from torch_geometric.datasets import Planetoid

    return _sparse(Planetoid(root, name), name)


def _amazon_photo(root: str, name: str) -> Graph:
    from torch_geometric.datasets import Amazon

    return _sparse(Amazon(root, "photo"), name)


def _coauthor_physics(root: str, name: str) -> Graph:
    from torch_geometric.datasets import Coauthor

    return _sparse(Coauthor(root, "physics"), name)


def _dblp(root: str, name: str) -> Graph:
    from torch_geometric.datasets import CitationFull

    return _sparse(CitationFull(root, "dblp"), name)


def _ppi(root: str, name: str) -> Graph:
    from torch_geometric.datasets import PPI

    train, val, test = (PPI(root, split) for split in ("train", "val", "test"))
    return from_splits(train, val, test, name=name, symmetrise=True)


def _reddit(root: str, name: str) -> Graph:
    from torch_geometric.datasets import Reddit

    return from_dataset(Reddit(root), name=name, symmetrise=True)


def _flickr(root: str, name: str) -> Graph:
    from torch_geometric.datasets import Flickr

    return from_dataset(Flickr(root), name=name, symmetrise=True)


def _ogb(root: str, name: str) -> Graph:
    try:
        from ogb.nodeproppred import NodePropPredDataset
    except ImportError as error:
        raise DataError(f"expected the ogb package for {name} (got none): pip install ogb") from error
    dataset = NodePropPredDataset(name, root)
    graph, y = dataset[0]
    split = dataset.get_idx_split()
    return ogb_graph(graph["edge_index"], graph["node_feat"], y, split, name=name)


def _sparse(dataset: Any, name: str) -> Graph:
    """Bags of words: kept sparse, and split by class where the set brings no split."""
    data = dataset[0]
    if getattr(data, "train_mask", None) is None:
        data.update(per_class_split(data.y))
    dense = from_dataset([data], name=name, symmetrise=True)
    assert isinstance(dense.x, Tensor)
    return Graph(dense.adj, as_csr(dense.x), dense.y, dense.train, dense.val, dense.test, dense.num_classes, name)


@contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    """Sockets set no timeout of their own: without one, a blocked network may hang for minutes."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


READERS: dict[str, Callable[[str, str], Graph]] = {
    "cora": _planetoid,
    "citeseer": _planetoid,
    "pubmed": _planetoid,
    "amazon-photo": _amazon_photo,
    "coauthor-physics": _coauthor_physics,
    "dblp": _dblp,
    "ppi": _ppi,
    "reddit": _reddit,
    "flickr": _flickr,
    "ogbn-arxiv": _ogb,
    "ogbn-products": _ogb,
}
