"""The sampling methods from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Invoke = Callable[..., tuple[int, str]]
DIVIDED = ("--parts", "4", "--clusters", "2", "--run-dir", "r")
SMALL = ("tiny-like", "--scale", "0.2", "--model", "gcn:hidden=8", "--epochs", "2")


@pytest.mark.parametrize("name", ["graphsage", "vrgcn", "fm-ib", "fastgcn", "ladies", "graphsaint", "shadow"])
def test_train(invoke: Invoke, tmp_path: Path, name: str) -> None:
    code, said = invoke("train", *SMALL, "--method", name, "--run-dir", "r")
    assert code == 0, said
    assert "steps an epoch" in said
    assert json.loads((tmp_path / "r" / "config.json").read_text())["method"]["name"] == name


def test_sign_wants_its_model(invoke: Invoke) -> None:
    code, said = invoke("train", *SMALL, "--method", "sign")
    assert code == 2
    assert "expected the model lmc.models.SIGN (got GCN)" in said
    assert "--model sign" in said
    assert invoke("train", *SMALL, "--method", "sign", "--model", "sign")[0] == 0


def test_options_reach_the_method(invoke: Invoke, tmp_path: Path) -> None:
    code, said = invoke(
        "train", *SMALL, "--method", "graphsage:fanouts=3/2:batch-size=50:first-layer=complete:drop-edge=0.25",
        "--run-dir", "r",
    )  # fmt: skip
    assert code == 0, said
    assert "GraphSAGE, 25.00 % of the edges left out" in said
    method = json.loads((tmp_path / "r" / "config.json").read_text())["method"]
    assert (method["name"], method["p"]) == ("dropedge", 0.25)
    inner = method["inner"]
    assert (inner["fanouts"], inner["batch_size"], inner["first_layer"]) == ([3, 2], 50, "complete")


@pytest.mark.parametrize(("model", "inner"), [("gcn:hidden=4:norm=batch", "imc"), ("gat:hidden=4", "gas")])
def test_edges_are_dropped_for_the_method_that_suits_the_model(
    invoke: Invoke, tmp_path: Path, model: str, inner: str
) -> None:
    code, said = invoke("train", *SMALL, "--model", model, "--method", "auto:drop-edge=0.25", *DIVIDED)
    assert code == 0, said
    method = json.loads((tmp_path / "r" / "config.json").read_text())["method"]
    assert (method["name"], method["inner"]["name"]) == ("dropedge", inner)


def test_the_model_sign_is_trained_by_its_method(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("train", *SMALL, "--model", "sign", "--run-dir", "r")[0] == 0
    assert json.loads((tmp_path / "r" / "config.json").read_text())["method"]["name"] == "sign"


def test_compare_with_options_after_colons(invoke: Invoke, tmp_path: Path) -> None:
    methods = "full,graphsage:fanouts=3/2,gas:drop-edge=0.2,graphsaint:sampler=edge"
    code, said = invoke("compare", *SMALL, "--methods", methods, "--run-dir", "c", "--error-every", "1")
    assert code == 0, said
    summary = json.loads((tmp_path / "c" / "summary.json").read_text())["methods"]
    assert list(summary) == methods.split(",")
    assert all(summary[name]["gradient_error"] for name in methods.split(",")[1:])
