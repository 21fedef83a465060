"""The command line trains, compares and resumes recurrent models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Invoke = Callable[..., tuple[int, str]]

TINY, DIVIDED = ("tiny-like", "--scale", "0.2"), ("--parts", "4", "--clusters", "2")
SMALL = (*TINY, "--model", "recgcn:hidden=8", *DIVIDED)


def test_train_and_resume(invoke: Invoke, tmp_path: Path) -> None:
    options = (
        *TINY, *DIVIDED, "--method", "lmc4rec:q=0.6:update=step:undo_drift=no",
        "--model", "recgcn:hidden=8:input_dropout=0.2:kappa=0.9:p=1:solver=anderson:tol=1e-3", "--run-dir", "r",
    )  # fmt: skip
    code, said = invoke("train", *options, "--epochs", "2")
    assert code == 0, said
    assert "LMC4Rec" in said
    assert "RecGCN" in said
    assert "recurrent" in said
    assert "steps" in said
    assert invoke("train", *options, "--epochs", "3", "--resume")[0] == 0
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert (config["method"]["q"], config["method"]["update"], config["method"]["undo_drift"]) == (0.6, "step", False)
    model = config["model"]
    assert (model["kappa"], model["p"], model["solver"], model["solver.tol"]) == (0.9, "1", "anderson", 1e-3)
    lines = [json.loads(line) for line in (tmp_path / "r" / "epochs.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert all(line["solver"]["unconverged"] == 0 for line in lines)


def test_compare(invoke: Invoke, tmp_path: Path) -> None:
    methods = "backward-sgd,cluster,gas,sse,lmc4rec,cmc4rec"
    code, said = invoke("compare", *SMALL, "--methods", methods, "--epochs", "2", "--run-dir", "c")
    assert code == 0, said
    summary = json.loads((tmp_path / "c" / "summary.json").read_text())
    assert all(name in json.dumps(summary) for name in methods.split(","))
    assert (tmp_path / "c" / "compare.png").exists()
    measured = json.loads((tmp_path / "c" / "lmc4rec" / "errors.jsonl").read_text().splitlines()[-1])
    assert {"H", "V", "in", "layer 1", "out"} == measured["layers"].keys()


@pytest.mark.filterwarnings("ignore::lmc.errors.SolverWarning")
def test_solves_that_fail_are_said(invoke: Invoke) -> None:
    model = "recgcn:hidden=8:tol=1e-12:kappa=0.99"
    code, said = invoke("train", *TINY, "--method", "full", "--epochs", "1", "--model", model, "--lr", "0.5")
    assert code == 0
    assert "fixed points were not solved to the tolerance" in said


def test_methods_and_models_that_do_not_go_together_are_refused(invoke: Invoke) -> None:
    code, said = invoke("train", *SMALL, "--method", "lmc", "--epochs", "1")
    assert code == 2
    assert "use LMC4Rec" in said
    code, said = invoke("train", "tiny-like", "--scale", "0.2", "--method", "lmc4rec", "--epochs", "1")
    assert code == 2
    assert "use LMC4Conv" in said
