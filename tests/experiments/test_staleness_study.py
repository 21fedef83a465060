"""Old histories and what they change, on a small graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.staleness import StalenessCell, StalenessRecord, StalenessStudy

Invoke = Callable[..., tuple[int, str]]

EXACT, OLD, GAS = "backward-sgd", "lmc:alpha=0", "gas"


@pytest.fixture(scope="module")
def study() -> StalenessStudy:
    return StalenessStudy(
        dataset="tiny-like", scale=0.1, config="6/1", hidden=4, epochs=3, methods=f"{EXACT},{OLD},{GAS}", device="cpu"
    )


def measured(study: StalenessStudy, method: str, refresh: int) -> StalenessRecord:
    (record,) = study.measure(StalenessCell(method, "layer", 0.0, 1e-2, refresh, 0))
    return record


def test_histories_that_are_refreshed_before_every_step_train_as_the_exact_method(study: StalenessStudy) -> None:
    """Without the age of histories LMC4Conv with beta = 0 is backward SGD; GAS, which drops adjoints, is not."""
    exact, fresh, old = measured(study, EXACT, 0), measured(study, OLD, 1), measured(study, OLD, 0)
    assert fresh.loss == pytest.approx(exact.loss, rel=1e-4)
    assert abs(old.loss - exact.loss) > 100 * abs(fresh.loss - exact.loss)
    assert exact.bias < 1e-5
    assert (exact.H, exact.V) == (None, None)
    assert old.H is not None
    assert fresh.H is not None
    assert old.V is not None
    assert fresh.V is not None
    assert old.H > 2 * fresh.H > 0
    assert old.V > 1.5 * fresh.V > 0
    gas = measured(study, GAS, 1)
    assert abs(gas.loss - exact.loss) > 100 * abs(fresh.loss - exact.loss)
    assert gas.V is None


def test_the_command_shows_the_errors_beside_the_loss(invoke: Invoke, tmp_path: Path) -> None:
    options = ["tiny-like", "--scale", "0.1", "--hidden", "4", "--epochs", "3", "--seeds", "1", "--lrs", "1e-2"]
    options += ["--config", "4/1", "--methods", "gas,lmc", "--refresh", "0,2", "--device", "cpu", "--run-dir", "out"]
    code, said = invoke("staleness", *options)
    assert code == 0, said
    text = (tmp_path / "out" / "staleness.md").read_text()
    assert [line.split(" | ")[2:4] for line in text.splitlines() if line.startswith("| layer")] == [
        ["0", "gas"], ["0", "lmc"], ["2", "gas"], ["2", "lmc"],
    ]  # fmt: skip
