"""Batches in the form of PyG's loaders, and graphs as PyG data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch_geometric.utils import is_undirected, k_hop_subgraph, subgraph

import lmc
from helpers import CONVOLUTIONAL, SPECIAL_GRAPHS, make, model_for, parts_of, random_graph, weighted_graph
from lmc.graph import CSR, Graph
from lmc.methods import GAS, LMC4Conv, ShaDow
from lmc.models import GCN


@pytest.mark.parametrize("sparse_features", [False, True])
@pytest.mark.parametrize("method", [GAS(clusters_per_batch=1), LMC4Conv(clusters_per_batch=2, redraw=True)])
def test_a_batch_has_the_form_of_a_pyg_loader(method: GAS | LMC4Conv, sparse_features: bool) -> None:
    g = random_graph(sparse_features=sparse_features)
    x = g.x.to_dense() if isinstance(g.x, CSR) else g.x
    everything = torch.stack([g.adj.indices.long(), g.adj.row_index()])
    run = method.bind(g, GCN(6, 7, 4).double(), parts_of(g))
    cores = []
    for batch in run.batches():
        data = batch.to_data()
        assert data.validate()
        assert data.num_nodes == batch.num_core + batch.num_halo
        assert data.batch_size == batch.batch_size == batch.num_core
        torch.testing.assert_close(data.x, x[data.n_id])
        assert torch.equal(data.y, g.y[data.n_id])
        for split in ("train", "val", "test"):
            assert torch.equal(data[f"{split}_mask"], getattr(g, split)[data.n_id])
            assert torch.equal(getattr(batch, f"{split}_mask"), data[f"{split}_mask"])
        assert (batch.num_nodes, batch.num_edges) == (data.num_nodes, data.num_edges)
        want, _ = subgraph(data.n_id, everything)
        got = data.n_id[data.edge_index]
        assert sorted(map(tuple, got.t().tolist())) == sorted(map(tuple, want.t().tolist()))
        cores.append(data.n_id[: data.batch_size])
    assert sorted(torch.cat(cores).tolist()) == list(range(40))


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_batches_of_every_method_can_be_converted(name: str) -> None:
    g = random_graph()
    run = CONVOLUTIONAL[name]().bind(g, make(model_for(name), g))
    batch = next(run.batches())
    data = batch.to_data()
    assert data.x.shape[0] == data.n_id.numel() == data.y.shape[0]
    assert (batch.num_nodes, batch.num_edges) == (data.num_nodes, data.num_edges)
    for split in ("train", "val", "test"):
        mask = getattr(batch, f"{split}_mask")
        assert torch.equal(mask, getattr(g, split)[batch.n_id])
        assert torch.equal(mask, data[f"{split}_mask"])


def test_a_node_in_several_subgraphs_has_the_edges_of_each() -> None:
    g = weighted_graph()
    run = ShaDow(depth=1, fanouts=40, batch_size=5).bind(g, make("gcn", g))
    batch, adjacency = next(run.batches()), g.adj.to_dense()
    assert batch.ext.unique().numel() < batch.ext.numel()
    data = batch.to_data()
    assert data.validate()
    found = []
    for root in range(data.batch_size):
        rows, edges, _, inside = k_hop_subgraph(root, 1, data.edge_index, num_nodes=data.num_nodes)
        nodes = data.n_id[rows]
        own = int(data.n_id[root])
        assert sorted(nodes.tolist()) == sorted([own, *adjacency[own].nonzero().flatten().tolist()])
        between = torch.zeros_like(adjacency)
        between[data.n_id[edges[1]], data.n_id[edges[0]]] = data.edge_weight[inside]
        want = torch.zeros_like(adjacency)
        want[nodes.unsqueeze(1), nodes] = adjacency[nodes.unsqueeze(1), nodes]
        assert torch.equal(between, want)
        found.append(rows)
    assert sorted(torch.cat(found).tolist()) == list(range(data.num_nodes))


def of_edges(y: list[float] | list[list[float]], **given: object) -> Graph:
    """A path of four nodes with these targets."""
    edges = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    x = torch.arange(8.0).view(4, 2)
    return Graph.from_edges(edges, x, torch.tensor(y), **({"train": [0, 1]} | given))  # type: ignore[arg-type]


GRAPHS: dict[str, Callable[[], Graph]] = {
    "dense": random_graph,
    "sparse": lambda: random_graph(sparse_features=True),
    "labels": lambda: random_graph(multi_label=True),
    "no features": lambda: Graph.from_edges([[0, 1], [1, 0]], None, [0, 1], train=[0]),
    "both directions of a directed graph": lambda: of_edges([0, 1, 0, 1], directed=True),
    "edge features": lambda: of_edges([0, 1, 0, 1], edge_attr=torch.arange(12.0).view(6, 2)),
    "one label a node": lambda: of_edges([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], task="labels"),
    "whole numbers": lambda: of_edges([1.0, 2.0, 5.0, 3.0], task="regression", val=[2], test=[3]),
    "unseen classes": lambda: of_edges([0, 1, -1, 0], num_classes=5, weight=torch.tensor([1.0, 2.0, 3.0, 4.0])),
    "inductive": lambda: replace(of_edges([0, 1, 0, 1], inductive=True), metric="f1"),
    "evaluation": lambda: of_edges([0, 1, 0, 1], train=None, test=[1, 2]),
    "no targets": lambda: Graph.from_edges([[0, 1], [1, 0]], torch.ones(2, 3), num_classes=3),
    **SPECIAL_GRAPHS,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_becomes_data_and_is_read_back(name: str) -> None:
    g = GRAPHS[name]()
    data = g.to_data()
    assert data.validate()
    assert data.num_nodes == g.num_nodes
    assert is_undirected(data.edge_index) == (not g.directed or name.startswith("both"))
    for split in g.splits:
        assert torch.equal(data[f"{split}_mask"], getattr(g, f"{split}_mask"))
        assert torch.equal(getattr(g, f"{split}_mask"), getattr(g, split))
    read = lmc.load(data)
    assert read.checksum == g.checksum
    assert (type(read.x), read.x.dtype, read.y.dtype) == (type(g.x), g.x.dtype, g.y.dtype)
    for fact in ("num_classes", "task", "directed", "inductive", "metric", "splits"):
        assert getattr(read, fact) == getattr(g, fact), fact


def test_options_of_load_replace_what_data_says() -> None:
    directed = weighted_graph(directed=True).to_data()
    assert not lmc.load(directed, symmetrise=True).directed
    numbers = of_edges([1.0, 2.0, 1.0, 2.0], task="regression").to_data()
    assert lmc.load(numbers, task="classes").num_classes == 3


def test_several_graphs_become_one_union() -> None:
    data = of_edges([0, 1, 0, 1]).to_data()
    union = lmc.data.from_splits([data, data], [data], [data])
    assert (union.num_nodes, union.num_classes, union.num_edges) == (16, 2, 12)
