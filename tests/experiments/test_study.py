"""The studies ``grid`` and ``gradients`` from end to end: lines, tables, figures, stopping and continuing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

Invoke = Callable[..., tuple[int, str]]

GRID = (
    "grid", "tiny-like", "--scale", "0.2", "--hidden", "8", "--layers", "2", "--configs", "4/2,4/1",
    "--epochs", "2,1", "--lrs", "1e-2", "--norms", "none,batch:0.5", "--methods", "backward-sgd,gas,cmc",
    "--run-dir", "g", "--device", "cpu",
)  # fmt: skip
GRADIENTS = (
    "gradients", "tiny-like@0.2,tiny-like@0.3", "--configs", "tiny-like@0.2=4/2,4/1,tiny-like@0.3=5/2",
    "--hidden", "8", "--epochs", "3", "--every", "2", "--methods", "gas,lmc,lmc:alpha=0,cmc",
    "--run-dir", "g", "--device", "cpu",
)  # fmt: skip


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a markdown table by header."""
    rows = [[v.strip() for v in line.strip("|").split("|")] for line in path.read_text().splitlines() if "|" in line]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


@contextmanager
def stop_at_once() -> Iterator[Callable[[], bool]]:
    """Stands in for a Ctrl-C during the first cell."""
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 1

    yield stop


def test_the_grid_is_trained_once_and_its_table_is_that_of_the_lines(invoke: Invoke, tmp_path: Path) -> None:
    code, said = invoke(*GRID, "--seeds", "2")
    assert code == 0, said
    written = lines(tmp_path / "g" / "grid.jsonl")
    assert len(written) == 2 * 2 * 2 * 3
    assert [line["seed"] for line in written] == [0] * 12 + [1] * 12
    assert (tmp_path / "g" / "grid.png").read_bytes().startswith(b"\x89PNG")
    rows = table(tmp_path / "g" / "grid.md")
    assert [(r["parts/clusters"], r["norm"], r["lr"]) for r in rows] == [
        *((config, norm, "0.01") for config in ("4/2", "4/1") for norm in ("none", "batch:0.5")),
        *((config, "batch:0.5, objective", "0.01") for config in ("4/2", "4/1")),
    ]
    for row in rows:
        norm, _, objective = row["norm"].partition(", ")
        name, _, dropout = norm.partition(":")
        of: dict[str, list[float]] = {m: [] for m in ("backward-sgd", "gas", "cmc")}
        for line in written:
            if (line["config"], line["norm"], line["dropout"]) == (row["parts/clusters"], name, float(dropout or 0)):
                of[line["method"]].append(line[objective or "loss"])
        assert {m: row[m] for m in of} == {m: f"{fmean(losses):.4f}" for m, losses in of.items()}
        assert row["spread of gas"] == f"{max(of['gas']) - min(of['gas']):.4f}"
        ratios = [a / b for a, b in zip(of["cmc"], of["backward-sgd"], strict=True)]
        assert row["cmc / backward-sgd"] == f"{fmean(ratios):.4f}"
        assert f"{fmean(of['cmc']):.4f}" in said
    before = (tmp_path / "g" / "grid.jsonl").read_text()
    (tmp_path / "g" / "grid.md").unlink()
    assert invoke("grid", "--summary-only", "--run-dir", "g")[0] == 0
    assert table(tmp_path / "g" / "grid.md") == rows
    assert invoke(*GRID, "--seeds", "2")[0] == 0
    assert (tmp_path / "g" / "grid.jsonl").read_text() == before


@pytest.mark.slow
def test_a_stopped_grid_goes_on(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "g" / "grid.jsonl"
    code, said = invoke(*GRID, "--seeds", "1", "--limit", "1e-9")
    assert code == 0
    assert "12 of 12 cells are left, continue with: python -m experiments" in said
    with monkeypatch.context() as patched:
        patched.setattr("lmc.cli.study.stop_on_interrupt", stop_at_once)
        code, said = invoke(*GRID, "--seeds", "1")
    assert code == 130
    assert "11 of 12 cells are left" in said
    (first,) = lines(path)
    path.write_text(path.read_text() + '{"config": "4/2", "no')  # cut off by a crash
    assert invoke(*GRID, "--seeds", "1")[0] == 0
    halves = lines(path)
    assert halves[0] == first
    assert invoke(*GRID, "--seeds", "1", "--run-dir", "whole")[0] == 0
    timeless = [[{**r, "seconds": 0} for r in rows] for rows in (halves, lines(tmp_path / "whole" / "grid.jsonl"))]
    assert timeless[0] == timeless[1]


def test_a_folder_takes_more_cells_but_no_other_settings(invoke: Invoke, tmp_path: Path) -> None:
    few = (*GRID, "--seeds", "1", "--norms", "none", "--configs", "4/2")
    assert invoke(*few, "--epochs", "1")[0] == 0
    before = (tmp_path / "g" / "grid.jsonl").read_text()
    for other, message in (
        (("--epochs", "2"), "epochs of 4/2: 1 there, 2 here"),
        (("--epochs", "1", "--hidden", "9"), "hidden: 8 there, 9 here"),
        (("--epochs", "1", "--scale", "0.3"), "graph: tiny-like@0.2 there"),
    ):
        code, said = invoke(*few, *other)
        assert code == 2
        assert message in said
    assert invoke(*few, "--epochs", "1", "--methods", "gas,lmc")[0] == 0
    after = (tmp_path / "g" / "grid.jsonl").read_text()
    assert after.startswith(before)
    assert [line["method"] for line in lines(tmp_path / "g" / "grid.jsonl")] == ["backward-sgd", "gas", "cmc", "lmc"]


def test_gradients_are_measured_and_their_table_is_that_of_the_lines(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("lmc.cli.study.stop_on_interrupt", stop_at_once)
        assert invoke(*GRADIENTS)[0] == 130
    (first,) = lines(tmp_path / "g" / "gradients.jsonl")
    assert list(first["errors"]) == ["2"]
    code, said = invoke(*GRADIENTS)
    assert code == 0, said
    written = lines(tmp_path / "g" / "gradients.jsonl")
    assert written[0] == first
    rows = table(tmp_path / "g" / "gradients.md")
    assert [(r["graph"], r["parts/clusters"]) for r in rows] == [
        ("tiny-like@0.2", "4/2"), ("tiny-like@0.2", "4/1"), ("tiny-like@0.3", "5/2"),
    ]  # fmt: skip
    assert len(written) == 3 * 4
    for row, k in zip(rows, range(0, 12, 4), strict=True):
        of = {line["method"]: line["error"] for line in written[k : k + 4]}
        best = min(("lmc", "lmc:alpha=0"), key=lambda m: of[m])
        assert {m: row[m] for m in of} == {m: f"**{e:.4f}**" if m == best else f"{e:.4f}" for m, e in of.items()}
        assert row["cmc / best lmc"] == f"{of['cmc'] / of[best]:.2f}"
    assert invoke("gradients", "--summary-only", "--run-dir", "g")[0] == 0
    assert invoke(*GRADIENTS, "--every", "1")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--configs", "4x2"), "parts/clusters"),
        (("--configs", "4/8", "--epochs", "1"), "clusters_per_batch"),
        (("--configs", "4/2,4/2", "--epochs", "1"), "every division once"),
        (("--epochs", "1,2,3"), "one for each of the 2 configs (got 3)"),
        (("--epochs", "0"), "at least 1 for --epochs"),
        (("--lrs", "1e-3,-1"), "positive numbers for --lrs (got '-1')"),
        (("--lrs", "0.1,0.10"), "different values"),
        (("--norms", "group"), "expected norms"),
        (("--norms", "batch:1.5"), "expected norms"),
        (("--methods", "glas"), "did you mean gas"),
        (("--methods", "gas:parts=3"), "use --configs"),
        (("--seeds", "0"), "at least 1 for --seeds"),
        (("--limit", "0"), "--limit"),
        (("--summary-only", "--run-dir", "nowhere"), "name one with --run-dir"),
    ],
)
def test_wrong_arguments_of_the_grid(invoke: Invoke, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    code, said = invoke(*GRID, *arguments)
    assert code == 2
    assert message in said
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--configs", "cora=4/2"), "cora is none of them"),
        (("--configs", "tiny-like@0.2=4/2"), "tiny-like@0.3 has none"),
        (("--methods", "gas,full"), "may err (got full)"),
        (("--methods", "gas,backward-sgd"), "may err (got backward-sgd)"),
        (("--every", "4"), "--every from 1 to --epochs = 3"),
        (("--summary-only", "--run-dir", "nowhere"), "name one with --run-dir"),
    ],
)
def test_wrong_arguments_of_the_gradients(
    invoke: Invoke, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    code, said = invoke(*GRADIENTS, *arguments)
    assert code == 2
    assert message in said
    assert not (tmp_path / "g").exists()


def test_a_folder_of_the_old_form_is_refused_in_one_line(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke(*GRID, "--seeds", "1", "--limit", "1e-9")[0] == 0
    path = tmp_path / "g" / "grid.json"
    settings = json.loads(path.read_text())
    del settings["format"]
    path.write_text(json.dumps(settings))
    for command in (GRID, ("grid", "--summary-only", "--run-dir", "g")):
        code, said = invoke(*command)
        assert code == 2
        assert "expected a folder of this version (got g, which an older version wrote): use another --run-dir" in said


def test_help_lists_the_studies_and_their_options(invoke: Invoke) -> None:
    code, said = invoke("--help")
    assert code == 0
    assert all(name in said for name in ("grid", "gradients", "accuracy", "estimates", "recurrent", "sampling"))
    code, said = invoke("grid", "--help")
    assert code == 0
    assert all(option in said for option in ("--configs", "--norms", "--seeds", "--limit", "--summary-only"))
