"""Batches in the form of PyG's loaders."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.utils import k_hop_subgraph, subgraph

from helpers import CONVOLUTIONAL, make, model_for, parts_of, random_graph, weighted_graph
from lmc.graph import CSR
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
        assert torch.equal(batch.train_mask, data.train_mask)
        want, _ = subgraph(data.n_id, everything)
        got = data.n_id[data.edge_index]
        assert sorted(map(tuple, got.t().tolist())) == sorted(map(tuple, want.t().tolist()))
        cores.append(data.n_id[: data.batch_size])
    assert sorted(torch.cat(cores).tolist()) == list(range(40))


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_batches_of_every_method_can_be_converted(name: str) -> None:
    g = random_graph()
    run = CONVOLUTIONAL[name]().bind(g, make(model_for(name), g))
    data = next(run.batches()).to_data()
    assert data.x.shape[0] == data.n_id.numel() == data.y.shape[0]


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
