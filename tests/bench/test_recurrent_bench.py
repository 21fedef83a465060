"""Epochs of recurrent models, timed and counted."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from helpers import random_graph
from lmc.bench.recurrent import RecurrentSetup, time_recurrent
from lmc.cli import app
from lmc.errors import ConfigError
from lmc.methods import GAS, SSE, FullBatch, LMC4Rec


def test_steps_are_counted_from_the_histories_and_from_zero() -> None:
    setup = RecurrentSetup(hidden=8, lr=1e-4, tol=1e-5, warmup=12, repeat=2, counted=2)
    methods = {"gas": GAS(4, 1), "lmc4rec": LMC4Rec(4, 1), "sse": SSE(4, 1), "full": FullBatch()}
    lines = {t.method: t for t in time_recurrent(random_graph(), methods, setup, torch.device("cpu"))}
    assert list(lines) == list(methods)
    assert lines["gas"].vs_first == 1.0
    assert lines["sse"].warm is lines["sse"].cold is None
    assert lines["full"].halo_ratio == 0 < lines["gas"].halo_ratio == lines["lmc4rec"].halo_ratio
    for name in ("gas", "lmc4rec", "full"):
        warm, cold, fewer = lines[name].warm, lines[name].cold, lines[name].fewer
        assert warm is not None
        assert cold is not None
        assert fewer == sum(cold) / sum(warm) > 1.2  # parameters hardly move


def test_settings_without_meaning_are_refused() -> None:
    with pytest.raises(ConfigError, match="repeat and counted of at least 1"):
        dataclasses.replace(RecurrentSetup(), counted=0)


def test_the_command_writes_a_line_for_every_partition_tolerance_and_method(tmp_path: Path) -> None:
    target = tmp_path / "lines.json"
    asked = (
        "bench recurrent tiny-like --scale 0.2 --tols 1e-2,1e-4 --hidden 8 --parts 4 --clusters 1 --warmup 1 --repeat 1"
    )
    shown = CliRunner().invoke(app, [*asked.split(), "--counted", "1", "--device", "cpu", "--out", str(target)])
    assert shown.exit_code == 0, shown.output
    lines = json.loads(target.read_text())["timings"]
    assert [(t["partition"], t["tol"], t["method"]) for t in lines] == [
        (how, tol, method) for how in ("metis", "random") for tol in (1e-2, 1e-4) for method in ("gas", "lmc4rec")
    ]
    wrong = CliRunner().invoke(app, ["bench", "recurrent", "tiny-like", "--lrs", "0.1"])
    assert wrong.exit_code != 0
    assert "learning rate for each of 2 partitions" in wrong.output
    for option in ("--lrs", "--tols"):
        wrong = CliRunner().invoke(app, ["bench", "recurrent", "tiny-like", option, "abc"])
        assert wrong.exit_code == 2
        assert f"expected positive numbers for {option} (got 'abc')" in " ".join(wrong.output.split())
