"""Importance weights, subgraph samplers, ego subgraphs, random edge removal and shuffled rows."""

from __future__ import annotations

import pytest
import torch

from helpers import chance, lonely_graph, random_graph
from lmc.graph import gcn_norm
from lmc.graph.csr import row_entries
from lmc.sampling import (
    ColumnNorms,
    Edges,
    Neighbours,
    Nodes,
    NodeSampler,
    Thinner,
    Walks,
    egos,
    importance_weights,
    shuffled,
)


def test_importance_weights_have_mean_one() -> None:
    chances = torch.tensor([0.0, 1.0, 5.0, 2.0, 0.0, 0.5], dtype=torch.float64)
    draws = torch.stack([importance_weights(chances, 2, chance(seed)) for seed in range(2000)])
    error = draws.std(0) / 2000**0.5
    assert not draws[:, chances == 0].any()
    assert bool(((draws.mean(0) - 1).abs() <= 4 * error)[chances > 0].all())
    assert int((draws > 0).sum(1).max()) <= 2


def test_a_sample_as_large_as_the_candidates_contains_all_of_them() -> None:
    chances = torch.tensor([0.0, 1.0, 5.0])
    assert importance_weights(chances, 2, chance()).tolist() == [0.0, 1.0, 1.0]
    assert importance_weights(chances, 5, chance()).tolist() == [0.0, 1.0, 1.0]
    assert importance_weights(torch.zeros(3), 2, chance()).tolist() == [0.0, 0.0, 0.0]


def test_column_norms_exclude_the_diagonal() -> None:
    P = gcn_norm(random_graph().adj, torch.float64)
    dense = P.to_dense().fill_diagonal_(0)
    torch.testing.assert_close(ColumnNorms(P).of(), dense.square().sum(0))
    rows = torch.tensor([3, 30, 11])
    entries, _ = row_entries(P, rows)
    torch.testing.assert_close(ColumnNorms(P).of(entries), dense[rows].square().sum(0))
    torch.testing.assert_close(ColumnNorms(P).sums, dense.sum(1))


def samplers(n: int = 40) -> dict[str, tuple[NodeSampler, torch.Tensor]]:
    """Each sampler with a single draw, and the probability of every node to be drawn."""
    g = random_graph(n)
    P = gcn_norm(g.adj, torch.float64)
    norms = P.to_dense().square().sum(0)
    degrees = g.adj.degrees().double()
    dense = g.adj.to_dense().double()
    edges = dense * (1 / degrees[:, None] + 1 / degrees[None, :])
    step = dense / degrees[:, None]
    return {
        "node": (Nodes(P, 1), norms / norms.sum()),
        "edge": (Edges(g.adj, 1), 2 * edges.sum(0) / edges.sum()),
        # a walk of one step visits v as its root or as a neighbour of its root
        "walk": (Walks(g.adj, 1, 1), (1 + step.sum(0)) / n),
    }


@pytest.mark.parametrize("name", ["node", "edge", "walk"])
def test_samplers_draw_nodes_with_their_probabilities(name: str) -> None:
    sampler, chances = samplers()[name]
    times, generator = 3000, chance(3)
    met = torch.zeros(40, dtype=torch.float64)
    for _ in range(times):
        met[sampler(generator)] += 1
    assert float(((met / times - chances) / (chances / times).sqrt()).abs().max()) < 4.2


def test_walks_follow_edges_and_stay_at_isolated_nodes() -> None:
    g = lonely_graph()
    met = Walks(g.adj, 200, 3)(chance())
    assert met.tolist() == list(range(10))
    alone = [nodes for nodes in (Walks(g.adj, 1, 3)(chance(k)).tolist() for k in range(60)) if 8 in nodes or 9 in nodes]
    assert alone
    assert all(len(nodes) == 1 for nodes in alone)


def test_egos_are_induced_subgraphs_in_diagonal_blocks() -> None:
    P = gcn_norm(random_graph().adj, torch.float64)
    whole, roots = P.to_dense(), torch.tensor([7, 3, 8])
    nodes, block = egos(Neighbours(P), roots, (2, 2), chance())
    assert torch.equal(nodes[:3], roots)
    dense = block.to_dense()
    assert torch.equal(dense, dense.t())
    # a root is connected to the nodes of its own subgraph and to no other root's
    reach = (torch.linalg.matrix_power((dense != 0).double(), 8) > 0)[:3]
    assert bool((reach.sum(0) == 1).all())
    for k in range(3):
        mine = reach[k].nonzero().squeeze(1)
        assert nodes[mine].unique().numel() == mine.numel()
        torch.testing.assert_close(dense[mine][:, mine], whole[nodes[mine]][:, nodes[mine]])
        assert 1 + 2 <= mine.numel() <= 1 + 2 + 4


def test_egos_of_isolated_roots_are_the_roots() -> None:
    nodes, block = egos(Neighbours(gcn_norm(lonely_graph().adj, torch.float64)), torch.tensor([9, 8]), (3, 3), chance())
    assert nodes.tolist() == [9, 8]
    assert block.to_dense().tolist() == [[1, 0], [0, 1]]


def test_removed_edges_keep_the_graph_undirected_and_have_the_given_share() -> None:
    g = random_graph(200).permute(torch.randperm(200, generator=chance(5)))
    thin = Thinner(g.adj)
    lost = []
    for seed in range(40):
        left = thin(0.3, chance(seed)).to_dense()
        assert torch.equal(left, left.t())
        assert bool((left <= g.adj.to_dense()).all())
        lost.append(1 - float(left.sum()) / g.adj.nnz)
    assert abs(sum(lost) / 40 - 0.3) < 4 * (0.3 * 0.7 / (40 * g.num_edges)) ** 0.5
    assert torch.equal(thin(0.0, chance()).to_dense(), g.adj.to_dense())


def test_shuffled_rows_appear_once_in_batches_of_even_size() -> None:
    rows = torch.arange(100, 123)
    batches = shuffled(rows, 10, seed=1)
    assert sorted(map(len, batches)) == [7, 8, 8]
    assert torch.equal(torch.cat(batches).sort().values, rows)
    assert not torch.equal(torch.cat(batches), rows)
    assert all(torch.equal(a, b) for a, b in zip(batches, shuffled(rows, 10, seed=1), strict=True))
