"""Graphs made from downloaded sets, with the readers of PyG and OGB replaced."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.datasets
from torch_geometric.data import Data

from lmc.data import fetch
from lmc.graph import CSR


def ring(n: int) -> Data:
    """A directed ring with bag-of-words features and three classes."""
    node = torch.arange(n)
    x = torch.eye(n)[:, :40]
    return Data(x=x, y=node % 3, edge_index=torch.stack([node, (node + 1) % n]))


@pytest.mark.parametrize(
    ("name", "reader"),
    [("amazon-photo", "Amazon"), ("coauthor-physics", "Coauthor"), ("dblp", "CitationFull")],
)
def test_sets_without_a_split_are_split_by_class(
    name: str, reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def read(root: str, subset: str) -> list[Data]:
        calls.append((root, subset))
        return [ring(300)]

    monkeypatch.setattr(torch_geometric.datasets, reader, read)
    g = fetch.fetch(name, tmp_path)
    assert [int(m.sum()) for m in (g.train, g.val, g.test)] == [60, 90, 150]
    assert isinstance(g.x, CSR), "bags of words stay sparse"
    assert g.num_edges == 300
    assert g.name == name
    assert len(calls) == 1
    assert calls[0][0].startswith(str(tmp_path))
    assert calls[0][1] in name


def test_public_splits_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = ring(30)
    for k, split in enumerate(("train", "val", "test")):
        data[f"{split}_mask"] = torch.arange(30) % 3 == k
    monkeypatch.setattr(torch_geometric.datasets, "Planetoid", lambda root, name: [data])
    assert torch.equal(fetch.fetch("cora", tmp_path).train, data.train_mask)


def test_arrays_of_the_ogb_package_become_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ogb package returns arrays, a column of classes and a dictionary of splits."""
    data = ring(30)

    class NodePropPredDataset:
        def __init__(self, name: str, root: str) -> None:
            assert name == "ogbn-arxiv"

        def __getitem__(self, index: int) -> tuple[dict[str, Any], Any]:
            arrays = {"edge_index": data.edge_index.numpy(), "node_feat": data.x.numpy()}
            return arrays, data.y.numpy()[:, None]

        def get_idx_split(self) -> dict[str, Any]:
            return {k: torch.arange(i, 30, 3).numpy() for i, k in enumerate(("train", "valid", "test"))}

    module = type(torch_geometric.datasets)("ogb.nodeproppred")
    module.NodePropPredDataset = NodePropPredDataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ogb", type(module)("ogb"))
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", module)
    g = fetch.fetch("ogbn-arxiv", tmp_path)
    assert (g.num_nodes, g.num_edges, g.num_classes) == (30, 30, 3)
