"""Edges with weights, features and directions: what is refused, repaired and kept in order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.utils import to_undirected

from helpers import EDGES, both_directions, chance, weighted_graph
from lmc.errors import GraphError
from lmc.graph import Graph
from lmc.graph.csr import with_transpose
from lmc.partition import partition, quality

ONE_WAY = torch.tensor(EDGES).t()
BOTH = both_directions(EDGES)
WEIGHT = torch.rand(len(EDGES), generator=chance(2), dtype=torch.float64)
NAN = WEIGHT.index_fill(0, torch.tensor([3]), float("nan"))


def graph(edge_index: torch.Tensor, **more: Any) -> Graph:
    y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    return Graph.from_edges(edge_index, torch.ones(8, 5), y, train=[0, 1, 2], val=[3, 4], test=[5, 6, 7], **more)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "too few": ({"edge_weight": WEIGHT}, r"edge_weight of shape \[20\].*\(got \[10\]\)"),
    "two columns": ({"edge_weight": torch.ones(20, 2)}, r"edge_weight of shape \[20\].*\(got \[20, 2\]\)"),
    "nan": ({"edge_weight": torch.cat([NAN, NAN])}, "finite edge_weight .*at edge 3"),
    "complex": ({"edge_weight": torch.ones(20) * 1j}, "real numbers in edge_weight"),
    "features of other edges": ({"edge_attr": torch.ones(19, 2)}, r"edge_attr of shape \[20, k\].*\(got \[19, 2\]\)"),
    "no feature": ({"edge_attr": torch.ones(20, 0)}, r"edge_attr of shape \[20, k\].*\(got \[20, 0\]\)"),
    "one-sided": ({"edge_weight": torch.arange(20)}, r"same weight in both directions \(got 10 for \(1, 0\) and 0"),
    "both": ({"directed": True, "symmetrise": True}, "directed=True or symmetrise=True"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_edge_data_is_refused(case: str) -> None:
    given, message = BAD[case]
    with pytest.raises(GraphError, match=message):
        graph(BOTH, **given)


@pytest.mark.parametrize(("extra", "message"), [([[3], [3]], "no self-loops"), ([[0], [1]], "no duplicate edges")])
def test_directed_loops_and_duplicates_are_refused_with_a_remedy_that_helps(extra: Any, message: str) -> None:
    with pytest.raises(GraphError, match=rf"{message}.*coalesce"):
        graph(torch.cat([ONE_WAY, torch.tensor(extra)], 1), directed=True)


def test_weights_and_features_follow_their_edges() -> None:
    edges = BOTH[:, torch.randperm(20, generator=chance(0))]
    number = torch.minimum(*edges) * 10.0 + torch.maximum(*edges)
    attr = torch.stack([edges[0], edges[1]], 1)
    g = graph(edges, edge_weight=number, edge_attr=attr).permute(torch.randperm(8, generator=chance(1)))
    order = torch.randperm(8, generator=chance(1))
    source, target = order[g.adj.indices.long()], order[g.adj.row_index()]
    assert torch.equal(g.edge_weight, torch.minimum(source, target) * 10.0 + torch.maximum(source, target))
    assert torch.equal(g.edge_attr, torch.stack([source, target], 1).float())


def test_directed_edges_end_in_their_row() -> None:
    g = graph(ONE_WAY, directed=True, edge_weight=WEIGHT)
    assert g.directed
    assert g.num_edges == 10
    A = torch.zeros(8, 8, dtype=torch.float64)
    A[ONE_WAY[1], ONE_WAY[0]] = WEIGHT
    assert torch.equal(g.adj.to_dense(), A)
    assert torch.equal(with_transpose(g.adj).to_dense().double(), ((A + A.t()) > 0).double())
    assert "10 directed weighted edges" in repr(g)


def test_symmetrise_takes_the_mean_of_a_pair() -> None:
    listed = torch.cat([ONE_WAY, ONE_WAY[:, :4].flip(0), ONE_WAY[:, :2]], 1)
    data = torch.rand(16, 3, generator=chance(3), dtype=torch.float64)
    index, mean = to_undirected(listed, data, reduce="mean")
    g = graph(listed, symmetrise=True, edge_weight=data[:, 0], edge_attr=data)
    assert torch.equal(g.adj.row_index(), index[0])
    assert torch.equal(g.adj.indices.long(), index[1])
    torch.testing.assert_close(g.edge_attr, mean)
    torch.testing.assert_close(g.edge_weight, mean[:, 0])
    assert torch.equal(g.adj.to_dense(), g.adj.to_dense().t())


def test_a_checksum_knows_weights_and_direction_and_a_fingerprint_the_edges_alone() -> None:
    plain, weighted = graph(BOTH), graph(BOTH, edge_weight=torch.cat([WEIGHT, WEIGHT]))
    attributed, directed = graph(BOTH, edge_attr=torch.ones(20, 2)), graph(BOTH, directed=True)
    assert len({g.checksum for g in (plain, weighted, attributed, directed)}) == 4
    assert len({g.fingerprint for g in (plain, weighted, attributed, directed)}) == 1


@pytest.mark.parametrize("method", ["metis", "label-propagation"])
def test_directed_graphs_are_divided_by_neighbours_in_either_direction(method: str) -> None:
    g = weighted_graph(directed=True)
    undirected = Graph.from_edges(
        torch.stack([g.adj.indices.long(), g.adj.row_index()]), g.x, g.y, train=g.train, val=g.val, test=g.test,
        symmetrise=True,
    )  # fmt: skip
    parts = partition(g, 4, method, cache=False)
    assert torch.equal(parts, partition(undirected, 4, method, cache=False))
    assert quality(g, parts).halo_ratio == quality(undirected, parts).halo_ratio
    row, col = g.adj.row_index(), g.adj.indices
    assert quality(g, parts).edge_cut == pytest.approx(float((parts[row] != parts[col]).double().mean()))
