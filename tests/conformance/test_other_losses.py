"""The facts that methods declare hold for weighted losses and for regression too, in float64.

Unlabelled rows have no target at all (-1 or NaN): a loss that leaked from them would show.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch_geometric.nn
from test_conformance import CHECKS, CLAIMS, settings
from torch import Tensor

import lmc
from helpers import (
    chance,
    full_gradient,
    full_loss,
    make,
    model_for,
    parts_of,
    random_graph,
    scrambled,
    sweep,
    through_operators,
    worst_error,
)
from lmc.diagnostics import gradient_error
from lmc.graph import Graph, normalise
from lmc.losses import Loss
from lmc.methods import BackwardSGD, LMC4Rec
from lmc.models import Pass, RecGCN

FACTORS = torch.tensor([1.0, 7.0, 0.5, 2.0], dtype=torch.float64)


def weighted() -> tuple[Graph, Loss]:
    """Classes, node weights with zeros among them, and a loss of one's own with class weights."""
    g = random_graph()
    weight = torch.rand(g.num_nodes, generator=chance(7)) * (torch.arange(g.num_nodes) % 5 > 0)
    g = dataclasses.replace(g, y=g.y.where(g.train, -1), weight=weight)
    return g, lambda out, y: FACTORS[y] * (out.logsumexp(1) - out.gather(1, y[:, None]).squeeze(1)) ** 2


def regression() -> tuple[Graph, Loss]:
    """Four target columns, and the Huber loss; there are no validation and test nodes."""
    base = random_graph()
    y = torch.randn(base.num_nodes, 4, generator=chance(8), dtype=torch.float64)
    nobody = torch.zeros_like(base.val)
    y = y.where(base.train[:, None], float("nan"))
    g = dataclasses.replace(base, y=y, task="regression", val=nobody, test=nobody)
    return g, lmc.losses.huber(delta=0.7)


TASKS = {"weighted": weighted, "regression": regression}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("name", "fact"), CLAIMS)
def test_declared_fact_holds_for_another_loss(name: str, fact: str, task: str) -> None:
    g, loss = TASKS[task]()
    CHECKS[fact](name, g, make(model_for(name), g), loss)


@pytest.mark.parametrize("task", TASKS)
def test_exact_histories_of_a_recurrent_model_are_exact_for_another_loss(task: str) -> None:
    g, loss = TASKS[task]()
    model = scrambled(RecGCN(6, 7, 4, kappa=0.7, tol=1e-13))
    model.project()
    P = normalise(g.adj, "gcn", torch.float64).to_dense()
    b, z = model.encode(g.x, Pass(dropout=False)), torch.zeros(g.num_nodes, 7, dtype=torch.float64)
    for _ in range(150):  # the fixed point, unrolled
        z = P @ z.relu() @ model.W.t() + b
    value = full_loss(g, model, model.decode(z.relu(), Pass()), loss)
    want = dict(zip(dict(model.named_parameters()), torch.autograd.grad(value, list(model.parameters())), strict=True))
    for update in ("solution", "step"):
        run = LMC4Rec(clusters_per_batch=1, update=update).bind(g, model, parts_of(g), loss=loss)
        run.refresh()
        assert worst_error(sweep(run), want) < 1e-8


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", ["lmc", "backward-sgd"])
def test_a_wrapped_network_is_exact_for_another_loss(name: str, task: str) -> None:
    g, loss = TASKS[task]()
    network = scrambled(torch_geometric.nn.GCN(6, 7, 2, 4))
    edges = torch.stack([g.adj.row_index(), g.adj.indices.long()])
    value = full_loss(g, network, network(g.x, edges), loss)  # type: ignore[arg-type]
    want = dict(
        zip(dict(network.named_parameters()), torch.autograd.grad(value, list(network.parameters())), strict=True)
    )
    model = lmc.wrap(network)
    run = settings(name).bind(g, model, parts_of(g), loss=loss)
    run.refresh()
    got = sweep(run)
    assert worst_error(dict(zip(want, got.values(), strict=True)), want) < 1e-10


@pytest.mark.parametrize("task", TASKS)
def test_diagnostics_measure_with_the_loss_of_the_run(task: str) -> None:
    g, loss = TASKS[task]()
    run = BackwardSGD(clusters_per_batch=1).bind(g, make("gcn", g), parts_of(g), loss=loss)
    error = gradient_error(run, next(iter(run.batches())))
    assert max(error.backward_sgd.values()) < 1e-12
    assert min(error.full_batch.values()) > 1e-3


def test_the_loss_of_a_step_is_the_weighted_mean() -> None:
    g, loss = weighted()
    model = make("gcn", g)
    run = lmc.methods.FullBatch().bind(g, model, loss=loss)
    (batch,) = run.batches()
    with torch.no_grad():
        P = lmc.graph.Aggregation.exact(normalise(g.adj, "gcn", torch.float64))
        out: Tensor = model(g.x, P, Pass(dropout=False))
    assert float(run.accumulate(batch).loss) == pytest.approx(float(full_loss(g, model, out, loss)), rel=1e-12)
    assert worst_error(run.gradient(batch), full_gradient(g, model)) > 1e-2  # the loss is not the default one


def test_importance_multiplies_the_weighted_loss() -> None:
    g, loss = weighted()
    model = make("gcn", g)
    run = lmc.methods.GraphSAINT("node", size=15, coverage=5).bind(g, model, loss=loss)
    batch = next(iter(run.batches()))
    assert batch.importance is not None
    assert worst_error(run.gradient(batch), through_operators(g, model, batch, loss)) < 1e-10


def test_dropped_edges_keep_the_loss() -> None:
    g, loss = weighted()
    model = make("gcn", g)
    run = lmc.methods.DropEdge(BackwardSGD(clusters_per_batch=1), 0.0).bind(g, model, parts_of(g), loss=loss)
    assert worst_error(sweep(run), full_gradient(g, model, loss)) < 1e-10
