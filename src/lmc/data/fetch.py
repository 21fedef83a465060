"""Downloads through the readers of PyG and OGB; nothing else in the library uses the network."""

from __future__ import annotations

import socket
from collections.abc import Iterator
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

TIMEOUT = 20.0  # seconds without an answer before a download is given up

BAGS_OF_WORDS: dict[str, tuple[str, str]] = {
    "cora": ("Planetoid", "cora"),
    "citeseer": ("Planetoid", "citeseer"),
    "pubmed": ("Planetoid", "pubmed"),
    "amazon-photo": ("Amazon", "photo"),
    "coauthor-physics": ("Coauthor", "physics"),
    "dblp": ("CitationFull", "dblp"),
}
"""Sets with sparse features: PyG's reader and its name of the set."""
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
            train, val, test = (datasets.PPI(root, split) for split in ("train", "val", "test"))
            return from_splits(train, val, test, name=name, symmetrise=True)
        if name in DENSE:
            return from_dataset(getattr(datasets, DENSE[name])(root), name=name, symmetrise=True)
        reader, subset = BAGS_OF_WORDS[name]
        return _sparse(getattr(datasets, reader)(root, subset), name)


def per_class_split(y: Tensor, train: int = 20, val: int = 30, seed: int = 0) -> dict[str, Tensor]:
    """Masks for a set without a split: ``train`` and ``val`` nodes of every class, the others for test."""
    rng = np.random.default_rng(seed)
    split = np.full(y.numel(), 2)
    for c in range(int(y.max()) + 1):
        members = rng.permutation((y == c).nonzero().squeeze(1).numpy())
        split[members[:train]] = 0
        split[members[train : train + val]] = 1
    return {f"{key}_mask": torch.from_numpy(split == k) for k, key in enumerate(("train", "val", "test"))}


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
    """The graph of a set of bags of words: features are sparse, and it is split by class if it has no split."""
    data = dataset[0]
    if getattr(data, "train_mask", None) is None:
        data.update(per_class_split(data.y))
    dense = from_dataset([data], name=name, symmetrise=True)
    assert isinstance(dense.x, Tensor)
    return Graph(dense.adj, as_csr(dense.x), dense.y, dense.train, dense.val, dense.test, dense.num_classes, name)


@contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    """Set a timeout for all sockets: without one, a download over a blocked network may hang for minutes."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
