"""Bias and variance of a method's gradient, by enumerating its batches."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

import lmc
from helpers import full_gradient, make, parts_of, random_graph, scrambled
from lmc.diagnostics import bias, bias_variance
from lmc.errors import ConfigError
from lmc.methods import (
    CMC,
    GAS,
    IMC,
    BackwardSGD,
    ClusterGCN,
    DropEdge,
    FullBatch,
    GraphSAGE,
    LMC4Conv,
    LMC4Rec,
    Method,
)
from lmc.models import GCN, RecGCN

METHODS: list[Method] = [
    LMC4Conv(clusters_per_batch=2), LMC4Conv(clusters_per_batch=2, redraw=True), GAS(clusters_per_batch=1),
    ClusterGCN(clusters_per_batch=2, redraw=True), CMC(clusters_per_batch=2), BackwardSGD(clusters_per_batch=2),
]  # fmt: skip


def trained(method: Method, num_parts: int = 5) -> lmc.engine.Run:
    """A run with stale tables: the parameters moved after every step."""
    g = random_graph()
    model = scrambled(make("gcn", g))
    run = method.bind(g, model, parts_of(g, num_parts), device="cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in run.batches():
        run.step(batch, optimizer)
    return run


@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.traits.name}-redraw={m.redraw}")
def test_bias_and_variance_add_up_to_the_mean_squared_error(method: Method) -> None:
    run = trained(method)
    before = {name: value.clone() for name, value in run.state_dict().items()}
    found = bias_variance(run)
    for name, error in found.squared_error.items():
        assert abs(found.bias[name] ** 2 + found.variance[name] - error) < 1e-12 * error
    assert sum(found.variance.values()) > 0.01 * sum(found.squared_error.values())
    assert all(torch.equal(value, before[name]) for name, value in run.state_dict().items())


def test_all_choices_of_parts_have_the_probability_with_which_they_are_drawn() -> None:
    """The mean over every permutation of the parts, cut into batches as an epoch cuts it, written out."""
    run = trained(LMC4Conv(clusters_per_batch=3, redraw=True), num_parts=4)  # batches of 3 parts and of 1
    drawn = [p[i:j] for p in itertools.permutations(range(4)) for i, j in ((0, 3), (3, 4))]
    cores = [run.clusters.core(tuple(sorted(parts))) for parts in drawn]
    gradients = [run.gradient(run.source.make(core, 2.0)) for core in cores]
    full = full_gradient(run.graph, run.problem.model)
    found = bias_variance(run)
    for name, exact in full.items():
        each = torch.stack([g[name] for g in gradients])
        mean = each.mean(0)
        assert found.bias[name] == pytest.approx(float((mean - exact).norm()), rel=1e-9)
        assert found.variance[name] == pytest.approx(float((each - mean).square().sum() / len(each)), rel=1e-9)
        assert found.exact[name] == pytest.approx(float(exact.norm()), rel=1e-12)


def test_fixed_batches_have_the_bias_of_one_epoch() -> None:
    run = trained(GAS(clusters_per_batch=2))
    found, relative = bias_variance(run), bias(run)
    for name, size in found.exact.items():
        assert found.bias[name] / size == pytest.approx(relative[name], rel=1e-12)
    total = sum(b**2 for b in found.bias.values()) / sum(e**2 for e in found.exact.values())
    assert found.relative_bias == pytest.approx(total**0.5, rel=1e-12)


@pytest.mark.parametrize("inner", [FullBatch(), CMC(clusters_per_batch=1), IMC(clusters_per_batch=1)], ids=repr)
def test_the_bias_under_drop_edge_is_that_of_the_graph_of_an_epoch(inner: Method) -> None:
    """On one part these methods are exact on the graph of the epoch; the other epochs have other graphs."""
    g = random_graph()
    model, method = scrambled(make("gcn", g)), DropEdge(inner, p=0.5)
    run = method.bind(g, model, torch.zeros(g.num_nodes, dtype=torch.int64), seed=1)
    batch = next(run.batches())
    run.accumulate(batch)
    before = run.gradient(batch)
    exact, dropped = full_gradient(g, model), replace(run.graph, adj=method.adjacencies(run.graph, 1)(run.epoch))
    of_epoch, found = full_gradient(dropped, model), bias(run)
    for name, truth in exact.items():
        assert found[name] == pytest.approx(float((of_epoch[name] - truth).norm() / truth.norm()), rel=1e-9)
    assert max(found.values()) > 0.01
    for name, estimate in run.gradient(batch).items():
        torch.testing.assert_close(estimate, before[name], rtol=1e-12, atol=1e-14)


def test_parameters_whose_gradient_is_rounding_are_left_out() -> None:
    """A batch norm takes the mean of its columns away, and with it the bias of the linear map before it."""
    g = random_graph()
    model = scrambled(GCN(g.num_features, 5, g.num_classes, num_layers=3, norm="batch"))
    run = GAS(clusters_per_batch=2).bind(g, model, parts_of(g))
    left_out = {name for name, _ in model.named_parameters()} - bias(run).keys()
    assert left_out == {"layers.0.lin.bias", "layers.1.lin.bias"}


def test_a_gradient_of_zero_is_compared() -> None:
    g = random_graph()
    model = scrambled(make("gcn", g))
    run = GAS(clusters_per_batch=2).bind(g, model, parts_of(g), loss=lambda outputs, targets: 0 * outputs.sum(1))
    assert bias(run) == dict.fromkeys(run.parameters, 0.0)


@pytest.mark.parametrize("redraw", [False, True])
def test_exact_methods_have_variance_alone(redraw: bool) -> None:
    found = bias_variance(trained(BackwardSGD(clusters_per_batch=2, redraw=redraw), num_parts=4))
    assert found.relative_bias < 1e-12
    assert found.relative_variance > 0.01


def test_recurrent_models_have_a_bias_too() -> None:
    g = random_graph()
    run = LMC4Rec(clusters_per_batch=1).bind(
        g, RecGCN(g.num_features, 5, g.num_classes, tol=1e-13).double(), parts_of(g)
    )
    assert bias_variance(run).relative_bias > 0.1
    run.refresh()
    assert bias_variance(run).relative_bias < 1e-8


def test_the_loss_of_the_run_counts() -> None:
    """Both functions compare with the gradient of the run's own loss."""
    g = random_graph()
    model = scrambled(make("gcn", g))
    loss = lmc.losses.cross_entropy(weight=torch.arange(1.0, g.num_classes + 1))
    run = BackwardSGD(clusters_per_batch=2).bind(g, model, parts_of(g), loss=loss)
    assert bias_variance(run).relative_bias < 1e-12
    assert max(bias(run).values()) < 1e-12


def test_what_cannot_be_enumerated_is_refused() -> None:
    g = random_graph()
    model = GCN(g.num_features, 4, g.num_classes, num_layers=2)
    for method in (GraphSAGE(), DropEdge(GAS(num_parts=4))):
        with pytest.raises(ConfigError, match=r"batches are parts of the graph \(got .*: use lmc.diagnostics.bias"):
            bias_variance(method.bind(g, model, device="cpu"))
    many = GAS(clusters_per_batch=10, redraw=True).bind(g, model, torch.arange(40) % 20, device="cpu")
    with pytest.raises(ConfigError, match=r"at most 20,000 batches \(got 184,756 choices of parts\)"):
        bias_variance(many)
