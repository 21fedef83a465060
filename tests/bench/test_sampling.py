"""The share of sampling on a small graph: figures that make sense, none about speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import lmc
from lmc.bench import Setup, time_epochs, time_sampling
from lmc.cli import app
from lmc.methods import GraphSAGE, GraphSAINT

CPU = torch.device("cpu")
SETUP = Setup(hidden=8, layers=3, warmup=1, repeat=1)


@pytest.fixture(scope="module")
def graph() -> lmc.Graph:
    return lmc.load("tiny-like", scale=0.2)


def test_drawing_and_using_have_clocks_of_their_own(graph: lmc.Graph) -> None:
    timing = time_sampling("sage", graph, GraphSAGE((3, 2, 1), batch_size=50), SETUP, CPU, steps=7)
    assert timing.steps == -(-graph.num_labelled // 50)
    assert timing.sample_ms > 0 < timing.step_ms
    assert timing.training_ms > 0
    assert timing.share == pytest.approx(timing.sample_ms / (timing.sample_ms + timing.step_ms))
    assert 50 / 2 < timing.rows <= 50 * 4 * 3 * 2
    assert timing.entries > timing.rows


def test_an_epoch_of_sampled_batches_is_timed_too(graph: lmc.Graph) -> None:
    methods = {"sage": GraphSAGE(3, batch_size=50), "saint": GraphSAINT(coverage=5)}
    full, sage, saint = time_epochs(graph, methods, SETUP, CPU, pyg=False)
    assert (sage.parts, sage.clusters) == (None, None)
    assert sage.steps > 1 < saint.steps
    assert sage.nnz_share > 0
    assert 0 < saint.nnz_share < full.nnz_share * saint.steps


def test_the_command_writes_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["tiny-like", "--scale", "0.2", "--hidden", "8", "--layers", "2", "--steps", "3", "--device", "cpu"]
    result = CliRunner().invoke(app, ["bench", "sampling", *options, "--methods", "graphsage:fanouts=3/2,ladies"])
    assert result.exit_code == 0, result.output
    assert "share of sampling" in " ".join(result.output.split())
    (written,) = (tmp_path / "runs" / "bench").glob("sampling-*.json")
    timings = json.loads(written.read_text())["timings"]
    assert [t["method"] for t in timings] == ["graphsage:fanouts=3/2", "ladies"]
    wrong = CliRunner().invoke(app, ["bench", "sampling", "tiny-like", "--steps", "0"])
    assert wrong.exit_code == 2
    assert "at least 1 for --steps (got '0')" in " ".join(wrong.output.split())
