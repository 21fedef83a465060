"""Native models are called as PyG's are: ``model(x, edge_index)`` is the exact forward pass, and autograd works."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor

import lmc
from helpers import MODELS, MORE_MODELS, chance, full_gradient, make, random_graph, worst_error
from lmc.errors import ConfigError, GraphError
from lmc.graph import Aggregation, Graph, normalise
from lmc.models import GCN, RecGCN


def edges_of(graph: Graph) -> Tensor:
    return torch.stack([graph.adj.row_index(), graph.adj.indices.long()])


def copied(theirs: pyg.GCN) -> GCN:
    """A native model with the parameters of one of PyG's."""
    mine = GCN(6, 7, 4, num_layers=2).double()
    with torch.no_grad():
        for layer, conv in zip(mine.layers, theirs.convs, strict=True):
            layer.lin.weight.copy_(conv.lin.weight)
            layer.lin.bias.copy_(conv.bias)
    return mine


@pytest.mark.parametrize("name", [*MODELS, *MORE_MODELS])
def test_a_call_is_the_pass_on_the_whole_graph_with_its_gradient(name: str) -> None:
    graph = random_graph()
    model = make(name, graph)
    logits = model(graph.x, edges_of(graph))
    P = Aggregation.exact(normalise(graph.adj, model.normalisation, torch.float64))
    if len(model.matrices(graph.adj, torch.float64)[0]) == 1:
        assert torch.allclose(logits, model(graph.x, P), rtol=0, atol=1e-12)
        loss = F.cross_entropy(logits[graph.train], graph.y[graph.train])
        named = dict(model.named_parameters())
        got = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
        assert worst_error(got, full_gradient(graph, model)) < 1e-10
    assert torch.allclose(logits.detach(), lmc.predict(model, graph), rtol=0, atol=1e-10)


def test_a_gcn_is_that_of_pyg() -> None:
    graph = random_graph()
    theirs, edges = pyg.GCN(6, 7, 2, 4).double(), edges_of(graph)
    mine = copied(theirs)
    assert torch.allclose(mine(graph.x, edges), theirs(graph.x, edges), rtol=0, atol=1e-10)
    assert torch.equal(lmc.wrap(theirs)(graph.x, edges), theirs(graph.x, edges))


def test_weighted_and_directed_edges_are_those_of_pyg() -> None:
    graph = random_graph()
    edges = edges_of(graph)[:, ::3]
    weight = torch.rand(edges.shape[1], dtype=torch.float64, generator=chance())
    theirs = pyg.GCN(6, 7, 2, 4).double()
    mine = copied(theirs)
    want = theirs(graph.x, edges, weight)
    assert torch.allclose(mine(graph.x, edges, weight), want, rtol=0, atol=1e-10)
    assert torch.equal(mine(graph.x, edges, edge_weight=weight), mine(graph.x, edges, weight))
    assert torch.equal(lmc.wrap(theirs)(graph.x, edges, weight), want)
    ours = [grad.norm() for grad in torch.autograd.grad(mine(graph.x, edges, weight).square().sum(), mine.parameters())]
    plain = [grad.norm() for grad in torch.autograd.grad(want.square().sum(), theirs.parameters())]
    assert sorted(map(float, ours)) == pytest.approx(sorted(map(float, plain)), rel=1e-8)


def test_plain_pytorch_trains_a_native_model() -> None:
    graph = lmc.load("tiny-like", scale=0.25)
    edges, model = edges_of(graph), GCN(graph.num_features, 16, graph.num_classes, dropout=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(graph.x, edges)[graph.train], graph.y[graph.train])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.6 * losses[0]


def test_a_fixed_point_is_called_alike() -> None:
    graph = random_graph()
    model = RecGCN(6, 5, 4, tol=1e-10).double()
    model.eval()
    logits = model(graph.x, edges_of(graph))
    assert torch.allclose(logits.detach(), lmc.predict(model, graph), rtol=0, atol=1e-6)
    (grad,) = torch.autograd.grad(logits.sum(), model.W)
    assert bool(grad.any())


def test_wrong_arguments_are_refused() -> None:
    graph = random_graph()
    model = GCN(6, 7, 4).double()
    with pytest.raises(ConfigError, match=r"expected features \[n, 6\] \(got shape \[40, 5\]\): make the model with"):
        model(graph.x[:, :5], edges_of(graph))
    with pytest.raises(GraphError, match="between nodes in"):
        model(graph.x, edges_of(graph) + 1)
    weight = torch.ones(edges_of(graph).shape[1])
    with pytest.raises(ConfigError, match="no edge weights, which it does not read for GAT"):
        make("gat", graph)(graph.x, edges_of(graph), weight)
    with pytest.raises(ConfigError, match="constant edge weights for GCN"):
        model(graph.x, edges_of(graph), weight.requires_grad_())
