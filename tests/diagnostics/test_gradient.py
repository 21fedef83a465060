"""Gradient errors: zero where a method is exact, ordered where it is not; measuring changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lmc
from lmc.diagnostics import GradientProbe, gradient_error
from lmc.methods import GAS, BackwardSGD, ClusterGCN, FullBatch, LMC4Conv, Method
from lmc.train import train_step


@pytest.fixture(scope="module")
def graph() -> lmc.Graph:
    return lmc.load("tiny-like", scale=0.5)


def test_backward_sgd_and_full_batch_have_no_error(graph: lmc.Graph) -> None:
    model = lmc.models.GCN(graph.num_features, 8, graph.num_classes, num_layers=3).double()
    run = BackwardSGD(5, 2).bind(graph, model)
    assert max(gradient_error(run, next(run.batches())).backward_sgd.values()) < 1e-12
    full = FullBatch().bind(graph, model)
    assert max(gradient_error(full, next(full.batches())).full_batch.values()) < 1e-12


def test_exact_histories_leave_only_the_sampling_error(graph: lmc.Graph) -> None:
    model = lmc.models.GCN(graph.num_features, 8, graph.num_classes, num_layers=3, dropout=0.5).double()
    run = LMC4Conv(5, 2, alpha=0.0).bind(graph, model)
    run.refresh()
    error = gradient_error(run, next(run.batches()))
    assert max(error.backward_sgd.values()) < 1e-12
    assert min(error.full_batch.values()) > 1e-3
    assert error.backward_sgd.keys() == dict(model.named_parameters()).keys()
    assert error.mean == sum(error.backward_sgd.values()) / len(error.backward_sgd)


def test_measuring_changes_nothing(graph: lmc.Graph) -> None:
    model = lmc.models.GCN(graph.num_features, 8, graph.num_classes, num_layers=3, dropout=0.5, norm="batch")
    run = LMC4Conv(5, 2).bind(graph, model)
    run.refresh()
    batch = next(run.batches())
    run.accumulate(batch)
    grads = {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}
    before = {k: v.clone() for k, v in run.state_dict().items()}
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    model.eval()
    gradient_error(run, batch)
    assert not model.training
    assert all(torch.equal(v, before[k]) for k, v in run.state_dict().items())
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    assert all(torch.equal(p.grad, grads[k]) for k, p in model.named_parameters() if p.grad is not None)


def mean_error(graph: lmc.Graph, method: Method, epochs: int) -> float:
    """The mean over training of the error against backward SGD, every fifth batch after the first epoch."""
    model = lmc.models.GCN(graph.num_features, 64, graph.num_classes, num_layers=3)
    run = method.bind(graph, model)
    run.refresh()
    probe = GradientProbe(run)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    errors = []
    for epoch in range(epochs):
        for step, batch in enumerate(run.batches()):
            if epoch > 0 and step % 5 == 0:
                errors.append(probe(batch).mean)
            train_step(run, optimizer, batch)
    return sum(errors) / len(errors)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "b", "ours"),
    [
        ("cora", 10, LMC4Conv(10, 2, alpha=0.4)),
        pytest.param("amazon_photo", 20, LMC4Conv(20, 2, alpha=1.0, score="2x-x^2"), marks=pytest.mark.slow),
    ],
)
def test_errors_during_training_are_ordered(data_dir: Path, name: str, b: int, ours: LMC4Conv) -> None:
    g = lmc.load(data_dir / f"{name}.npz")
    errors = [mean_error(g, method, epochs=16) for method in (ours, GAS(b, 2), ClusterGCN(b, 2))]
    assert errors[0] < 0.8 * errors[1]
    assert errors[1] < errors[2]
