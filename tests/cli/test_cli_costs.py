"""``lmc bench speed``, ``memory`` and ``scale`` from end to end: lines, tables, figures, stopping and continuing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

Invoke = Callable[..., tuple[int, str]]

COMMON = ("--hidden", "8", "--device", "cpu", "--run-dir", "r")
SPEED = (
    "bench", "speed", "tiny-like", "--scale", "0.2", "--configs", "4/2", "--models", "gcn,recgcn",
    "--methods", "lmc,cmc", "--redraw", "--repeat", "1", "--warmup", "0", *COMMON,
)  # fmt: skip
MEMORY = (
    "bench", "memory", "tiny-like", "--scale", "0.2", "--configs", "4/2,4/1",
    "--methods", "full,lmc,graphsage", *COMMON,
)  # fmt: skip
SCALE = (
    "bench", "scale", "tiny-like", "--scales", "0.1,0.2,0.4,1.6", "--parts", "32", "--sweep", "1,2,4",
    "--methods", "gas", "--repeat", "1", "--warmup", "0", *COMMON,
)  # fmt: skip


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rows(path: Path) -> list[list[str]]:
    """The rows of all markdown tables of a page, headers too."""
    found = [[v.strip() for v in line.strip("|").split("|")] for line in path.read_text().splitlines() if "|" in line]
    return [row for row in found if set(row) != {"---"}]


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG")


def stop_after(cells: int) -> Any:
    """Stands in for a Ctrl-C during the given cell."""

    @contextmanager
    def stopping() -> Iterator[Callable[[], bool]]:
        asked = 0

        def stop() -> bool:
            nonlocal asked
            asked += 1
            return asked > cells

        yield stop

    return stopping


def test_speed_stops_after_a_group_and_goes_on_with_the_next(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "r"
    with monkeypatch.context() as patched:
        patched.setattr("lmc.cli.study.stop_on_interrupt", stop_after(1))
        code, said = invoke(*SPEED)
    assert code == 130
    assert "cells are left, continue with: lmc" in said
    first = lines(folder / "speed.jsonl")
    assert [(r["model"], r["method"], r["config"], r["tier"], r["redraw"]) for r in first] == [
        ("gcn", "pyg-full", "4/2", "device", False),
        ("gcn", "full", "4/2", "device", False),
        ("gcn", "lmc", "4/2", "device", False),
        ("gcn", "cmc", "4/2", "device", False),
        ("gcn", "lmc", "4/2", "disk", False),
        ("gcn", "lmc", "4/2", "device", True),
    ]
    code, said = invoke(*SPEED)
    assert code == 0, said
    written = lines(folder / "speed.jsonl")
    assert written[:6] == first
    assert [(r["model"], r["method"], r["config"], r["tier"], r["redraw"]) for r in written[6:]] == [
        ("recgcn", "full", "4/2", "device", False),
        ("recgcn", "lmc4rec", "4/2", "device", False),
        ("recgcn", "cmc4rec", "4/2", "device", False),
    ]
    assert is_png(folder / "speed.png")
    table = rows(folder / "speed.md")
    cmc = next(row for row in table if row[:3] == ["gcn", "cmc", "4/2"])
    of = {(r["model"], r["method"], r["tier"], r["redraw"]): r["ms"] for r in written}
    ratio = of["gcn", "cmc", "device", False] / of["gcn", "lmc", "device", False]
    text = f"{ratio:.3f}" if ratio < 1 else f"{ratio:.2f}"
    assert cmc[table[0].index("time / lmc")] == text
    disk = next(row for row in table if row[3:4] == ["disk"])
    share = of["gcn", "lmc", "device", False] / of["gcn", "lmc", "disk", False]
    assert disk[table[0].index("of device speed")] == (
        f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"
    )
    assert "an epoch takes so many times as long as" in said
    assert invoke(*SPEED)[0] == 0  # nothing is left
    assert lines(folder / "speed.jsonl") == written
    (folder / "speed.png").unlink()
    assert invoke("bench", "speed", "--summary-only", "--run-dir", "r")[0] == 0
    assert is_png(folder / "speed.png")
    code, said = invoke(*SPEED, "--hidden", "9")
    assert (code, "hidden: 8 there, 9 here" in said) == (2, True)


def test_speed_sets_the_precision_of_products_back(invoke: Invoke) -> None:
    precision = torch.get_float32_matmul_precision()
    assert invoke(*SPEED, "--models", "gcn", "--no-redraw", "--no-pyg", "--tiers", "device")[0] == 0
    assert torch.get_float32_matmul_precision() == precision


def test_memory_has_predictions_where_there_are_plans(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "r"
    with monkeypatch.context() as patched:
        patched.setattr("lmc.cli.study.stop_on_interrupt", stop_after(2))
        assert invoke(*MEMORY)[0] == 130
    first = lines(folder / "memory.jsonl")
    code, said = invoke(*MEMORY)
    assert code == 0, said
    written = lines(folder / "memory.jsonl")
    assert written[:2] == first
    assert [(r["method"], r["config"], r["tier"]) for r in written] == [
        ("full", "-", "device"),
        *[("lmc", config, tier) for config in ("4/2", "4/1") for tier in ("device", "disk")],
        ("graphsage", "-", "device"),
    ]
    for r in written:
        assert r["step"] > 0 < r["lives"]
        if r["method"] == "graphsage":
            assert r["predicted_step"] is None
        else:
            assert r["predicted_lives"] == pytest.approx(r["lives"], rel=0.15)
    assert set(written[2]["away"]) == {"disk"}
    table = rows(folder / "memory.md")
    assert len(table) == 1 + len(written)
    assert table[1][-1] == f"{(written[0]['step'] + written[0]['lives']) / 1e6:,.1f}"
    assert is_png(folder / "memory.png")
    assert invoke("bench", "memory", "--summary-only", "--run-dir", "r")[0] == 0


def test_scale_measures_four_sizes_and_the_sweep(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "r"
    with monkeypatch.context() as patched:
        patched.setattr("lmc.cli.study.stop_on_interrupt", stop_after(3))
        assert invoke(*SCALE)[0] == 130
    first = lines(folder / "scale.jsonl")
    code, said = invoke(*SCALE)
    assert code == 0, said
    written = lines(folder / "scale.jsonl")
    assert written[:3] == first
    assert [(r["scale"], r["method"], r["config"]) for r in written] == [
        (0.1, "full", "-"), (0.1, "gas", "2/2"), (0.2, "full", "-"), (0.2, "gas", "4/2"),
        (0.4, "full", "-"), (0.4, "gas", "8/1"), (0.4, "gas", "8/2"), (0.4, "gas", "8/4"),
        (1.6, "full", "-"), (1.6, "gas", "32/2"),
    ]  # fmt: skip
    assert written[-1]["edges"] == 16 * written[0]["edges"]
    table = rows(folder / "scale.md")
    per_million = table[0].index("ms / M edges")
    ms = written[0]["ms"] / written[0]["edges"] * 1e6
    assert table[1][per_million].replace(",", "") == (f"{ms:.0f}" if ms >= 100 else f"{ms:.2f}")
    assert [row[0] for row in table[-3:]] == ["method", "full", "gas"]
    assert float(table[-2][2]) == pytest.approx(1, abs=0.3)  # a full batch's step grows with the graph
    assert is_png(folder / "scale.png")
    assert invoke("bench", "scale", "--summary-only", "--run-dir", "r")[0] == 0


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (SPEED, ("--models", "gcn,gat"), "expected models of gcn, gcnii, recgcn (got gat)"),
        (SPEED, ("--models", "recgcn", "--methods", "fm"), "expected a method that trains recgcn (got fm)"),
        (SPEED, ("--methods", "gas,graphsage", "--models", "gcn"), "batches are parts of the graph (got graphsage)"),
        (SPEED, ("--methods", "glas"), "did you mean gas"),
        (SPEED, ("--methods", "lmc:parts=3"), "use --configs"),
        (SPEED, ("--configs", "4x2"), "parts/clusters"),
        (SPEED, ("--configs", "4/8"), "clusters_per_batch"),
        (SPEED, ("--tiers", "device,tape"), "expected tiers of device, host, disk (got tape)"),
        (SPEED, ("--tier-methods", "gas"), "keep histories, lmc, cmc (got 'gas')"),
        (SPEED, ("--methods", "cluster", "--models", "gcn", "--tier-methods", "cluster"), "none (got 'cluster')"),
        (SPEED, ("--repeat", "0"), "repeat >= 1"),
        (SPEED, ("--norm", "group"), "expected norm"),
        (SPEED, ("--limit", "0"), "--limit"),
        (SPEED, ("--summary-only", "--run-dir", "nowhere"), "name one with --run-dir"),
        (MEMORY, ("--methods", "glas"), "did you mean gas"),
        (MEMORY, ("--tiers", "tape"), "expected tiers"),
        (MEMORY, ("--configs", "4/8"), "clusters_per_batch"),
        (MEMORY, ("--summary-only", "--run-dir", "nowhere"), "name one with --run-dir"),
        (SCALE, ("--scales", "0.1,-1"), "positive numbers for --scales (got '-1')"),
        (SCALE, ("--scales", "0.1,0.1"), "different values"),
        (SCALE, ("--at", "0.3"), "--at to be one of --scales"),
        (SCALE, ("--clusters", "5"), "at most 2 clusters a batch at scale 0.1 (got 5)"),
        (SCALE, ("--clusters", "0"), "at least 1 for --clusters"),
        (SCALE, ("--sweep", "1,x"), "whole numbers of at least 1 for --sweep"),
        (SCALE, ("--methods", "glas"), "did you mean gas"),
        (SCALE, ("--methods", "gas,graphsage"), "batches are parts of the graph (got graphsage)"),
        (SCALE, ("--partition", "blind"), "expected partition in"),
        (SCALE, ("--summary-only", "--run-dir", "nowhere"), "name one with --run-dir"),
    ],
)
def test_wrong_arguments(
    invoke: Invoke, tmp_path: Path, command: tuple[str, ...], arguments: tuple[str, ...], message: str
) -> None:
    code, said = invoke(*command, *arguments)
    assert code == 2, said
    assert message in said
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("source", ["cora", "tiny-like@0.2"])
def test_scale_needs_a_graph_that_can_be_drawn(invoke: Invoke, source: str) -> None:
    code, said = invoke("bench", "scale", source, *SCALE[3:])
    assert (code, "expected a lookalike without a scale" in said) == (2, True)


def test_a_limit_leaves_the_rest_for_later(invoke: Invoke, tmp_path: Path) -> None:
    for command in (SPEED, MEMORY, SCALE):
        folder = tmp_path / command[1]
        code, said = invoke(*command, "--run-dir", command[1], "--limit", "1e-9")
        assert code == 0
        assert "yet" in said
        assert "continue with: lmc" in said
        assert list(folder.glob("*.png")) == []
