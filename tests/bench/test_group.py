"""A group of lines on a small graph: figures that make sense, none about speed."""

from __future__ import annotations

import time
import weakref

import pytest
import torch

import lmc
from lmc.bench import Setup
from lmc.bench.epoch import Timed, elapsed_ms, timed_pyg, timed_run
from lmc.bench.speed import Line, SpeedCell, SpeedPlan, SpeedRecord, Stopwatch, speed_rows
from lmc.cli.spec import parse_method
from lmc.diagnostics import peak_bytes
from lmc.errors import ConfigError
from lmc.methods import IMC, FullBatch, Method

CPU = torch.device("cpu")
SETUP = Setup(hidden=8, layers=3, warmup=0, repeat=1)
PLAN = SpeedPlan(["gcn"], {"gcn": ["cluster", "gas", "lmc:alpha=1:score=1"]}, ["4/2"])


@pytest.fixture(scope="module")
def graph() -> lmc.Graph:
    return lmc.load("tiny-like", scale=0.2)


def method_of(cell: SpeedCell, line: Line) -> Method:
    return parse_method(line.method, parts=4, clusters=2)


def stopwatch(graph: lmc.Graph, setup: Setup = SETUP) -> Stopwatch:
    return Stopwatch(graph, setup, CPU, method_of)


def measured(graph: lmc.Graph) -> list[SpeedRecord]:
    ((cell, lines),) = PLAN.groups().items()
    return stopwatch(graph).time_in_turn(cell, lines)


def test_every_line_has_its_figures(graph: lmc.Graph) -> None:
    pyg, full, cluster, gas, compensated = measured(graph)
    assert (pyg.method, full.method) == ("pyg-full", "full")
    rows = {row.record.method: row for row in speed_rows([pyg, full, cluster, gas, compensated])}
    assert all(r.ms > 0 and r.step_mb and rows[r.method].vs_pyg for r in (pyg, full, cluster, gas, compensated))
    assert (full.steps, full.nnz_share, rows["full"].vs_full, full.halo_ratio) == (1, 1.0, 1.0, 0.0)
    assert cluster.steps == 2
    assert cluster.nnz_share is not None
    assert compensated.nnz_share is not None
    assert cluster.nnz_share < 1 < compensated.nnz_share
    assert gas.halo_ratio is not None
    assert cluster.halo_ratio == 0 < gas.halo_ratio == compensated.halo_ratio
    work = rows["lmc:alpha=1:score=1"].vs_work
    assert work == pytest.approx(compensated.ms / (compensated.nnz_share * full.ms))


def test_lines_are_timed_in_turn(graph: lmc.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[Timed] = []
    time_epoch = Timed.time_epoch

    def noting(timed: Timed) -> None:
        order.append(timed)
        time_epoch(timed)

    monkeypatch.setattr(Timed, "time_epoch", noting)
    lines = [Line("full"), Line("gas"), Line("cluster")]
    setup = Setup(hidden=8, warmup=1, repeat=3)
    records = stopwatch(graph, setup=setup).time_in_turn(SpeedCell("gcn", "4/2", ""), lines)
    assert [r.method for r in records] == ["full", "gas", "cluster"]
    assert order == order[:3] * 3
    assert len(set(map(id, order))) == 3
    assert all(len(timed.times[0]) == 3 for timed in order)


def test_a_group_leaves_no_run_behind(graph: lmc.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left would be freed during the next measurement of memory, and lower it."""
    runs = []
    set_up = Stopwatch._set_up

    def noting(watch: Stopwatch, cell: SpeedCell, line: Line) -> Timed:
        timed = set_up(watch, cell, line)
        runs.append(weakref.ref(timed.run))
        return timed

    monkeypatch.setattr(Stopwatch, "_set_up", noting)
    stopwatch(graph).time_in_turn(SpeedCell("gcn", "4/2", ""), [Line("full"), Line("gas"), Line("cluster")])
    assert [run() for run in runs] == [None] * 3


def test_a_group_without_enough_memory_is_refused_in_one_line(
    graph: lmc.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scarce(*_: object) -> Timed:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("lmc.bench.speed.timed_run", scarce)
    with pytest.raises(ConfigError, match=r"memory for the 5 lines of gcn 4/2 together .*fewer --methods"):
        measured(graph)


def test_pyg_may_be_left_out() -> None:
    groups = SpeedPlan(["gcn"], {"gcn": ["gas"]}, ["4/2"], pyg=False).groups()
    assert [[line.method for line in lines] for lines in groups.values()] == [["full", "gas"]]


def test_multi_label_graphs_are_timed_too() -> None:
    graph = lmc.load("ppi-like", scale=0.05)
    for timed in (timed_pyg(graph, SETUP, CPU), timed_run(FullBatch(), graph, SETUP, CPU)):
        timed.time_epoch()
        assert timed.ms > 0


def test_the_peak_counts_what_lives_at_once() -> None:
    def step() -> None:
        for _ in range(3):
            torch.zeros(1000, 1000)  # each is freed before the next

    assert peak_bytes(step, CPU) == pytest.approx(4e6, rel=0.1)


def test_warm_up_is_not_counted() -> None:
    calls: list[float] = []

    def epoch() -> float:
        calls.append(0.0)
        return 0.0

    timed = Timed(epoch, 1, 0, CPU).warm_up(2, None)
    assert timed.times == {}
    for _ in range(3):
        timed.time_epoch()
    assert timed.ms >= 0
    assert len(calls) == 5
    assert elapsed_ms(lambda: time.sleep(0.01), CPU) >= 10


def test_the_time_of_an_epoch_contains_its_share_of_the_sweeps(graph: lmc.Graph) -> None:
    timed = timed_run(IMC(4, 2, sweep_every=2), graph, Setup(hidden=8, warmup=1, repeat=1), CPU)
    for _ in range(4):
        timed.time_epoch()
    assert {sweeps: len(each) for sweeps, each in timed.times.items()} == {0: 2, 1: 2}
    timed.times = {0: [1.0, 100.0, 2.0], 1: [10.0]}
    assert timed.ms == (3 * 2 + 10) / 4


def test_nothing_to_repeat_is_refused() -> None:
    with pytest.raises(ConfigError, match="repeat >= 1"):
        Setup(repeat=0)
