"""Lines of the speed benchmark: what is measured against what, and that every kind of line can be measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import lmc
from lmc.bench import Setup, traffic
from lmc.bench.speed import COPY, WHOLE, Course, SpeedCell, SpeedRecord, speed_rows, time_cell
from lmc.methods import CMC, GAS, LMC4Conv, LMC4Rec, Method

CPU = torch.device("cpu")
SETUP = Setup(hidden=8, layers=3, warmup=0, repeat=1)
COURSE = Course(["gcn"], {"gcn": ["cmc", "gas", "lmc"]}, ["4/2"], True, ["device", "disk"], True, ["cmc"], ["4/1"])


@pytest.fixture(scope="module")
def graph() -> lmc.Graph:
    return lmc.load("tiny-like", scale=0.2)


def line(cell: SpeedCell, ms: float, **others: float) -> SpeedRecord:
    return SpeedRecord(**vars(cell), steps=2, ms=ms, **others)  # type: ignore[arg-type]


def test_every_line_comes_after_its_baselines() -> None:
    cells = COURSE.cells()
    assert len(set(cells)) == len(cells)
    for cell in cells:
        bases = COURSE.baselines(cell)
        assert all(cells.index(base) < cells.index(cell) for base in bases), cell
    assert [(c.method, c.config, c.tier, c.redraw) for c in cells] == [
        ("copy", WHOLE, "device", False),
        ("pyg-full", WHOLE, "device", False),
        ("full", WHOLE, "device", False),
        ("lmc", "4/2", "device", False),
        ("cmc", "4/2", "device", False),
        ("gas", "4/2", "device", False),
        ("lmc", "4/1", "device", False),
        ("cmc", "4/1", "device", False),
        ("lmc", "4/1", "disk", False),
        ("cmc", "4/1", "disk", False),
        ("lmc", "4/1", "device", True),
        ("cmc", "4/1", "device", True),
    ]
    assert COURSE.continued([]) == cells


def test_a_later_sitting_measures_its_own_baselines() -> None:
    first = [line(cell, 1.0) for cell in COURSE.cells()[:-2]]
    cells = COURSE.continued(first)
    assert [c for c in cells if c.sitting == 1] == COURSE.cells()[:-2]
    mine = [c for c in cells if c.sitting == 2]
    assert {(c.method, c.config, c.redraw) for c in mine} == {
        ("copy", WHOLE, False), ("full", WHOLE, False), ("pyg-full", WHOLE, False),
        ("cmc", "4/1", False), ("lmc", "4/1", False), ("lmc", "4/1", True), ("cmc", "4/1", True),
    }  # fmt: skip
    done = first + [line(c, 2.0) for c in mine]
    assert {c.sitting for c in COURSE.continued(done)} == {1, 2}
    assert set(COURSE.continued(done)) <= {SpeedCell(**{k: getattr(r, k) for k in vars(cells[0])}) for r in done}


def test_ratios_are_to_the_same_sitting() -> None:
    full, lmc4conv, cmc = SpeedCell("gcn", "full"), SpeedCell("gcn", "lmc", "4/2"), SpeedCell("gcn", "cmc", "4/2")
    disk = replace(cmc, tier="disk")
    records = [
        line(SpeedCell(WHOLE, COPY), 1.0, moved=8e6),
        line(SpeedCell("gcn", "pyg-full"), 100.0),
        line(full, 10.0, moved=4e6, nnz_share=1.0, product_ms=0.5, product_moved=2e6),
        line(lmc4conv, 30.0, nnz_share=2.0),
        line(cmc, 36.0, nnz_share=2.0),
        line(disk, 72.0),
        line(replace(full, sitting=2), 20.0),
        line(replace(cmc, sitting=2), 80.0),
    ]
    rows = speed_rows(records)
    by = {(r.record.method, r.record.tier, r.record.sitting): r for r in rows}
    assert len(rows) == len(records) - 1
    whole = by["full", "device", 1]
    assert (whole.vs_pyg, whole.vs_full, whole.vs_work) == (0.1, 1.0, 1.0)
    assert whole.of_copy == pytest.approx(0.05)
    assert whole.product_of_copy == pytest.approx(0.5)
    first = by["cmc", "device", 1]
    assert (first.vs_rival, first.vs_work, first.of_device) == (1.2, 1.8, None)
    assert by["cmc", "disk", 1].of_device == 0.5
    second = by["cmc", "device", 2]
    assert (second.vs_full, second.vs_rival, second.vs_pyg, second.of_copy) == (4.0, None, None, None)
    assert by["pyg-full", "device", 1].vs_full is None


def test_an_iteration_is_measured_against_a_product_and_a_map() -> None:
    r = line(SpeedCell("recgcn", "full"), 10.0, iterations=40, iteration_ms=0.3, product_ms=0.15, dense_ms=0.05)
    (row,) = speed_rows([r])
    assert row.vs_bound == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("cell", "method"),
    [
        (SpeedCell("gcn", "pyg-full"), None),
        (SpeedCell("gcn", "full"), None),
        (SpeedCell("gcn", "cmc", "4/2", "disk"), CMC(4, 2)),
        (SpeedCell("gcn", "lmc", "4/2", redraw=True), LMC4Conv(4, 2, redraw=True)),
        (SpeedCell("gcnii", "gas", "4/2"), GAS(4, 2)),
        (SpeedCell("recgcn", "lmc4rec", "4/2"), LMC4Rec(4, 2)),
    ],
    ids=lambda v: v.method if isinstance(v, SpeedCell) else "",
)
def test_every_kind_of_line_is_measured(graph: lmc.Graph, cell: SpeedCell, method: Method | None) -> None:
    def method_of(asked: SpeedCell) -> Method:
        assert asked == cell
        assert method is not None
        return method

    record = time_cell(graph, cell, SETUP, CPU, method_of)
    assert record.ms > 0
    assert record.step_mb
    if cell.method == "pyg-full":
        assert record.moved is None
        return
    assert record.moved
    assert record.product_ms
    assert record.product_moved
    assert record.dense_ms
    assert record.steps == (1 if cell.config == WHOLE else 2)
    assert (record.iterations is not None) == (record.iteration_ms is not None) == (cell.model == "recgcn")


def test_gcnii_has_four_layers_and_its_own_full_batch(graph: lmc.Graph) -> None:
    from lmc.bench.speed import build

    assert [build(name, graph, SETUP).num_layers for name in ("gcn", "gcnii", "recgcn")] == [3, 4, 1]


@pytest.mark.gpu
@pytest.mark.parametrize("tier", ["device", "host", "disk"])
def test_lines_are_measured_on_a_gpu(graph: lmc.Graph, tier: str) -> None:
    device = torch.device("cuda")
    setup = replace(SETUP, warmup=3, repeat=2)
    cell = SpeedCell("gcn", "cmc", "4/2", tier)
    record = time_cell(graph, cell, setup, device, lambda _: CMC(4, 2))
    assert record.ms > 0
    assert record.resident_mb
    assert record.product_ms
    fixed = time_cell(graph, SpeedCell("recgcn", "lmc4rec", "4/2"), setup, device, lambda _: LMC4Rec(4, 2))
    assert fixed.iteration_ms
    ms, moved = traffic.copy_ms(device)
    assert moved / ms * 1e3 > 1e10
