"""Predictions are the exact forward pass, for any nodes in any order, within a limit of memory."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor

import lmc
from helpers import chance, hand_graph, random_graph, scrambled
from lmc.diagnostics import peak_bytes
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.models import GAT, GCN, MODELS, Model


def edges_of(graph: Graph) -> Tensor:
    return torch.stack([graph.adj.row_index(), graph.adj.indices.long()])


def bare(graph: Graph) -> Graph:
    """The same edges and features, without targets and splits."""
    return Graph.from_edges(edges_of(graph), graph.x)


def native(name: str) -> Model:
    options: dict[str, Any] = {"tol": 1e-10} if MODELS[name].recurrent else {"num_layers": 3}
    model = scrambled(MODELS[name](6, 8, 4, dropout=0.5, **options))
    model.project()
    return model


def wrapped() -> Model:
    return lmc.wrap(scrambled(pyg.GraphSAGE(6, 8, 3, 4, dropout=0.5)))


ALL: dict[str, Callable[[], Model]] = {name: (lambda name=name: native(name)) for name in MODELS} | {"wrap": wrapped}


@pytest.mark.parametrize("name", ALL)
def test_predictions_are_the_full_forward_pass_within_any_memory(name: str) -> None:
    graph, model = bare(random_graph()), ALL[name]()
    model.eval()
    with torch.no_grad():
        whole = model(graph.x, edges_of(graph))
    model.train()
    assert torch.allclose(lmc.predict(model, graph), whole, rtol=0, atol=1e-6)
    assert torch.allclose(lmc.predict(model, graph, memory=40_000), whole, rtol=0, atol=1e-6)
    assert model.training


@pytest.mark.parametrize("memory", [None, 40_000])
def test_nodes_come_in_the_order_in_which_they_are_asked_for(memory: int | None) -> None:
    graph, model = random_graph(), native("gcn")
    everything = lmc.predict(model, graph)
    picked, mask = torch.tensor([7, 3, 3, 39, 0, 7]), torch.rand(40, generator=chance()) < 0.4
    for nodes in (picked, picked.int().numpy(), [5], mask, mask.numpy()):
        want = everything[torch.as_tensor(nodes).long() if len(nodes) < 40 else mask]
        assert torch.allclose(lmc.predict(model, graph, nodes, memory=memory), want, rtol=0, atol=1e-12)
    assert lmc.predict(model, graph, [], memory=memory).shape == (0, 4)


def test_probabilities_and_classes() -> None:
    graph, model = random_graph(), native("gcn")
    logits = lmc.predict(model, graph)
    assert torch.allclose(lmc.predict(model, graph, output="probabilities"), logits.softmax(1))
    assert torch.equal(lmc.predict(model, graph, output="classes"), logits.argmax(1))
    several = Graph.from_edges(edges_of(graph), graph.x, task="labels")
    assert torch.allclose(lmc.predict(model, several, output="probabilities"), logits.sigmoid())
    assert torch.equal(lmc.predict(model, several, output="classes"), (logits > 0).long())
    numbers = Graph.from_edges(edges_of(graph), graph.x, task="regression")
    assert torch.equal(lmc.predict(model, numbers), logits)
    with pytest.raises(ConfigError, match=r'expected output="logits" for a regression \(got \'classes\'\)'):
        lmc.predict(model, numbers, output="classes")


def test_weighted_and_directed_graphs() -> None:
    edges, x, model = edges_of(random_graph())[:, ::3], random_graph().x, native("sage")
    weight = torch.rand(edges.shape[1], dtype=torch.float64, generator=chance())
    graph = Graph.from_edges(edges, x, directed=True, edge_weight=weight)
    model.eval()
    want = model(x, edges, weight).detach()
    assert torch.allclose(lmc.predict(model, graph), want, rtol=0, atol=1e-10)
    assert torch.allclose(lmc.predict(model, graph, memory=40_000), want, rtol=0, atol=1e-10)


def test_the_classes_score_as_evaluate_says() -> None:
    graph, model = random_graph(), native("gcn")
    right = lmc.predict(model, graph, graph.test, "classes") == graph.y[graph.test]
    assert float(right.double().mean()) == pytest.approx(lmc.evaluate(model, graph)["test"], abs=1e-6)


@pytest.mark.parametrize("model", [native("gcn"), scrambled(GAT(6, 8, 4, num_layers=3, heads=2))], ids=["gcn", "gat"])
def test_states_are_what_the_next_layer_reads(model: Model) -> None:
    graph, seen = random_graph(), list[Tensor]()
    hooks = [layer.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for layer in model.layers]
    model.eval()
    with torch.no_grad():
        logits = model(graph.x, edges_of(graph))
    for hook in hooks:
        hook.remove()
    for l in (1, 2):
        assert torch.allclose(lmc.predict(model, graph, output="states", layer=l), seen[l], atol=1e-10)
    assert torch.allclose(lmc.predict(model, graph, [4, 2], "states"), logits[[4, 2]], atol=1e-10)


def test_states_of_wrapped_networks_and_of_fixed_points() -> None:
    graph, model = random_graph(), wrapped()
    P = model.matrices(graph.adj, torch.float64)[0][0].to_dense()
    assert torch.allclose(lmc.predict(model, graph, output="states", layer=1), P @ graph.x, atol=1e-10)
    assert lmc.predict(native("recgcn"), graph, output="states").min() == 0


def test_another_graph_than_that_of_training() -> None:
    graph, other = random_graph(), random_graph(n=31, seed=5)
    model = native("gcn").float()
    lmc.fit(graph, model, lmc.methods.LMC4Conv(4, 1), epochs=2, device="cpu")
    model.eval()
    x = other.x.to(dtype=torch.float32)
    assert torch.allclose(lmc.predict(model, bare(other)), model(x, edges_of(other)).detach(), atol=1e-6)
    sparse = random_graph(n=31, seed=5, sparse_features=True)
    dense = Graph.from_edges(edges_of(sparse), sparse.x.to_dense())  # type: ignore[operator]
    assert torch.allclose(lmc.predict(model, sparse), lmc.predict(model, dense), atol=1e-6)


def peak(model: Model, graph: Graph, memory: int | None) -> int:
    gc.collect()  # what is freed during the measurement must have been allocated during it
    return peak_bytes(lambda: lmc.predict(model, graph, [0], memory=memory), torch.device("cpu"))


@pytest.mark.parametrize(("name", "limit"), [("gcn", 2_000_000), ("pna", 3_800_000), ("wrap", 5_000_000)])
def test_the_peak_of_memory_stays_within_the_limit(name: str, limit: int) -> None:
    graph = bare(lmc.load("tiny-like"))
    d = graph.num_features
    model = (
        lmc.wrap(pyg.GAT(d, 64, 3, 8, heads=4))
        if name == "wrap"
        else MODELS[name](d, 512 if name == "gcn" else 64, 8, 3)
    )
    assert peak(model, graph, limit) <= limit < peak(model, graph, None)


@pytest.mark.slow
def test_the_limit_holds_on_a_large_graph() -> None:
    graph = bare(lmc.load("products-like@0.1"))
    model = GCN(graph.num_features, 256, 47, num_layers=3)
    assert peak(model, graph, 500_000_000) <= 500_000_000
    assert peak(model, graph, None) > 1_000_000_000


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "output": ({"output": "scores"}, r"expected output in \['logits', .*'states'\] \(got 'scores'\)"),
    "layer": ({"output": "states", "layer": 4}, r"expected layer from 1 to 3 \(got 4\)"),
    "layer of logits": ({"layer": 1}, r'expected layer with output="states" alone.*: drop it'),
    "node too large": ({"nodes": [0, 8]}, r"expected nodes in \[0, 8\) \(got 8\): number the nodes from 0"),
    "node negative": ({"nodes": [-1]}, r"expected nodes in \[0, 8\) \(got -1\)"),
    "short mask": (
        {"nodes": torch.ones(7, dtype=torch.bool)},
        r"a mask of length 8 for nodes \(got 7\): pass a boolean per node",
    ),
    "mask of whole numbers": ({"nodes": [0, 1, 1, 0, 1, 0, 0, 1]}, r"8 numbers 0 and 1 for 8 nodes"),
    "fractions": ({"nodes": torch.tensor([0.5])}, "whole node numbers.*: convert them"),
    "memory": ({"memory": 100}, r"expected memory of at least [\d,]+ bytes .*\(got 100\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_uses_are_refused_in_one_line(name: str) -> None:
    arguments, message = WRONG[name]
    with pytest.raises(ConfigError, match=message) as error:
        lmc.predict(GCN(5, 4, 3, num_layers=3).double(), hand_graph(), **arguments)
    assert "\n" not in str(error.value)


def test_a_graph_of_another_width_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected a graph with the 6 features .* \(got 5 in graph 'hand'\)"):
        lmc.predict(GCN(6, 4, 3), hand_graph())
