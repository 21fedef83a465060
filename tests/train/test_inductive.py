"""Inductive training: no number of validation and test nodes reaches a gradient, a buffer, a partition or a matrix."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, GCNConv
from typer.testing import CliRunner

import lmc
from helpers import CONVOLUTIONAL, RECURRENT, model_for, random_graph, weighted_graph
from helpers import MODELS as SMALL_MODELS
from lmc.cli import app
from lmc.errors import GraphError
from lmc.graph import Graph, normalise
from lmc.methods import FullBatch, LMC4Conv, LMC4Rec
from lmc.models import GAT, GCN, PNA, SAGE, Model, RecGCN


class Network(nn.Module):
    """Two convolutions of PyG with a batch norm between them."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.conv1, self.norm, self.conv2 = GCNConv(in_width, 6), nn.BatchNorm1d(6), GATConv(6, out_width)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.conv2(self.norm(self.conv1(x, edge_index)).relu(), edge_index)


MODELS: dict[str, Callable[[Graph], Model]] = {
    "gcn": lambda g: GCN(g.num_features, 6, g.num_classes, num_layers=3, norm="batch", dropout=0.3),
    "sage": lambda g: SAGE(g.num_features, 6, g.num_classes, norm="batch"),
    "gat": lambda g: GAT(g.num_features, 6, g.num_classes),
    "pna": lambda g: PNA(g.num_features, 6, g.num_classes),
    "sign": SMALL_MODELS["sign"],
    "recgcn": lambda g: RecGCN(g.num_features, 6, g.num_classes),
    "wrapped": lambda g: lmc.wrap(Network(g.num_features, g.num_classes)),
}
PAIRS = [(method, model_for(method)) for method in CONVOLUTIONAL]
PAIRS += [(method, "recgcn") for method in RECURRENT]
PAIRS += [("lmc", name) for name in ("sage", "gat", "pna", "wrapped")]


def disturbed(graph: Graph) -> Graph:
    """The same graph with three times the features of validation and test nodes, and other targets."""
    factor = torch.where(graph.train, 1.0, 3.0).unsqueeze(1)
    y = torch.where(graph.train, graph.y, (graph.y + 1) % graph.num_classes)
    return dataclasses.replace(graph, x=graph.x * factor, y=y)


def trained(graph: Graph, method: str, model: str, **options: object) -> tuple[Model, list[torch.Tensor]]:
    """A model after two epochs, and every gradient on the way."""
    torch.manual_seed(0)
    made = MODELS[model](graph).double()
    cls = (CONVOLUTIONAL | RECURRENT)[method]
    sizes = {"num_parts": 4, "clusters_per_batch": 2} if hasattr(cls, "num_parts") else {}
    gradients: list[torch.Tensor] = []

    class Watch(lmc.train.Callback):
        def on_step(self, training: lmc.train.Training) -> None:
            gradients.extend(p.grad.clone() for p in training.model.parameters() if p.grad is not None)

    lmc.fit(
        graph, made, cls(**sizes), epochs=2, lr=0.05, optimizer="sgd", restore_best=False, callbacks=[Watch()],
        device="cpu", **options,
    )  # fmt: skip
    return made, gradients


def same(one: tuple[Model, list[torch.Tensor]], other: tuple[Model, list[torch.Tensor]]) -> bool:
    """Whether gradients, parameters and buffers agree in every bit."""
    states = zip(one[0].state_dict().values(), other[0].state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in [*states, *zip(one[1], other[1], strict=True)])


@pytest.mark.parametrize(("method", "model"), PAIRS)
def test_other_nodes_change_nothing(method: str, model: str) -> None:
    g = random_graph()
    clean = trained(g, method, model, inductive=True)
    assert clean[1]
    assert same(clean, trained(disturbed(g), method, model, inductive=True))
    seen = dataclasses.replace(g, inductive=True).training_graph
    assert same(clean, trained(seen, method, model, eval_every=0))


def test_transductive_training_does_read_them() -> None:
    g = random_graph()
    assert not same(trained(g, "lmc", "gcn"), trained(disturbed(g), "lmc", "gcn"))


@pytest.mark.parametrize("make", [random_graph, weighted_graph, lambda: weighted_graph(directed=True)])
def test_the_training_graph_is_the_induced_subgraph_with_its_own_degrees(make: Callable[[], Graph]) -> None:
    g = dataclasses.replace(make(), inductive=True)
    seen = g.training_graph
    nodes = g.train.nonzero().squeeze(1)
    assert torch.equal(seen.adj.to_dense(), g.adj.to_dense()[nodes][:, nodes])
    assert torch.equal(seen.n_id, nodes)
    assert torch.equal(seen.x, g.x[nodes])
    assert (seen.splits, seen.directed, seen.num_labelled) == (("train",), g.directed, g.num_labelled)
    run = LMC4Conv(3, 1).bind(g, GCN(g.num_features, 5, g.num_classes).double())
    order = run.clusters.order
    assert order.numel() == nodes.numel()  # only the training nodes are divided into parts
    P = normalise(seen.adj, "gcn", torch.float64).to_dense()[order][:, order]
    torch.testing.assert_close(run.problem.P.to_dense(), P, rtol=1e-14, atol=0)
    whole = normalise(g.adj, "gcn", torch.float64).to_dense()
    torch.testing.assert_close(run.evaluated.P.to_dense(), whole, rtol=1e-14, atol=0)
    batch = next(run.batches())
    assert torch.equal(g.x[batch.n_id], batch.x)  # rows are numbered as in the user's graph
    assert bool(g.train[batch.n_id].all())


def test_sparse_features_and_weights_of_nodes_are_cut_too() -> None:
    g = dataclasses.replace(random_graph(sparse_features=True), inductive=True)
    g = dataclasses.replace(g, weight=torch.rand(g.num_nodes))
    seen = g.training_graph
    assert torch.equal(seen.x.to_dense(), g.x.to_dense()[g.train])
    assert torch.equal(seen.weight, g.weight[g.train])


def test_parts_of_all_nodes_or_of_training_nodes_are_accepted() -> None:
    g = random_graph()
    parts = torch.arange(g.num_nodes) % 7
    model = GCN(g.num_features, 5, g.num_classes).double()
    a, b = (LMC4Conv(7, 1).bind(g, model, p, inductive=True) for p in (parts, parts[g.train]))
    assert torch.equal(a.clusters.order, b.clusters.order)
    with pytest.raises(GraphError, match="one part per node"):
        LMC4Conv(7, 1).bind(g, model, parts[:3], inductive=True)


@pytest.mark.parametrize("kind", ["gcn", "recgcn"])
def test_scores_are_those_of_the_whole_graph_and_a_run_is_resumed(kind: str, tmp_path: Path) -> None:
    g = dataclasses.replace(random_graph(), inductive=True)
    method = LMC4Conv(4, 2) if kind == "gcn" else LMC4Rec(4, 2)

    def fit(folder: Path, epochs: int, graph: Graph = g, **options: object) -> tuple[Model, lmc.RunRecord]:
        model = MODELS[kind](graph).double()
        return model, lmc.fit(graph, model, method, epochs, run_dir=folder, device="cpu", **options)

    model, record = fit(tmp_path / "a", 3)
    assert record.config["inductive"]
    assert lmc.evaluate(model, g)["test"] == pytest.approx(record.test)
    fit(tmp_path / "b", 1)
    other, resumed = fit(tmp_path / "b", 3, resume=True)
    assert [e.loss for e in resumed.epochs] == [e.loss for e in record.epochs]
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))
    for graph, options in ((disturbed(g), {}), (g, {"inductive": False})):
        with pytest.raises(lmc.errors.CheckpointError, match=r"data|nodes"):
            fit(tmp_path / "b", 3, graph, resume=True, **options)


def test_the_error_of_a_gradient_is_measured_on_the_training_graph() -> None:
    g = random_graph()
    model = GCN(g.num_features, 5, g.num_classes, num_layers=3).double()
    run = FullBatch().bind(g, model, inductive=True)
    assert lmc.diagnostics.gradient_error(run, next(run.batches())).full_batch["layers.0.lin.weight"] < 1e-12


def test_sets_of_many_graphs_are_inductive_by_themselves(tmp_path: Path) -> None:
    g = lmc.load("ppi-like@0.05")
    assert g.inductive
    assert lmc.data.catalog.REAL["ppi"].inductive
    assert not lmc.load("tiny-like").inductive
    again = lmc.load(lmc.save(g, tmp_path / "ppi.npz"))
    assert again.inductive
    run = FullBatch().bind(again, GCN(g.num_features, 4, g.num_classes))
    assert run.graph.num_nodes == g.num_labelled
    assert FullBatch().bind(g, run.problem.model, inductive=False).graph.num_nodes == g.num_nodes


def test_the_command_line_trains_inductively(tmp_path: Path) -> None:
    words = ["--model", "gcn:hidden=8", "--epochs", "1", "--parts", "4", "--clusters", "2", "--device", "cpu"]
    folder = tmp_path / "run"
    result = CliRunner().invoke(app, ["train", "tiny-like", *words, "--inductive", "--run-dir", str(folder)])
    assert result.exit_code == 0, result.output
    assert "training sees" in result.output
    assert lmc.load_run(folder)[1]["inductive"]
    words = [*words, "--run-dir", str(tmp_path / "compare"), "--methods", "full,lmc", "--error-every", "0"]
    result = CliRunner().invoke(app, ["compare", "ppi-like@0.05", *words])
    assert result.exit_code == 0, result.output
    for name in ("full", "lmc"):
        assert lmc.load_run(tmp_path / "compare" / name)[1]["inductive"]


def test_a_graph_whose_training_nodes_are_none_has_an_empty_training_graph() -> None:
    g = random_graph()
    seen = dataclasses.replace(g, inductive=True, train=torch.zeros_like(g.train)).training_graph
    assert (seen.num_nodes, seen.adj.shape, seen.adj.symmetric) == (0, (0, 0), True)
