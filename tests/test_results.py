"""The score that compared runs are asked to reach, and when they reach it."""

from __future__ import annotations

from typing import Any

import pytest

from lmc.results import EpochRecord, RunRecord, seconds_to, target_score

R2 = {"metrics": ["r2"], "direction": "max"}
RMSE = {"metrics": ["rmse"], "direction": "min"}


def run(scores: list[float], config: dict[str, Any] | None = None) -> RunRecord:
    """A run with these test scores, the best validation score in the last epoch, and an epoch without scores."""
    sign = -1 if config is RMSE else 1
    epochs = (EpochRecord(k, 1.0, 2.0 * k, {"val": sign * k, "test": s}) for k, s in enumerate(scores, 1))
    return RunRecord(config or {}, (EpochRecord(0, 1.0, 0.0), *epochs))


@pytest.mark.parametrize(
    ("runs", "target"),
    [
        ([run([0.9, 0.8]), run([0.7])], 0.795),  # the score of the best epoch counts, not the best score
        ([run([0.5], R2), run([0.8], R2)], 0.792),
        ([run([-2.0], R2)], -2.02),
        ([run([2.0], RMSE), run([3.0], RMSE)], 2.02),
        ([run([]), RunRecord({}, ())], None),
    ],
)
def test_the_target_is_a_little_worse_than_the_best_test_score(runs: list[RunRecord], target: float | None) -> None:
    assert target_score(runs) == (target and pytest.approx(target))


def test_a_run_reaches_a_score_in_the_first_epoch_that_is_as_good() -> None:
    found = [run([0.5, 0.7, 0.6]).reached(target) for target in (0.5, 0.6, 0.7, 0.8)]
    assert [epoch and epoch.epoch for epoch in found] == [1, 2, 2, None]
    found = [run([3.0, 2.0], RMSE).reached(target) for target in (3.0, 2.5, 1.0)]
    assert [epoch and epoch.epoch for epoch in found] == [1, 2, None]


def test_the_seconds_to_a_score_are_listed_from_the_fastest_run_to_those_that_miss_it() -> None:
    runs = {"never": run([0.1]), "slow": run([0.5, 0.7]), "fast": run([0.8])}
    assert list(seconds_to(0.7, runs).items()) == [("fast", 2.0), ("slow", 4.0), ("never", None)]
    assert seconds_to(None, runs) == dict.fromkeys(runs)
