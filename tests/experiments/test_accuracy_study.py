"""What a training to an accuracy records, and when a method has reached its target."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.accuracy import Accuracy, AccuracyRecord, Rate, best_rate, rates_of, targets_of
from lmc.methods import GAS
from lmc.train import evaluate

LINE = AccuracyRecord(
    "4/2", "none", 0.0, 0.1, 4, 1, 0, "gas", [1, 2, 3], [0.5, 1.0, 1.5], [0.2, 0.6, 0.5], [0.3, 0.5, 0.7]
)


def test_the_chosen_accuracy_is_where_validation_is_best() -> None:
    assert LINE.chosen == 0.5


@pytest.mark.parametrize(("target", "reached"), [(0.3, (1, 0.5)), (0.4, (2, 1.0)), (0.7, (3, 1.5)), (0.8, None)])
def test_a_target_is_reached_once(target: float, reached: tuple[int, float] | None) -> None:
    assert LINE.reaches(target) == reached


def test_means_are_over_seeds_and_one_that_misses_is_a_miss() -> None:
    slow = replace(LINE, seed=1, test=[0.1, 0.1, 0.6], seconds=[1.0, 2.0, 3.0])
    rate = Rate("gas", 0.1, [LINE, slow])
    assert rate.reaches({0: 0.5, 1: 0.5}) == (2.5, 2.0)
    assert rate.reaches({0: 0.5, 1: 0.65}) is None
    assert rate.reaches({0: 0.5}) == (2, 1.0)  # the other seed has no target yet


def test_the_best_rate_is_the_fastest_that_arrives() -> None:
    late = Rate("gas", 0.2, [replace(LINE, lr=0.2, seconds=[1.0, 2.0, 3.0])])
    never = Rate("gas", 0.3, [replace(LINE, lr=0.3, test=[0.6, 0.6, 0.6])])
    soon = Rate("gas", 0.1, [LINE])
    assert best_rate([late, never, soon], {0: 0.65}) is soon
    assert best_rate([late, never], {0: 0.65}) is late
    assert best_rate([late, never], {0: 0.9}) is never  # whose accuracy is best


def test_the_target_is_the_full_batchs_at_its_best_rate() -> None:
    lines = [replace(LINE, method="full", lr=lr, seed=seed, val=[0, 0, 1], test=[0, 0, lr + seed / 100])
             for lr in (0.1, 0.2) for seed in (0, 1)]  # fmt: skip
    assert targets_of(rates_of(lines)["full"]) == {0: 0.2, 1: pytest.approx(0.21)}
    assert targets_of(rates_of(lines)["full"], 0.01) == {0: pytest.approx(0.19), 1: pytest.approx(0.2)}


def test_a_cell_is_evaluated_on_the_way() -> None:
    study = Accuracy(
        dataset="tiny-like", scale=0.2, device="cpu", hidden=8, layers=2, config="4/2", norm="layer:0.1", lrs="0.05",
        methods="full,gas", seeds=1, epochs=3, full_epochs=9,
    )  # fmt: skip
    cells = study.cells()
    (full,), (gas,) = (study.measure(cell) for cell in cells)
    assert (full.at, gas.at) == ([3, 6, 9], [1, 2, 3])
    assert full.seconds == sorted(full.seconds)
    assert study.measure(cells[1])[0].test == gas.test
    run = study.testbed.bind(GAS(4, 2), 0, "layer", 0.1)
    assert evaluate(run.problem.model, study.graph)["test"] < gas.test[-1]
