"""States that have grown old: what the optimiser did to their columns is undone, and nothing where it did nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import chance, parts_of, random_graph, sweep
from lmc.diagnostics import estimated_errors
from lmc.engine import Run
from lmc.methods import LMC4Rec, weight_drift
from lmc.models import RecGCN


def bound(**settings: object) -> Run:
    g = random_graph(n=120)
    model = RecGCN(g.num_features, 7, g.num_classes, kappa=0.8, tol=1e-13).double()
    run = LMC4Rec(clusters_per_batch=1, **settings).bind(g, model, parts_of(g), seed=5)  # type: ignore[arg-type]
    run.refresh()
    return run


def moved(run: Run, share: float) -> None:
    with torch.no_grad():
        run.problem.model.W.mul_(1 - share)  # type: ignore[operator]


def test_rows_age_by_the_way_of_the_weights() -> None:
    run = bound()
    first, second = list(run.batches())[:2]
    run.accumulate(first)
    moved(run, 0.1)
    run.accumulate(second)
    moved(run, 0.2)
    age, shares = weight_drift.ages(run.method_step(first, True, True), first.rows, second.core)
    assert float(age) == pytest.approx(0.1 / 0.9 + 0.2 / 0.8)
    torch.testing.assert_close(shares, torch.full_like(shares, 0.25 / (0.1 / 0.9 + 0.25)))
    age, shares = weight_drift.ages(run.method_step(second, True, True), second.rows, first.core)
    assert float(age) == pytest.approx(0.25)
    assert float(shares.max()) == pytest.approx((0.1 / 0.9 + 0.25) / 0.25)
    run.refresh()
    assert [float(t.max()) for t in weight_drift.ages(run.method_step(first, True, True), first.rows, second.core)] == [
        0,
        0,
    ]


def test_columns_that_grew_alike_in_all_rows_are_found() -> None:
    run, plain = bound(), bound(undo_drift=False)
    factors = 0.7 + 0.6 * torch.rand(7, generator=chance(1), dtype=torch.float64)
    run.H[1].data().mul_(factors)
    run.numbers[weight_drift.PATH].add_(1.0)  # all rows were stored long ago
    plain.load_state_dict(run.state_dict())
    for batch in run.batches():
        assert estimated_errors(run, batch).H < 0.05 * estimated_errors(plain, batch).H


def test_nothing_is_undone_where_no_parameter_has_moved() -> None:
    run, plain = bound(), bound(undo_drift=False)
    noise = chance(3)
    for table in (run.H[1], plain.H[1]):
        noise.manual_seed(3)
        table.data().add_(torch.randn(table.data().shape, generator=noise, dtype=torch.float64))
    batch = next(iter(run.batches()))
    found: list[Tensor] = [
        each.method.solve(each.method_step(batch, keep=False, dropout=False)).z for each in (run, plain)
    ]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


def test_empty_histories_are_taken_as_they_are() -> None:
    run = bound()
    for table in run.named_tables().values():
        table.data().zero_()
    run.numbers[weight_drift.PATH].add_(1.0)
    assert all(bool(v.isfinite().all()) for v in sweep(run).values())


def test_a_model_that_begins_without_recurrence_is_trained() -> None:
    run = bound()
    with torch.no_grad():
        run.problem.model.W.zero_()  # type: ignore[operator]
    run.refresh()
    for batch in run.batches():
        assert torch.isfinite(run.accumulate(batch).loss)
    assert torch.isfinite(run.numbers[weight_drift.PATH])


def test_ages_are_not_kept_where_drift_is_not_undone() -> None:
    assert weight_drift.STORED in bound().numbers
    assert weight_drift.STORED not in bound(undo_drift=False).numbers
