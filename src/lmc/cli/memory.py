"""``lmc bench memory``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from lmc.bench.cells import Book
from lmc.bench.memory import MemoryCell, MemoryRecord, measure_cell
from lmc.bench.speed import WHOLE
from lmc.cli.build import build_method, keeps_histories, load_graph, options_of
from lmc.cli.cells import (
    Pace,
    choices_of,
    config_names,
    done_of,
    known,
    markdown,
    mb_figure,
    rich_table,
    without_empty,
    work_and_show,
)
from lmc.cli.choices import DataChoice, MethodChoice, MethodOptions, ModelChoice, RunChoice
from lmc.cli.console import console, facts, file_name
from lmc.cli.speed import named, setup_of, suited, tiers_of, title_of
from lmc.cli.timing import parse_configs
from lmc.cli.training import device_name
from lmc.methods import METHODS, Method
from lmc.report import Panel, rows_figure, save
from lmc.stores import check_device

CAPTION = (
    "MB; step: peak of a step on the largest batch, beyond what lives between steps; lives: between steps, on the "
    "training device; on host, on disk: between steps there; measured (predicted as --dry-run does, before anything is "
    "made); error: of the prediction; total: lives + step, measured"
)


@dataclass(frozen=True)
class MemoryChoice:
    """What to measure, as lists; None: what suits the device."""

    methods: str
    configs: str | None
    tiers: str | None
    limit: float | None = None
    summary_only: bool = False


def memory_command(data: DataChoice, choice: MemoryChoice, model: ModelChoice, where: RunChoice) -> None:
    """Measure every line that the folder has not yet, then the table and the figure of all lines."""
    out, pace, device = console(), Pace(choice.limit), check_device(where.device)
    data = suited(data, device)
    folder = where.run_dir or Path("runs/bench") / file_name(f"memory-{named(data)}-{device.type}")
    book = Book(folder, "memory", MemoryCell, MemoryRecord)
    if choice.summary_only:
        _show(out, known(book))
        return
    setup = setup_of(model, where.seed, None, None, device)
    choices = {c.label: c for c in choices_of(choice.methods)}
    cells = cells_of(choice, list(choices.values()), device)
    methods = {cell: method_of(cell, choices[cell.method]) for cell in cells}
    graph = load_graph(data)
    shape = {"hidden": setup.hidden, "layers": setup.layers, "dropout": setup.dropout, "norm": setup.norm}
    book.open({"graph": graph.name, "data": graph.checksum, "device": device_name(device), **shape, "seed": setup.seed})
    about = [
        ("graph", repr(graph)),
        ("model", f"GCN, {setup.layers} layers of {setup.hidden}, dropout {setup.dropout:g}"),
        ("device", f"{device_name(device)}, torch {torch.__version__}"),
        ("lines", done_of(book, cells)),
        ("run folder", str(folder)),
    ]
    out.print(facts(about))

    def work(cell: MemoryCell) -> MemoryRecord:
        return measure_cell(graph, cell, methods[cell], setup, device)

    work_and_show(out, book, cells, work, _said, lambda: _show(out, book), pace)


def cells_of(choice: MemoryChoice, choices: Sequence[MethodChoice], device: torch.device) -> list[MemoryCell]:
    """Every method in every division and on every tier that it knows."""
    configs = config_names(choice.configs or "80/40,80/10,80/1")
    tiers = tiers_of(choice.tiers, device)
    cells = []
    for c in choices:
        options = options_of(c.name) if c.name in METHODS else ["parts"]  # an unknown one is refused when it is built
        for config in configs if "parts" in options else (WHOLE,):
            mine = tiers if keeps_histories(c.name) else ("device",)
            cells += [MemoryCell(c.label, config, tier) for tier in mine]
    return cells


def method_of(cell: MemoryCell, choice: MethodChoice) -> Method:
    """The method of a line."""
    given = choice.options.given()
    if cell.config != WHOLE:
        ((given["parts"], given["clusters"]),) = parse_configs(cell.config)
    return build_method(dataclasses.replace(choice, options=MethodOptions(**given)))


def _said(r: MemoryRecord) -> str:
    predicted = "no prediction" if r.predicted_step is None else f"predicted {mb_figure(r.predicted_step)}"
    return f"{_name(r)}: a step of {mb_figure(r.step)} MB ({predicted})"


def _name(r: MemoryRecord) -> str:
    return " ".join([r.method, *([r.config] if r.config != WHOLE else []), *([r.tier] if r.tier != "device" else [])])


def _show(out: Console, book: Book[MemoryCell, MemoryRecord]) -> None:
    records = book.read()
    if not records:
        out.print("nothing is measured yet")
        return
    headers, rows = table_of(records)
    out.print(rich_table(headers, rows, 1, CAPTION))
    markdown(book.folder / "memory.md", headers, rows, CAPTION)
    _draw(book.folder, records)
    out.print(f"memory.jsonl, memory.md, memory.png in {book.folder}", soft_wrap=True)


def table_of(records: Sequence[MemoryRecord]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of text."""
    headers = ["method", "parts/clusters", "tier", "core", "halo", "step (predicted)", "error", "lives (predicted)"]
    headers += ["error", "on host (predicted)", "on disk (predicted)", "total"]
    rows = []
    for r in records:
        line = [r.method, r.config, r.tier, f"{r.core:,}", f"{r.halo:,}"]
        line += [_both(r.step, r.predicted_step), _error(r.step_error)]
        line += [_both(r.lives, r.predicted_lives), _error(r.lives_error)]
        for tier in ("host", "disk"):
            predicted = None if r.predicted_away is None else r.predicted_away.get(tier)
            line.append(_both(r.away.get(tier), predicted))
        rows.append([*line, mb_figure(r.lives + r.step)])
    return without_empty(headers, rows)


def _both(measured: int | None, predicted: int | None) -> str:
    return mb_figure(measured) + ("" if predicted is None else f" ({mb_figure(predicted)})")


def _error(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:+.1f} %"


def _draw(folder: Path, records: Sequence[MemoryRecord]) -> None:
    def mega(sizes: Sequence[int | None]) -> list[float | None]:
        return [None if size is None else size / 1e6 for size in sizes]

    panels = [
        Panel(
            "peak of a step, MB",
            mega([r.step for r in records]),
            mega([r.predicted_step for r in records]),
            "predicted",
        ),
        Panel(
            "between steps on the device, MB",
            mega([r.lives for r in records]),
            mega([r.predicted_lives for r in records]),
            "predicted",
        ),
    ]
    labels = [r.method for r in records]
    save(
        rows_figure([_name(r) for r in records], labels, panels, title_of(folder / "memory.json")),
        folder / "memory.png",
    )
