"""Epochs of recurrent models, timed and counted."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from experiments.recurrent import RecurrentSetup, time_recurrent
from helpers import random_graph
from lmc.errors import ConfigError
from lmc.methods import GAS, SSE, FullBatch, LMC4Rec

Invoke = Callable[..., tuple[int, str]]


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


def test_the_command_writes_a_line_for_every_partition_tolerance_and_method(invoke: Invoke, tmp_path: Path) -> None:
    options = "tiny-like --scale 0.2 --tols 1e-2,1e-4 --hidden 8 --parts 4 --clusters 1 --warmup 1 --repeat 1"
    code, said = invoke("recurrent", *options.split(), "--counted", "1", "--device", "cpu", "--run-dir", "r")
    assert code == 0, said
    lines = [json.loads(line) for line in (tmp_path / "r" / "recurrent.jsonl").read_text().splitlines()]
    assert [(t["partition"], t["tol"], t["method"]) for t in lines] == [
        (how, tol, method) for how in ("metis", "random") for tol in (1e-2, 1e-4) for method in ("gas", "lmc4rec")
    ]
    assert f"{lines[0]['ms']:,.1f}" in (tmp_path / "r" / "recurrent.md").read_text()
    code, said = invoke("recurrent", "tiny-like", "--lrs", "0.1")
    assert code != 0
    assert "learning rate for each of 2 partitions" in said
    for option in ("--lrs", "--tols"):
        code, said = invoke("recurrent", "tiny-like", option, "abc")
        assert code == 2
        assert f"expected positive numbers for {option} (got 'abc')" in said
