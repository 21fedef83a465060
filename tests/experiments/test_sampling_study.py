"""The share of sampling on a small graph: figures that make sense, none about speed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import lmc
from experiments.sampling import SamplingCell, time_sampling
from lmc.bench import Setup
from lmc.bench.epoch import timed_run
from lmc.methods import FullBatch, GraphSAGE, GraphSAINT

Invoke = Callable[..., tuple[int, str]]

CPU = torch.device("cpu")
SETUP = Setup(hidden=8, layers=3, warmup=1, repeat=1)


@pytest.fixture(scope="module")
def graph() -> lmc.Graph:
    return lmc.load("tiny-like", scale=0.2)


def test_drawing_and_using_have_clocks_of_their_own(graph: lmc.Graph) -> None:
    timing = time_sampling(SamplingCell("sage"), graph, GraphSAGE((3, 2, 1), batch_size=50), SETUP, CPU, steps=7)
    assert timing.steps == -(-graph.num_labelled // 50)
    assert timing.sample_ms > 0 < timing.step_ms
    assert timing.training_ms > 0
    assert timing.share == pytest.approx(timing.sample_ms / (timing.sample_ms + timing.step_ms))
    assert 50 / 2 < timing.rows <= 50 * 4 * 3 * 2
    assert timing.entries > timing.rows


def test_an_epoch_of_sampled_batches_is_timed_too(graph: lmc.Graph) -> None:
    methods = (FullBatch(), GraphSAGE(3, batch_size=50), GraphSAINT(coverage=5))
    full, sage, saint = (timed_run(method, graph, SETUP, CPU) for method in methods)
    assert sage.steps > 1 < saint.steps
    assert full.nnz_share is not None
    assert sage.nnz_share is not None
    assert saint.nnz_share is not None
    assert sage.nnz_share > 0
    assert 0 < saint.nnz_share < full.nnz_share * saint.steps


def test_the_command_writes_its_figures(invoke: Invoke, tmp_path: Path) -> None:
    options = ["tiny-like", "--scale", "0.2", "--hidden", "8", "--layers", "2", "--steps", "3", "--device", "cpu"]
    code, said = invoke("sampling", *options, "--methods", "graphsage:fanouts=3/2,ladies")
    assert code == 0, said
    assert "share of sampling" in said
    (written,) = (tmp_path / "runs" / "bench").glob("sampling-*/sampling.jsonl")
    assert [json.loads(line)["method"] for line in written.read_text().splitlines()] == [
        "graphsage:fanouts=3/2", "ladies",
    ]  # fmt: skip
    code, said = invoke("sampling", "tiny-like", "--steps", "0")
    assert code == 2
    assert "at least 1 for --steps (got '0')" in said
