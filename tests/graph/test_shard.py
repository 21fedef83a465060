"""What each rank of a distributed run holds of a graph."""

from __future__ import annotations

import pytest
import torch

from helpers import SPECIAL_GRAPHS, hand_graph, parts_of, random_graph
from lmc.errors import ConfigError, GraphError
from lmc.graph import NORMALISATIONS, Graph, Shard, normalise
from lmc.partition import group_parts

GRAPHS = {"hand": hand_graph, "random": random_graph, **SPECIAL_GRAPHS}


def shards_of(graph: Graph, ranks: int, num_parts: int = 6) -> list[Shard]:
    parts = parts_of(graph, num_parts)
    owners = group_parts(graph, parts, ranks)
    return [Shard.cut(graph, parts, owners, rank, ranks) for rank in range(ranks)]


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_node_has_one_owner_and_all_of_its_neighbours_are_local(name: str, ranks: int) -> None:
    graph = GRAPHS[name]()
    shards = shards_of(graph, ranks)
    owned = torch.cat([shard.ids[: shard.num_owned] for shard in shards])
    assert torch.equal(owned.sort().values, torch.arange(graph.num_nodes))
    dense = graph.adj.to_dense()
    for shard in shards:
        local = shard.graph.adj.to_dense()
        assert torch.equal(local, dense[shard.ids][:, shard.ids])
        rows = shard.ids[: shard.num_owned]
        neighbours = (dense[rows] != 0).any(0) | (dense[:, rows] != 0).any(1)
        assert set(neighbours.nonzero().squeeze(1).tolist()) <= set(shard.ids.tolist())
        assert set(shard.ids[shard.num_owned :].tolist()) <= set(neighbours.nonzero().squeeze(1).tolist())
        assert torch.equal(shard.graph.x, graph.x[shard.ids])
        assert torch.equal(shard.graph.train, graph.train[shard.ids])


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_rows_that_are_sent_are_the_mirrors_that_are_received(name: str, ranks: int) -> None:
    shards = shards_of(GRAPHS[name](), ranks)
    orders = [torch.randperm(shard.num_owned) for shard in shards]
    shards = [shard.permute(order) for shard, order in zip(shards, orders, strict=True)]
    for source in shards:
        for target in shards:
            sent = source.send.split(source.send_counts)[target.rank]
            mirrors = target.ids[target.num_owned :].split(target.receive_counts)[source.rank]
            assert torch.equal(source.ids[sent], mirrors)
            assert bool((sent < source.num_owned).all())


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("kind", NORMALISATIONS)
def test_matrix_of_local_nodes_is_that_of_the_whole_graph(name: str, kind: str) -> None:
    graph = GRAPHS[name]()
    whole = normalise(graph.adj, kind, torch.float64).to_dense()
    for shard in shards_of(graph, 3):
        n = shard.num_local
        P = normalise(shard.completed(), kind, torch.float64).to_dense()[:n, :n]
        assert torch.allclose(P, whole[shard.ids][:, shard.ids], rtol=1e-14, atol=0)


def test_facts_of_the_whole_graph_are_kept() -> None:
    graph = random_graph()
    degree = (graph.adj.to_dense() != 0).sum(1)
    for shard in shards_of(graph, 4):
        assert torch.equal(shard.degree, degree[shard.ids])
        assert (shard.num_nodes, shard.num_edges) == (graph.num_nodes, graph.num_edges)
        assert (shard.total_weight, shard.checksum) == (graph.total_weight, graph.checksum)
        assert shard.splits == graph.splits
        assert repr(shard).startswith(f"Shard({shard.rank} of 4, {shard.num_owned} of 40 nodes of 'random', ")


def test_groups_have_equal_numbers_of_parts_and_keep_neighbours_together() -> None:
    # a ring of 12 parts: two halves of the ring cut 2 of its edges, whatever the numbers of the parts
    n = 48
    ring = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])
    graph = Graph.from_edges(ring, torch.zeros(n, 1), torch.zeros(n).long(), train=[0], symmetrise=True, num_classes=2)
    number = torch.randperm(12)
    parts = number[torch.arange(n) // 4]
    for ranks, cut in ((2, 2), (3, 3), (4, 4)):
        owners = group_parts(graph, parts, ranks)
        assert torch.bincount(owners).tolist() == [12 // ranks] * ranks
        owner = owners[parts]
        assert int((owner[ring[0]] != owner[ring[1]]).sum()) == cut
    assert sorted(torch.bincount(group_parts(graph, parts, 5)).tolist()) == [2, 2, 2, 3, 3]


def test_more_ranks_than_parts_are_refused() -> None:
    graph = random_graph()
    with pytest.raises(ConfigError, match="expected at least one part per rank, 4 \\(got 3 parts\\)"):
        group_parts(graph, parts_of(graph, 3), 4)
    with pytest.raises(GraphError, match=r"expected ranks below 2.*: divide the graph"):
        Shard.cut(graph, parts_of(graph, 3), torch.tensor([0, 1, 1]), 2, 2)
