"""LMC4Rec, SSE and CMC4Rec against their equations, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from dense import Array, Data, random_data
from dense_algorithm2 import Algorithm2
from dense_cmc4rec import DenseCMC4Rec
from dense_lmc4rec import DenseLMC4Rec, Seen
from dense_sse import DenseSSE
from follow import Noise, Reference, follow, graph_of, loss_of, parameters_of

import lmc
from helpers import scrambled
from lmc.cli.spec import parse_method

WIDTH = 5
W = "layers.0.lin.weight"


def bound(method: Any, data: Data, width: int = WIDTH) -> tuple[Any, lmc.models.RecGCN]:
    """A run of the method and its model, whose fixed points are solved to rounding error."""
    model = scrambled(lmc.models.RecGCN(6, width, 4, kappa=0.8, tol=1e-14))
    return method.bind(
        graph_of(data), model, torch.as_tensor(data.parts), device="cpu", seed=1, loss=loss_of(data)
    ), model


def compare(run: Any, model: lmc.models.RecGCN, reference: Reference, data: Data, noisy: bool) -> None:
    mover = Noise(model, 0.1) if noisy else torch.optim.SGD(model.parameters(), lr=0.2)
    follow(run, model, reference, data, mover, epochs=4)


def all_of(found: list[Array]) -> Array:
    return np.concatenate([np.ravel(values) for values in found])


def compare_lmc4rec(
    update: str,
    undo_drift: bool,
    mover: Callable[[Any], Any],
    width: int = WIDTH,
    num_parts: int = 4,
    redraw: bool = False,
) -> Seen:
    """Train with both; gives the values that the rules took. Redrawn batches are of two parts."""
    data = random_data(num_parts=num_parts)
    method = lmc.methods.LMC4Rec(
        clusters_per_batch=2 if redraw else 1, redraw=redraw, update=update, undo_drift=undo_drift
    )
    run, model = bound(method, data, width)
    reference = DenseLMC4Rec(data, width, parameters_of(model), update, undo_drift)
    follow(run, model, reference, data, mover(model), epochs=4)
    return reference.seen


@pytest.mark.parametrize("undo_drift", [False, True])
@pytest.mark.parametrize("update", ["solution", "step"])
def test_lmc4rec_follows_its_equations_in_training(update: str, undo_drift: bool) -> None:
    compare_lmc4rec(update, undo_drift, lambda model: torch.optim.SGD(model.parameters(), lr=0.2))


@pytest.mark.parametrize("update", ["solution", "step"])
def test_lmc4rec_with_very_stale_histories(update: str) -> None:
    """Rows are of different ages, and both factors reach their limits."""
    seen = compare_lmc4rec(update, True, lambda model: Noise(model, 0.2))
    shares, factors = all_of(seen.shares), all_of(seen.factors)
    assert shares.max() == 1.5
    assert ((shares > 0.1) & (shares < 0.9)).mean() > 0.2
    assert factors.min() < 0
    assert factors.max() > 1
    assert ((factors > 0) & (factors < 1)).any()
    assert all_of(seen.growths).min() < -0.5


@pytest.mark.parametrize("share", [0.0, 0.01])
def test_lmc4rec_where_the_states_move_and_the_weights_hardly_do(share: float) -> None:
    """The growth of a column is limited by the way that W has gone."""
    seen = compare_lmc4rec("solution", True, lambda model: Noise(model, 0.2, {W: share}))
    beyond = [np.abs(e).max() > limit for e, limit in zip(seen.growths, seen.limits, strict=True)]
    assert any(beyond)
    assert (max(seen.limits) > 1e-3) == (share > 0)


def test_lmc4rec_with_core_rows_of_different_ages() -> None:
    compare_lmc4rec("solution", True, lambda model: Noise(model, 0.2), num_parts=8, redraw=True)


def test_lmc4rec_asks_as_many_rows_as_its_columns_need() -> None:
    """One column asks sixteen rows, of more that are in a core."""
    compare_lmc4rec("solution", True, lambda model: Noise(model, 0.2), width=1, num_parts=2)


def compare_algorithm_2(lr: float) -> tuple[int, float]:
    """Train by the algorithm of the paper, node by node; (units whose sign changed, largest error of a gradient)."""
    data = random_data()
    run, model = bound(parse_method("lmc4rec:update=step:undo_drift=no", clusters_per_batch=1), data)
    reference, mover = Algorithm2(data, WIDTH), torch.optim.SGD(model.parameters(), lr=lr)
    run.refresh()
    reference.refresh(parameters_of(model))
    worst = 0.0
    for batch in (batch for epoch in range(4) for batch in run.batches(epoch)):
        model.zero_grad()
        core = batch.n_id[: batch.num_core].numpy()
        _, grads = reference.step(parameters_of(model), core, batch.slot, batch.weight)
        run.accumulate(batch)
        errors = [np.abs(p.grad.numpy() - grads[name]).max() for name, p in model.named_parameters()]
        worst = max(worst, *errors, 0.0)
        mover.step()
        model.project()
    return reference.flipped, worst / max(np.abs(g).max() for g in grads.values())


def test_the_command_of_algorithm_2_is_the_algorithm_of_the_paper() -> None:
    """Until a unit changes its sign, the gradients are those of the paper's own histories; see ``Algorithm2``."""
    flipped, error = compare_algorithm_2(lr=1e-4)
    assert flipped == 0
    assert error < 1e-10
    flipped, error = compare_algorithm_2(lr=0.2)
    assert flipped > 10
    assert 1e-10 < error < 0.1


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("momentum", [0.3, 0.9, 1.0])
def test_sse_follows_its_equations(momentum: float, noisy: bool) -> None:
    data = random_data()
    run, model = bound(lmc.methods.SSE(clusters_per_batch=1, momentum=momentum), data)
    compare(run, model, DenseSSE(data, WIDTH, momentum), data, noisy)


@pytest.mark.parametrize("noisy", [False, True])
def test_cmc4rec_follows_its_equations(noisy: bool) -> None:
    data = random_data()
    run, model = bound(lmc.methods.CMC4Rec(clusters_per_batch=1), data)
    compare(run, model, DenseCMC4Rec(data, WIDTH), data, noisy)


def test_weights_of_nodes_and_classes() -> None:
    data = random_data(weighted_loss=True)
    run, model = bound(lmc.methods.SSE(clusters_per_batch=1), data)
    compare(run, model, DenseSSE(data, WIDTH, 0.9), data, noisy=False)
    run, model = bound(lmc.methods.CMC4Rec(clusters_per_batch=1), data)
    compare(run, model, DenseCMC4Rec(data, WIDTH), data, noisy=False)
