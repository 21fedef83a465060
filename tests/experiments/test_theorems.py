"""The theorems as numbers, in a version that takes seconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.theorems import TheoremRecord, Theorems, slope
from lmc.errors import ConfigError

Invoke = Callable[..., tuple[int, str]]


def test_slopes_are_those_of_powers() -> None:
    assert slope([(x, 3 * x**1.5) for x in (0.1, 0.02, 0.7)]) == pytest.approx(1.5)
    assert slope([(0.1, 0.2), (0.01, 0.2)]) == pytest.approx(0.0)


def test_bias_falls_with_the_rate_and_with_beta_for_lmc_alone(invoke: Invoke, tmp_path: Path) -> None:
    """Theorem 2 in two rates and two values of beta; the same command measures nothing twice."""
    options = ["theorems", "--scale", "0.07", "--hidden", "4", "--models", "gcn", "--lrs", "0.01,0.0001", "--alphas"]
    options += ["0.1,0.01", "--warmup", "5", "--sweeps", "6", "--epochs", "4", "--seeds", "1", "--device", "cpu"]
    code, said = invoke(*options, "--run-dir", "out")
    assert code == 0, said
    lines = (tmp_path / "out" / "theorems.jsonl").read_text().splitlines()
    records = [TheoremRecord(**json.loads(line)) for line in lines]
    bias = {(r.question, r.method, r.lr): r.bias for r in records}
    lmc, rates = "lmc:alpha=0", (0.01, 0.0001)
    assert bias["rate", lmc, 0.0001] < 0.03 * bias["rate", lmc, 0.01]
    for method in ("gas", "cluster", "lmc:alpha=0:cut=after:first_layer=pruned"):
        assert bias["rate", method, 0.0001] > 0.3 * bias["rate", method, 0.01]
    assert all(bias["rate", "backward-sgd", lr] < 1e-12 for lr in rates)
    ratio = bias["beta", "lmc:alpha=0.1:score=1", 0.0001] / bias["beta", "lmc:alpha=0.01:score=1", 0.0001]
    assert 8 < ratio < 12
    assert (tmp_path / "out" / "theorems.png").is_file()
    assert "slope" in (tmp_path / "out" / "theorems.md").read_text()
    code, said = invoke(*options, "--run-dir", "out")
    assert code == 0
    assert (tmp_path / "out" / "theorems.jsonl").read_text().splitlines() == lines


def test_gradient_norms_have_a_floor_without_compensation() -> None:
    study = Theorems(scale=0.07, hidden=4, epochs=80, models="appnp", seeds=1, device="cpu")
    cells = {cell.method: cell for cell in study.cells()}
    last = {}
    for method in ("lmc:alpha=0", "cluster"):
        (record,) = study.measure(cells[method])
        assert list(record.norms)[-1] == "80"
        last[method] = record.norms["80"]
    assert last["lmc:alpha=0"] < 0.5 * last["cluster"]


def test_gradient_norms_are_measured_for_the_models_of_theorems_3_and_5_alone() -> None:
    cells = Theorems(device="cpu").cells()
    assert {cell.model for cell in cells if cell.question == "norm"} == {"appnp", "recgcn"}
    with pytest.raises(ConfigError, match="expected --models among appnp, gcn, recgcn"):
        Theorems(models="gcn,gat", device="cpu").cells()


def test_at_a_stationary_point_lmc4rec_has_no_bias_and_gas_has_one() -> None:
    """Exact histories: LMC4Rec has the exact gradient, so it can stay there; GAS and Cluster-GCN cannot."""
    study = Theorems(
        scale=0.07, hidden=3, steps=40, models="recgcn", questions="stationary", seeds=1, device="cpu"
    )  # fmt: skip
    found = {cell.method: study.measure(cell)[0] for cell in study.cells()}
    assert found["lmc4rec:undo_drift=no"].bias < 1e-9
    assert 1e-4 < found["gas"].bias < found["cluster"].bias
    assert 0 < found["gas"].norms["loss"] < 1
    assert 0 < found["gas"].norms["movement"] < 1
    assert study.figure(list(found.values())) is None
    (table,) = study.tables(list(found.values()))
    assert table.rows[-1][0] == "cluster"
    with pytest.raises(ConfigError, match="expected --questions among rate, beta, norm, stationary"):
        Theorems(questions="limit", device="cpu").cells()


def test_tables_of_one_model_keep_bias_and_norm_apart() -> None:
    given: dict[str, Any] = {"model": "recgcn", "method": "gas", "lr": 0.1, "seed": 0, "variance": 2.0}
    norms = {"2": 0.5, "4": 0.25}
    records = [TheoremRecord(question="rate", bias=0.3, norms={}, **given)]
    records += [TheoremRecord(question="rate", bias=0.2, norms={}, **given | {"lr": 0.01})]
    records += [TheoremRecord(question="norm", bias=0.0, norms=norms, **given | {"lr": 1.0})]
    study = Theorems(epochs=4, device="cpu")
    rates, quarters = study.tables(records)
    assert rates.rows[0][:3] == ["gas", "3.0e-01", "2.0e-01"]
    assert quarters.rows == [["gas", "5.0e-01", "2.5e-01"]]
    figure = study.figure(records)
    assert figure is not None
    assert len(figure.axes) == 2
