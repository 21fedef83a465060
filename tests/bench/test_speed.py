"""Lines of the speed benchmark: what is compared with what, and that every kind of line can be measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import lmc
from lmc.bench import Setup, speed
from lmc.bench.epoch import Timed, build
from lmc.bench.speed import Line, SpeedCell, SpeedPlan, SpeedRecord, Stopwatch, speed_rows
from lmc.methods import CMC, GAS, LMC4Conv, LMC4Rec, Method

CPU = torch.device("cpu")
SETUP = Setup(hidden=8, layers=3, warmup=0, repeat=1)
PLAN = SpeedPlan(["gcn"], {"gcn": ["cmc", "gas", "lmc"]}, ["4/2"], True, ["device", "disk"], True, ["cmc"], ["4/1"])


@pytest.fixture(scope="module")
def graph() -> lmc.Graph:
    return lmc.load("tiny-like", scale=0.2)


def line(model: str, what: Line, ms: float, config: str = "4/2", **others: float) -> SpeedRecord:
    return SpeedRecord(model, config, "", **vars(what), steps=2, ms=ms, **others)  # type: ignore[arg-type]


def test_every_line_comes_after_its_baselines() -> None:
    groups = PLAN.groups()
    for cell, lines in groups.items():
        assert len(set(lines)) == len(lines)
        for one in lines:
            bases = PLAN.baselines(cell.model, one)
            assert all(lines.index(base) < lines.index(one) for base in bases), one
    found = [(one.method, cell.config, one.tier, one.redraw) for cell, lines in groups.items() for one in lines]
    assert found == [
        ("pyg-full", "4/2", "device", False),
        ("full", "4/2", "device", False),
        ("lmc", "4/2", "device", False),
        ("cmc", "4/2", "device", False),
        ("gas", "4/2", "device", False),
        ("pyg-full", "4/1", "device", False),
        ("full", "4/1", "device", False),
        ("lmc", "4/1", "device", False),
        ("cmc", "4/1", "device", False),
        ("lmc", "4/1", "disk", False),
        ("cmc", "4/1", "disk", False),
        ("lmc", "4/1", "device", True),
        ("cmc", "4/1", "device", True),
    ]
    assert next(cell.lines for cell in groups) == "pyg-full, full, lmc, cmc, gas"


def test_ratios_are_to_the_same_group() -> None:
    full, lmc4conv, cmc = Line("full"), Line("lmc"), Line("cmc")
    disk = replace(cmc, tier="disk")
    records = [
        line("gcn", Line("pyg-full"), 100.0),
        line("gcn", full, 10.0, nnz_share=1.0),
        line("gcn", lmc4conv, 30.0, nnz_share=2.0),
        line("gcn", cmc, 36.0, nnz_share=2.0),
        line("gcn", disk, 72.0),
        line("gcn", full, 20.0, config="4/1"),
        line("gcn", cmc, 80.0, config="4/1"),
    ]
    rows = speed_rows(records)
    by = {(r.record.method, r.record.tier, r.record.config): r for r in rows}
    assert len(rows) == len(records)
    whole = by["full", "device", "4/2"]
    assert (whole.vs_pyg, whole.vs_full, whole.vs_work) == (0.1, 1.0, 1.0)
    first = by["cmc", "device", "4/2"]
    assert (first.vs_lmc, first.vs_work, first.of_device) == (1.2, 1.8, None)
    assert by["cmc", "disk", "4/2"].of_device == 0.5
    second = by["cmc", "device", "4/1"]
    assert (second.vs_full, second.vs_lmc, second.vs_pyg) == (4.0, None, None)
    assert by["pyg-full", "device", "4/2"].vs_full is None


def test_the_time_of_a_fixed_point_is_not_proportional_to_non_zeros() -> None:
    rows = speed_rows([line(model, Line("full"), 10.0, nnz_share=1.0) for model in ("recgcn", "gcn")])
    assert [row.vs_work for row in rows] == [None, 1.0]


def measured(
    graph: lmc.Graph, model: str, what: Line, method: Method, setup: Setup, device: torch.device
) -> SpeedRecord:
    watch = Stopwatch(graph, setup, device, lambda cell, line: method)
    (record,) = watch.time_in_turn(SpeedCell(model, "4/2", ""), [what])
    return record


@pytest.mark.parametrize(
    ("model", "what", "method"),
    [
        ("gcn", Line("pyg-full"), None),
        ("gcn", Line("full"), None),
        ("gcn", Line("cmc", "disk"), CMC(4, 2)),
        ("gcn", Line("lmc", redraw=True), LMC4Conv(4, 2, redraw=True)),
        ("gcnii", Line("gas"), GAS(4, 2)),
        ("recgcn", Line("lmc4rec"), LMC4Rec(4, 2)),
    ],
    ids=lambda v: v.method if isinstance(v, Line) else "",
)
def test_every_kind_of_line_is_measured(graph: lmc.Graph, model: str, what: Line, method: Method) -> None:
    record = measured(graph, model, what, method, SETUP, CPU)
    assert record.ms > 0
    assert record.step_mb
    if what.method == "pyg-full":
        assert record.bind_s is None
        return
    assert record.bind_s
    assert record.partition_s
    assert record.steps == (1 if what.is_baseline else 2)


def test_lines_that_transfer_rows_are_timed_after_those_in_turn(
    graph: lmc.Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[str] = []
    own = Timed.time_epoch
    monkeypatch.setattr(speed, "transfers_rows", lambda line, _: line.tier == "disk")
    monkeypatch.setattr(
        Timed, "time_epoch", lambda self: (timed.append(self.run.problem.placement.history), own(self))[1]
    )
    setup = replace(SETUP, repeat=2)
    watch = Stopwatch(graph, setup, CPU, lambda cell, line: CMC(4, 2))
    lines = [Line("cmc", "disk"), Line("cmc"), Line("gas", "disk"), Line("gas")]
    found = watch.time_in_turn(SpeedCell("gcn", "4/2", ""), lines)
    assert [(r.method, r.tier) for r in found] == [(one.method, one.tier) for one in lines]
    assert timed == ["device"] * 4 + ["disk"] * 4


def test_gcnii_has_four_layers_and_its_own_full_batch(graph: lmc.Graph) -> None:
    assert [build(name, graph, SETUP).num_layers for name in ("gcn", "gcnii", "recgcn")] == [3, 4, 1]


@pytest.mark.gpu
@pytest.mark.parametrize("tier", ["device", "host", "disk"])
def test_lines_are_measured_on_a_gpu(graph: lmc.Graph, tier: str) -> None:
    device = torch.device("cuda")
    setup = replace(SETUP, warmup=3, repeat=2)
    record = measured(graph, "gcn", Line("cmc", tier), CMC(4, 2), setup, device)
    assert record.ms > 0
    assert record.resident_mb
    assert measured(graph, "recgcn", Line("lmc4rec"), LMC4Rec(4, 2), setup, device).ms > 0


@pytest.mark.gpu
def test_memory_of_a_line_does_not_count_the_other_lines_of_its_group(graph: lmc.Graph) -> None:
    # rows wide enough that the padding of small tensors, which depends on what is free, does not count
    device, setup = torch.device("cuda"), replace(SETUP, hidden=1024, warmup=3, repeat=2)
    methods = {"gas": GAS(4, 2), "cmc": CMC(4, 2)}
    watch = Stopwatch(graph, setup, device, lambda _, one: methods[one.method])
    cell, lines = SpeedCell("gcn", "4/2", ""), [Line("full"), Line("gas"), Line("cmc")]
    watch.time_in_turn(cell, lines)  # libraries allocate workspaces when they are first used, and keep them
    together = watch.time_in_turn(cell, lines)
    for what, found in zip(lines, together, strict=True):
        (alone,) = watch.time_in_turn(cell, [what])
        assert found.step_mb == pytest.approx(alone.step_mb, rel=0.05)
        assert found.resident_mb == pytest.approx(alone.resident_mb, rel=0.1, abs=3)
