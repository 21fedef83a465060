"""Training with bfloat16 rows: the accuracy of float32, and runs that can be resumed."""

from __future__ import annotations

import dataclasses
import sys
from functools import cache
from pathlib import Path
from statistics import mean, stdev

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import lmc
from lmc.cli.app import app
from lmc.errors import CheckpointError
from lmc.graph import CSR
from lmc.methods import CMC, FullBatch, LMC4Conv, Method

METHODS: dict[str, Method] = {"full": FullBatch(), "lmc": LMC4Conv(10, 5), "cmc": CMC(10, 5)}
PRECISIONS = ("float32", "bfloat16")


def small(
    method: Method, precision: str, run_dir: Path | None, epochs: int, device: str = "cpu", history: str = "device"
) -> lmc.RunRecord:
    g = lmc.load("tiny-like", scale=0.5)
    model = lmc.models.GCN(g.num_features, 16, g.num_classes, num_layers=3, dropout=0.5, norm="batch")
    again = run_dir is not None and (run_dir / "config.json").exists()
    placement = lmc.Placement(device, history, precision=precision)
    return lmc.fit(g, model, method, epochs=epochs, seed=3, run_dir=run_dir, resume=again, placement=placement)


@pytest.mark.parametrize(
    ("method", "history"), [(LMC4Conv(6, 2), "device"), (CMC(6, 2), "device"), (CMC(6, 2), "disk")]
)
def test_a_resumed_run_is_bit_identical(method: Method, history: str, tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    small(method, "bfloat16", whole, 6, history=history)
    small(method, "bfloat16", halves, 3, history=history)
    small(method, "bfloat16", halves, 6, history=history)
    one, two = (load_file(folder / "checkpoint.safetensors") for folder in (whole, halves))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert {key[4] for key, value in one.items() if value.dtype == torch.bfloat16} == set(
        "HV" if "run.H.2" in one else "T"
    )


def test_a_run_is_not_resumed_in_another_precision(tmp_path: Path) -> None:
    small(LMC4Conv(6, 2), "bfloat16", tmp_path / "run", 1)
    with pytest.raises(CheckpointError, match=r"bfloat16 there, torch\.float32 here"):
        small(LMC4Conv(6, 2), "float32", tmp_path / "run", 2)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("method", "history"), [(LMC4Conv(6, 2), "device"), (CMC(6, 2), "device"), (CMC(6, 2), "host")]
)
def test_a_gpu_trains_to_the_loss_of_float32(method: Method, history: str, tmp_path: Path) -> None:
    narrow, single = (small(method, p, tmp_path / p, 40, "cuda", history) for p in ("bfloat16", "float32"))
    assert narrow.loss == pytest.approx(single.loss, rel=0.05)
    assert narrow.test == pytest.approx(single.test, abs=0.03)


def test_the_command_line_trains_in_bfloat16_and_says_so(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = [
        "train",
        "tiny-like",
        "--scale",
        "0.5",
        "--method",
        "cmc",
        "--parts",
        "6",
        "--clusters",
        "2",
        "--model",
        "gcn:layers=3",
    ]
    command += ["--epochs", "3", "--device", "cpu", "--run-dir", str(run_dir), "--precision", "bfloat16"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "bfloat16" in result.output
    state = load_file(run_dir / "checkpoint.safetensors")
    assert state["run.T.2"].dtype == torch.bfloat16
    assert state["run.M.2"].dtype == state["model.layers.0.lin.weight"].dtype == torch.float32
    refused = CliRunner().invoke(app, [*command[:-1], "half", "--resume"])
    assert refused.exit_code != 0
    assert "expected precision" in refused.output


@cache
def graph_of(path: Path) -> lmc.Graph:
    """Photo's features are one third full: dense ones are several times as fast, and are rounded."""
    g = lmc.load(path)
    return dataclasses.replace(g, x=g.x.to_dense()) if path.stem == "amazon_photo" and isinstance(g.x, CSR) else g


@cache
def accuracy(path: Path, method: str, precision: str, epochs: int, seed: int) -> float:
    """Test accuracy at the best validation epoch of two layers with the usual settings of each graph."""
    g, GCN = graph_of(path), lmc.models.GCN
    if path.stem == "cora":
        model = GCN(g.num_features, 16, g.num_classes, num_layers=2, dropout=0.5, input_dropout=True, seed=seed)
    else:
        model = GCN(g.num_features, 64, g.num_classes, num_layers=3, dropout=0.5, norm="layer", seed=seed)
    record = lmc.fit(
        g, model, METHODS[method], epochs, 0.01, weight_decay=5e-4, seed=seed, eval_every=2,
        placement=lmc.Placement("cpu", precision=precision),
    )  # fmt: skip
    assert record.test is not None
    return record.test


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("method", METHODS)
def test_a_short_training_ends_at_the_loss_of_float32(method: str, device: str) -> None:
    """The accuracies of these seeds lie a point apart."""
    g = lmc.load("tiny-like")
    for seed in range(2):
        narrow, single = (
            lmc.fit(
                g,
                lmc.models.GCN(g.num_features, 32, g.num_classes, num_layers=3, dropout=0.5, seed=seed),
                METHODS[method],
                epochs=30,
                seed=seed,
                placement=lmc.Placement(device, precision=precision),
                eval_every=2,
            )
            for precision in ("bfloat16", "float32")
        )
        assert narrow.loss == pytest.approx(single.loss, rel=0.03)
        assert narrow.test == pytest.approx(single.test, abs=0.01)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("graph", "epochs"), [("cora", 200), ("amazon_photo", 100)])
def test_bfloat16_is_as_accurate_as_float32(
    data_dir: Path, graph: str, epochs: int, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = data_dir / f"{graph}.npz"
    found = {p: [accuracy(path, method, p, epochs, seed) for seed in range(5)] for p in PRECISIONS}
    with capsys.disabled():
        line = ", ".join(f"{p} {mean(v):.4f} +- {stdev(v):.4f}" for p, v in found.items())
        sys.stdout.write(f"\n{graph}, {method}: {line} (mean and deviation of 5 seeds)\n")
    assert mean(found["bfloat16"]) > mean(found["float32"]) - 0.01
