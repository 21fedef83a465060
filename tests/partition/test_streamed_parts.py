"""Partitions that read the edges in chunks."""

from __future__ import annotations

import pytest
import torch

import lmc
from helpers import SPECIAL_GRAPHS, random_graph
from lmc.graph import csr
from lmc.partition import coarse_pieces, partition, parts_in_pieces, quality, stream


@pytest.fixture(scope="module")
def graph() -> lmc.Graph:
    return lmc.load("tiny-like")


def test_the_cut_is_close_to_that_of_metis(graph: lmc.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csr, "CHUNK", graph.adj.nnz // 7)
    found = {name: quality(graph, partition(graph, 8, name, cache=False)) for name in ("metis", "stream", "random")}
    assert found["stream"].edge_cut < 1.25 * found["metis"].edge_cut
    assert found["stream"].edge_cut < 0.6 * found["random"].edge_cut
    assert found["stream"].balance < 1.12


def test_pieces_are_balanced_and_the_same_for_the_same_seed(graph: lmc.Graph) -> None:
    first, again = (coarse_pieces(graph, 4, seed=3) for _ in range(2))
    assert torch.equal(first, again)
    assert int(torch.bincount(first).max()) <= 1.06 * graph.num_nodes / 4
    assert torch.equal(coarse_pieces(graph, 1), torch.zeros(graph.num_nodes, dtype=torch.int64))


def test_every_part_lies_in_one_piece(graph: lmc.Graph) -> None:
    pieces = coarse_pieces(graph, 3)
    parts, owners = parts_in_pieces(graph, pieces, 10)
    assert torch.equal(owners[parts], pieces)
    assert owners.bincount().tolist() == [4, 3, 3]
    assert parts.unique().numel() == 10


@pytest.mark.parametrize("name", SPECIAL_GRAPHS)
def test_directed_and_weighted_graphs_are_divided(name: str) -> None:
    graph = SPECIAL_GRAPHS[name]()
    assert partition(graph, 4, "stream", cache=False).unique().numel() == 4


def test_as_many_parts_as_nodes() -> None:
    graph = random_graph()
    assert partition(graph, 40, "stream", cache=False).unique().numel() == 40


def test_the_graph_between_clusters_counts_edges_and_drops_the_lightest_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(60, seed=3)
    clusters = torch.arange(60) % 7
    one_hot = torch.nn.functional.one_hot(clusters).double()
    dense = one_hot.t() @ (graph.adj.to_dense() != 0).double() @ one_hot
    want = (dense + dense.t()).fill_diagonal_(0)
    monkeypatch.setattr(csr, "CHUNK", graph.adj.nnz // 5)
    assert torch.equal(stream._between(graph.adj, clusters, 7).to_dense().double(), want)
    monkeypatch.setattr(csr, "CHUNK", graph.adj.nnz)
    monkeypatch.setattr(stream, "MIN_PAIRS", 10)
    monkeypatch.setattr(stream, "PAIRS_PER_NODE", 0)
    found = stream._between(graph.adj, clusters, 7).to_dense().double()
    kept = found > 0
    assert 0 < int(kept.sum()) <= 20
    assert torch.equal(found[kept], want[kept])
    assert torch.equal(kept, kept.t())
    assert float(want[kept].min()) > float(want[~kept].max())
