"""The epoch benchmark on a small graph: figures that make sense, none about speed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import lmc
from lmc.bench import Setup, time_epochs
from lmc.bench.measure import fastest_ms, median_ms
from lmc.cli import app
from lmc.diagnostics import peak_bytes
from lmc.errors import ConfigError
from lmc.methods import GAS, ClusterGCN, LMC4Conv, Method

CPU = torch.device("cpu")
SETUP = Setup(hidden=8, layers=3, warmup=0, repeat=1)


@pytest.fixture(scope="module")
def graph() -> lmc.Graph:
    return lmc.load("tiny-like", scale=0.2)


def test_every_line_has_its_figures(graph: lmc.Graph) -> None:
    methods: dict[str, Method] = {
        "cluster": ClusterGCN(4, 1),
        "gas": GAS(4, 2),
        "lmc": LMC4Conv(4, 2, alpha=1.0, score="1"),
    }
    pyg, full, cluster, gas, compensated = time_epochs(graph, methods, SETUP, CPU)
    assert (pyg.method, full.method) == ("pyg-full", "full")
    assert all(t.ms > 0 and t.step_mb > 0 and t.vs_pyg for t in (pyg, full, cluster, gas, compensated))
    assert (full.parts, full.steps, full.nnz_share, full.vs_full, full.halo_ratio) == (None, 1, 1.0, 1.0, 0.0)
    assert (cluster.parts, cluster.clusters, cluster.steps) == (4, 1, 4)
    assert cluster.nnz_share < 1 < compensated.nnz_share
    assert cluster.halo_ratio == 0 < gas.halo_ratio == compensated.halo_ratio
    assert compensated.vs_work == pytest.approx(compensated.ms / (compensated.nnz_share * full.ms))


def test_pyg_may_be_left_out(graph: lmc.Graph) -> None:
    timings = list(time_epochs(graph, {}, SETUP, CPU, pyg=False))
    assert [(t.method, t.vs_pyg) for t in timings] == [("full", None)]


def test_multi_label_graphs_are_timed_too() -> None:
    timings = list(time_epochs(lmc.load("ppi-like", scale=0.05), {}, SETUP, CPU))
    assert all(t.ms > 0 for t in timings)


def test_the_peak_counts_what_lives_at_once() -> None:
    def step() -> None:
        for _ in range(3):
            torch.zeros(1000, 1000)  # each is freed before the next

    assert peak_bytes(step, CPU) == pytest.approx(4e6, rel=0.1)


def test_warm_up_is_not_counted() -> None:
    calls: list[int] = []
    assert median_ms(lambda: calls.append(1), CPU, warmup=2, repeat=3) >= 0
    assert len(calls) == 5


def test_the_fastest_call_counts_for_a_kernel() -> None:
    naps = iter([0.0, 0.03, 0.001, 0.03])
    assert fastest_ms(lambda: time.sleep(next(naps)), CPU, warmup=1, repeat=3) < 20


def test_nothing_to_repeat_is_refused() -> None:
    with pytest.raises(ConfigError, match="repeat >= 1"):
        Setup(repeat=0)


def test_the_command_writes_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    precision = torch.get_float32_matmul_precision()
    arguments = "tiny-like --scale 0.2 --hidden 8 --configs 4/2,4/1 --repeat 1 --warmup 0 --device cpu"
    result = CliRunner().invoke(app, ["bench", "epoch", *arguments.split()], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "runs" / "bench" / "epoch-tiny-like@0.2-cpu.json").read_text())
    assert [t["method"] for t in written["timings"]] == [
        "pyg-full", "full", "gas 4/2", "gas 4/1", "lmc 4/2", "lmc 4/1",
    ]  # fmt: skip
    assert written["setup"]["hidden"] == 8
    assert torch.get_float32_matmul_precision() == precision


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--configs", "80x40"), "parts/clusters"),
        (("--configs", "4/8"), "clusters_per_batch"),
        (("--methods", "glas"), "did you mean gas"),
        (("--norm", "group", "--scale", "0.2"), "expected norm"),
    ],
)
def test_wrong_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["bench", "epoch", "tiny-like", *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
