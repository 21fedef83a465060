"""``python -m experiments ranks``: loss curves of 1, 2 and 4 ranks with the same global batch fall together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rank_pool import Ranks
from typer.testing import CliRunner

from experiments.__main__ import make_app
from experiments.rank_training import Curve, Job, on_union, train_curve
from experiments.ranks import RankCurve, RankCurves, summaries
from lmc.errors import ConfigError
from lmc.methods import CMC, IMC, BackwardSGD, FullBatch, LMC4Conv, Method

JOB = Job("tiny-like@0.3", FullBatch(), "layer", hidden=8, layers=3, lr=0.05, seed=0, epochs=3)
BY_STEP = {"lmc": LMC4Conv, "cmc": CMC, "imc": IMC}
LINE = RankCurve("lmc", "step", 1, 0, [2.0, 1.0])


@pytest.mark.parametrize("method", [FullBatch(), BackwardSGD(8, 1)], ids=["full", "backward-sgd"])
def test_with_sync_layer_the_curves_are_those_of_one_process_to_rounding(method: Method, ranks: Ranks) -> None:
    job = replace(JOB, method=method)
    seen = ranks(train_curve, job, True)
    assert [curve.losses for curve in seen] == [seen[0].losses] * ranks.ranks
    assert seen[0].losses == pytest.approx(on_union(job, seen).losses, rel=1e-10)
    if isinstance(method, FullBatch):
        assert seen[0].by_epoch == pytest.approx(train_curve(job, False).by_epoch, rel=1e-10)
    else:
        cores = [sorted(node for curve in seen for node in curve.cores[step]) for step in range(seen[0].steps)]
        assert sorted(node for core in cores for node in core) == list(range(450))


def test_with_sync_step_the_curves_lie_within_the_spread_of_seeds(two: Ranks, four: Ranks) -> None:
    for name, method in BY_STEP.items():
        records = []
        for seed in range(2):
            job = replace(JOB, sync="step", seed=seed)
            one = train_curve(replace(job, method=method(8, 4)), False)
            records.append(RankCurve(name, "step", 1, seed, one.by_epoch))
            for ranks in (two, four):
                (curve, *_) = ranks(train_curve, replace(job, method=method(8, 4 // ranks.ranks)), True)
                assert curve.steps == one.steps, "the global batch is the same"
                records.append(RankCurve(name, "step", ranks.ranks, seed, curve.by_epoch))
        alone, *others = summaries(records)
        assert alone.mean[-1] < 0.9 * alone.mean[0]
        assert [s.within for s in others] == [1.0, 1.0], name


def test_a_summary_compares_means_with_the_spread_of_one_process() -> None:
    alone = [LINE, replace(LINE, seed=1, losses=[3.0, 1.5])]
    ranks = [replace(LINE, ranks=2, losses=[2.5, 2.0]), replace(LINE, ranks=2, seed=1, losses=[2.5, 2.5])]
    extra = replace(LINE, seed=2, losses=[9.0, 9.0])  # only one process has this seed
    one, two = summaries([*alone, extra, *ranks])
    assert (one.mean, one.spreads, one.within) == ([2.5, 1.25], [1.0, 0.5], None)
    assert (two.mean, two.differences, two.within) == ([2.5, 2.25], [0.0, 1.0], 0.5)
    assert replace(LINE, union=[2.0, 1.25]).rounding == pytest.approx(0.2)
    assert Curve([1.0, 3.0, 5.0, 7.0], [], 2).by_epoch == [2.0, 6.0]


def test_the_study_trains_draws_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = (
        "ranks", "tiny-like@0.3", "--ranks", "1,2", "--methods", "gas", "--exact", "full", "--parts", "8",
        "--clusters", "8", "--hidden", "8", "--layers", "2", "--epochs", "2", "--seeds", "1", "--run-dir", "r",
    )  # fmt: skip

    def invoke(*more: str) -> Any:
        result = CliRunner().invoke(make_app(), [*options, *more], catch_exceptions=False)
        return result.exit_code, " ".join(result.output.split())

    assert "3 of 3 cells are left" in invoke("--limit", "1e-9")[1]
    code, said = invoke()
    assert code == 0, said
    lines = [json.loads(line) for line in (tmp_path / "r" / "ranks.jsonl").read_text().splitlines()]
    assert [(line["method"], line["ranks"], line["seed"]) for line in lines] == [
        ("full", 2, 0), ("gas", 1, 0), ("gas", 2, 0),
    ]  # fmt: skip
    assert lines[0]["losses"] == pytest.approx(lines[0]["union"], rel=1e-10)
    table = (tmp_path / "r" / "ranks.md").read_text()
    assert "| full | layer | 2 | 1 |" in table
    assert "| gas | step | 2 | 1 |" in table
    assert (tmp_path / "r" / "ranks.png").read_bytes()[:4] == b"\x89PNG"
    assert "3, of which 3 are done" in invoke()[1]


def test_ranks_that_do_not_divide_a_batch_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"1 and divisors of --clusters 20 for --ranks \(got 1,3\)"):
        RankCurves(ranks="1,3").cells()
    with pytest.raises(ConfigError, match=r"\(got 2,4\)"):
        RankCurves(ranks="2,4").cells()
