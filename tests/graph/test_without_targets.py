"""Graphs without targets and splits, which predictions do not need, and graphs with test nodes alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import lmc
from helpers import EDGES, both_directions, sparse
from lmc.errors import ConfigError, GraphError
from lmc.graph import SPLITS, Graph
from lmc.methods import GAS
from lmc.models import GCN

X = torch.arange(40.0).view(8, 5)


@pytest.mark.parametrize("x", [X, X.numpy(), sparse(X)], ids=["tensor", "array", "csr"])
def test_edges_and_features_are_enough(x: object) -> None:
    graph = Graph.from_edges(both_directions(EDGES), x)  # type: ignore[arg-type]
    assert (graph.num_nodes, graph.num_edges, graph.num_features) == (8, 10, 5)
    assert bool((graph.y == -1).all())
    assert not any(bool(getattr(graph, split).any()) for split in SPLITS)
    assert "no targets" in repr(graph)
    assert "\n" not in repr(graph)


def test_splits_without_targets_are_refused() -> None:
    with pytest.raises(GraphError, match=r"expected targets y for the val nodes \(got none\)"):
        Graph.from_edges(both_directions(EDGES), X, val=[1])


def test_files_and_data_of_pyg_may_have_no_targets(tmp_path: Path) -> None:
    graph = Graph.from_edges(both_directions(EDGES), X, task="labels")
    again = lmc.load(lmc.save(graph, tmp_path / "bare.npz"))
    assert torch.equal(again.adj.indices, graph.adj.indices)
    assert (again.task, again.splits, again.num_classes) == ("labels", (), 0)
    data = Data(x=X, edge_index=both_directions(EDGES))
    assert torch.equal(lmc.load(data).x, X)
    data.train_mask = torch.arange(8) < 3
    with pytest.raises(GraphError, match=r"expected data\.y"):
        lmc.load(data)


def test_the_task_is_checked_and_kept() -> None:
    assert Graph.from_edges(both_directions(EDGES), X, task="regression").task == "regression"
    with pytest.raises(GraphError, match=r"expected task in .* \(got 'ranking'\)"):
        Graph.from_edges(both_directions(EDGES), X, task="ranking")


def test_a_graph_with_test_nodes_alone_is_evaluated_and_not_trained_on(tmp_path: Path) -> None:
    y, model = torch.arange(8) % 3, GCN(5, 4, 3)
    whole = Graph.from_edges(both_directions(EDGES), X, y, train=[0, 1], test=[4, 6, 7])
    graph = Graph.from_edges(both_directions(EDGES), X, y, test=[4, 6, 7])
    assert lmc.evaluate(model, graph) == {"test": lmc.evaluate(model, whole)["test"]}
    data = Data(x=X, y=y, edge_index=both_directions(EDGES), test_mask=whole.test)
    for again in (lmc.load(data), lmc.load(lmc.save(graph, tmp_path / "test.npz"))):
        assert (again.splits, again.checksum) == (("test",), graph.checksum)
    with pytest.raises(ConfigError, match=r"expected training nodes in graph 'graph' \(got none\)"):
        GAS(num_parts=2).bind(graph, model, device="cpu")
    with pytest.raises(
        ConfigError, match=r"expected a model with 3 outputs.*or pass num_classes=4 to Graph.from_edges"
    ):
        lmc.evaluate(GCN(5, 4, 4), graph)


def test_an_evaluation_needs_a_split() -> None:
    graph = Graph.from_edges(both_directions(EDGES), X, name="bare", num_classes=3)
    with pytest.raises(ConfigError, match=r"expected nodes with known targets in graph 'bare' \(got none\)"):
        lmc.evaluate(GCN(5, 4, 3), graph)


def test_training_without_targets_is_refused() -> None:
    graph = Graph.from_edges(both_directions(EDGES), X, name="bare", num_classes=3)
    with pytest.raises(ConfigError, match=r"expected training nodes in graph 'bare' \(got none\): pass y and train"):
        GAS(num_parts=2).bind(graph, GCN(5, 4, 3), device="cpu")
