"""The presets against the table of the paper's settings, and a few steps of each."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import lmc
from lmc.cli import app
from lmc.errors import ConfigError
from lmc.methods import METHODS
from lmc.presets import get, names

B, Y = "batch", True
# data set, model, layers, width, dropout, that of the features, norm, parts, clusters, alpha, score, lr, epochs, rest
CONVOLUTIONAL: list[tuple[Any, ...]] = [
    ("ogbn-arxiv", "gcn", 3, 256, 0.5, False, B, 80, 40, 1.0, "1", 0.01, 300, {}),
    ("flickr", "gcn", 2, 256, 0.3, Y, B, 24, 12, 0.8, "1", 0.01, 400, {}),
    ("ppi", "gcn", 2, 1024, 0, False, B, 20, 2, 0.8, "x^2", 0.005, 1000,
     {"residual": Y, "linear_in": Y, "linear_out": Y}),
    ("reddit", "gcn", 2, 256, 0.5, False, None, 200, 100, 1.0, "2x-x^2", 0.01, 400, {}),
    ("ogbn-arxiv", "gcnii", 4, 256, 0.3, False, B, 40, 20, 0.9, "x", 0.01, 500,
     {"alpha": 0.2, "theta": 0.5, "shared_weights": Y}),
    ("flickr", "gcnii", 8, 256, 0.5, Y, B, 24, 12, 0.8, "1", 0.01, 400,
     {"alpha": 0.1, "theta": 0.5, "shared_weights": False}),
    ("ppi", "gcnii", 9, 2048, 0.2, Y, None, 20, 2, 0.8, "2x-x^2", 0.001, 2000,
     {"alpha": 0.5, "theta": 1.0, "residual": Y, "shared_weights": False, "clip": 1.0}),
    ("reddit", "gcnii", 4, 256, 0.5, Y, B, 200, 100, 0.2, "1", 0.01, 400,
     {"alpha": 0.1, "theta": 0.5, "shared_weights": False}),
]  # fmt: skip
# data set, width, parts, clusters, lr with METIS parts, lr with random parts
RECURRENT: list[tuple[Any, ...]] = [
    ("cora", 128, 10, 2, 0.003, 0.001),
    ("citeseer", 128, 10, 2, 0.01, 0.001),
    ("pubmed", 128, 10, 2, 0.003, 0.0003),
    ("ppi", 1024, 10, 2, 0.01, None),
    ("reddit", 256, 200, 100, 0.003, None),
    ("amazon", 64, 40, 1, 0.003, None),
    ("ogbn-arxiv", 256, 80, 10, 0.003, None),
    ("ogbn-products", 256, 1500, 10, 0.001, None),
]


@pytest.mark.parametrize("row", CONVOLUTIONAL, ids=lambda row: f"{row[1]}-{row[0]}")
def test_a_convolutional_preset_has_the_settings_of_the_table(row: tuple[Any, ...]) -> None:
    data, name, layers, width, dropout, on_features, norm, parts, clusters, alpha, score, lr, epochs, rest = row
    preset = get(f"lmc/{name}/{data}")
    assert preset.method == lmc.methods.LMC4Conv(parts, clusters, alpha=alpha, score=score)
    clip = {k: v for k, v in rest.items() if k == "clip"}
    assert preset.fit_options == {"lr": lr, "epochs": epochs} | clip
    with_defaults = {"norm": None, "input_dropout": False} | dict(preset.model_arguments)
    assert (preset.model_name, preset.dataset) == (name, data)
    assert with_defaults == {
        "num_layers": layers, "hidden": width, "dropout": dropout, "input_dropout": on_features, "norm": norm,
    } | {k: v for k, v in rest.items() if k != "clip"}  # fmt: skip


@pytest.mark.parametrize("row", RECURRENT, ids=lambda row: row[0])
def test_a_recurrent_preset_has_the_settings_of_the_table(row: tuple[Any, ...]) -> None:
    data, width, parts, clusters, lr, random_lr = row
    preset = get(f"lmc4rec/recgcn/{data}")
    assert preset.method == lmc.methods.LMC4Rec(parts, clusters)
    start = {"start": "identity"} if data != "ppi" else {}  # the table does not state the initial W
    assert (preset.model_name, dict(preset.model_arguments)) == ("recgcn", {"hidden": width} | start)
    assert preset.fit_options == {"lr": lr}
    if random_lr is None:
        assert f"lmc4rec-random/recgcn/{data}" not in names()
    else:
        other = get(f"lmc4rec-random/recgcn/{data}")
        assert other.method == lmc.methods.LMC4Rec(parts, clusters, partition="random")
        assert other.fit_options == {"lr": random_lr}


def test_there_is_no_other_file() -> None:
    assert len([n for n in names() if n.startswith("lmc/")]) == len(CONVOLUTIONAL)
    assert len([n for n in names() if n.startswith("lmc4rec/")]) == len(RECURRENT)


def test_other_methods_have_the_model_and_the_parts_of_lmc() -> None:
    own = get("lmc/gcn/flickr")
    for name in ("gas", "fm", "cluster", "cmc", "imc"):
        preset = get(f"{name}/gcn/flickr")
        assert preset.method == METHODS[name](num_parts=24, clusters_per_batch=12)
        assert (preset.model_arguments, preset.fit_options) == (own.model_arguments, own.fit_options)
    assert get("gas-random/recgcn/cora").fit_options == {"lr": 0.001}


LOOKALIKES = {
    "ogbn-arxiv": "arxiv-like@0.005", "flickr": "flickr-like@0.01", "ppi": "ppi-like@0.05",
    "reddit": "reddit-like@0.004", "ogbn-products": "products-like@0.001", "amazon": "amazon-like@0.05",
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in names() if n.startswith(("lmc/", "lmc4rec/"))])
def test_every_preset_trains(name: str) -> None:
    """On a small piece of its lookalike, or on a small graph where it has none; the rows are at most 32 wide."""
    preset = get(name)
    narrow = dict(preset.model_arguments) | {"hidden": min(32, preset.model_arguments["hidden"])}
    preset = dataclasses.replace(preset, model_arguments=narrow)
    graph = lmc.load(LOOKALIKES.get(preset.dataset, "tiny-like"))
    number = preset.method.num_parts  # type: ignore[attr-defined]
    parts = torch.arange(graph.num_nodes) * number // graph.num_nodes
    model = preset.model(graph)
    before = [p.detach().clone() for p in model.parameters()]
    options = dict(preset.fit_options) | {"epochs": 1, "steps": 1, "eval_every": 0}
    record = lmc.fit(graph, model, preset.method, parts=parts, device="cpu", **options)
    assert record.loss is not None
    assert all(not torch.equal(p, was) for p, was in zip(model.parameters(), before, strict=True) if p.numel() > 1)


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


def test_the_command_line_lists_shows_and_refuses() -> None:
    code, text = run("presets", "imc/gcn/flickr")
    assert code == 0
    assert "lmc train flickr --method imc --model gcn:hidden=256:dropout=0.3:norm=batch:input_dropout=yes" in text
    _, text = run("presets")
    assert all(name.split("/")[0] in text for name in names())
    code, _ = run("presets", "lmc/gcn/flick")
    assert code != 0


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected name to be a text \(got 3\): pass one"):
        get(3)  # type: ignore[arg-type]


def test_options_of_the_command_line_replace_those_of_the_preset(tmp_path: Any) -> None:
    words = ["train", "flickr-like@0.01", "--preset", "cluster/gcn/flickr", "--epochs", "1", "--device", "cpu"]
    code, text = run(*words, "--model", "gcn:hidden=8", "--run-dir", str(tmp_path / "run"))
    assert code == 0, text
    _, config, record = lmc.load_run(tmp_path / "run")
    assert (config["num_parts"], config["clusters_per_batch"], config["lr"]) == (24, 12, 0.01)
    assert (config["epochs"], len(record.epochs)) == (1, 1)
    assert config["method"]["name"] == "cluster"
