"""Normalisation against its formula and against PyG."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.nn.conv.gcn_conv import gcn_norm as pyg_gcn_norm

from helpers import EDGES, GRAPHS, SPECIAL_GRAPHS, both_directions
from lmc.graph import Extractor, gcn_norm, normalise, renormalise
from lmc.graph.normalise import with_self_loops


@pytest.mark.parametrize("name", GRAPHS)
def test_gcn_norm_is_the_dense_formula(name: str) -> None:
    g = GRAPHS[name]()
    A = g.adj.to_dense().double() + torch.eye(g.num_nodes, dtype=torch.float64)
    D = A.sum(1).rsqrt().diag()
    P = gcn_norm(g.adj, torch.float64)
    torch.testing.assert_close(P.to_dense(), D @ A @ D, rtol=0, atol=1e-15)
    assert P.symmetric


def test_gcn_norm_agrees_with_pyg() -> None:
    g = GRAPHS["hand"]()
    edge_index, weight = pyg_gcn_norm(both_directions(EDGES), num_nodes=8, dtype=torch.float64)
    dense = torch.zeros(8, 8, dtype=torch.float64).index_put_((edge_index[1], edge_index[0]), weight)
    torch.testing.assert_close(gcn_norm(g.adj, torch.float64).to_dense(), dense, rtol=0, atol=1e-15)


def test_gcn_norm_in_float32_is_the_rounded_float64_one() -> None:
    adj = GRAPHS["random"]().adj
    assert torch.equal(gcn_norm(adj).data, gcn_norm(adj, torch.float64).data.float())


def test_self_loops_keep_columns_sorted() -> None:
    looped = with_self_loops(GRAPHS["random"]().adj)
    key = looped.row_index() * looped.num_cols + looped.indices
    assert torch.equal(key, key.sort().values)


def test_renormalised_block_is_the_normalisation_of_the_subgraph() -> None:
    g = GRAPHS["random"]()
    nodes = torch.tensor([3, 8, 4, 20, 5, 9])
    A = g.adj.to_dense().double()[nodes][:, nodes] + torch.eye(6, dtype=torch.float64)
    D = A.sum(1).rsqrt().diag()
    block = renormalise(Extractor(gcn_norm(g.adj, torch.float64)).induced(nodes))
    torch.testing.assert_close(block.to_dense(), D @ A @ D, rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", SPECIAL_GRAPHS)
def test_weights_and_directions_are_normalised_as_pyg_does(name: str) -> None:
    g = SPECIAL_GRAPHS[name]()
    edges = torch.stack([g.adj.indices.long(), g.adj.row_index()])
    edge_index, weight = pyg_gcn_norm(edges, g.edge_weight, num_nodes=40, dtype=torch.float64)
    dense = torch.zeros(40, 40, dtype=torch.float64).index_put_((edge_index[1], edge_index[0]), weight)
    P = normalise(g.adj, "gcn", torch.float64)
    torch.testing.assert_close(P.to_dense(), dense, rtol=0, atol=1e-15)
    assert P.symmetric == (not g.directed)
    A = torch.zeros_like(dense)
    A[edges[1], edges[0]] = torch.ones(edges.shape[1], dtype=torch.float64) if g.edge_weight is None else g.edge_weight
    mean = A / A.sum(1, keepdim=True).where(A.sum(1, keepdim=True) > 0, 1)
    for kind, want in (("mean", mean), ("sum", A + torch.eye(40))):
        matrix = normalise(g.adj, kind, torch.float64)
        torch.testing.assert_close(matrix.to_dense(), want, rtol=0, atol=1e-15)
        torch.testing.assert_close(matrix.t().to_dense(), want.t(), rtol=0, atol=1e-15)
        assert torch.equal(matrix.indices, P.indices)


def test_the_unweighted_undirected_matrix_carries_nothing_more() -> None:
    adj = GRAPHS["random"]().adj
    assert all(normalise(adj, kind).edge_data is None for kind in ("gcn", "mean", "sum"))
    P = normalise(adj, "gcn")
    assert P.t() is P
