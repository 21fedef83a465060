"""``lmc bench scale``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from lmc.bench.cells import Book
from lmc.bench.epoch import FULL
from lmc.bench.measure import matmul_precision
from lmc.bench.scale import (
    ScaleCell,
    ScaleRecord,
    Shelf,
    Sizes,
    measure_cell,
    over_clusters,
    over_sizes,
    slope,
)
from lmc.bench.speed import WHOLE
from lmc.cli.build import build_method, load_graph, options_of
from lmc.cli.cells import (
    Pace,
    choices_of,
    done_of,
    known,
    markdown_table,
    mb_figure,
    ms_figure,
    parse_list,
    positive,
    ratio_figure,
    rich_table,
    share_figure,
    whole,
    work_and_show,
)
from lmc.cli.choices import DataChoice, MethodChoice, MethodOptions, ModelChoice, RunChoice
from lmc.cli.console import console, facts, file_name
from lmc.cli.speed import setup_of
from lmc.cli.timing import parse_configs
from lmc.cli.training import device_name
from lmc.data import lookalikes
from lmc.errors import ConfigError
from lmc.methods import METHODS, FullBatch, Method
from lmc.report import Growth, save, scale_figure
from lmc.results import replace
from lmc.stores import check_device

CAPTION = (
    "ms of an epoch of training steps, median; ms / M edges: for a million edges of the graph; x full: time over the "
    "full batch's on the same graph; non-zeros: of all batches over the graph's; x work: time over (non-zeros x "
    "full-batch time); MB: peak of a step, what lives between steps on the device, and both"
)
SLOPES = "the powers p of time ~ edges^p and of memory ~ edges^p, the least-squares line through the logarithms"


@dataclass(frozen=True)
class ScaleChoice:
    """What to measure, as lists; None: what suits the device."""

    scales: str | None
    methods: str
    parts: int
    clusters: int
    sweep: str
    at: float | None
    repeat: int | None
    warmup: int | None
    partition: str | None = None
    limit: float | None = None
    summary_only: bool = False


def scale_command(data: DataChoice, choice: ScaleChoice, model: ModelChoice, where: RunChoice) -> None:
    """Measure every line that the folder has not yet, then the tables and the figure of all lines."""
    out, pace, device = console(), Pace(choice.limit), check_device(where.device)
    folder = where.run_dir or Path("runs/bench") / file_name(f"scale-{data.source}-{device.type}")
    book = Book(folder, "scale", ScaleCell, ScaleRecord)
    if choice.summary_only:
        _show(out, known(book))
        return
    setup = setup_of(model, where.seed, choice.warmup, choice.repeat, device)
    choices = {c.label: c for c in choices_of(choice.methods)}
    for wanted in choices.values():  # a wrong option is told before a graph is drawn
        build_method(wanted)
    sizes = sizes_of(choice, list(choices.values()), device)
    cells = sizes.cells()
    methods = {cell: method_of(cell, choices, choice.partition) for cell in cells}
    found = lookalikes.parse(data.source)
    if found is None or found[1] is not None:
        raise ConfigError(
            f"expected a lookalike without a scale, one of {', '.join(lookalikes.LOOKALIKES)} (got {data.source!r}): "
            "it is drawn at each of --scales"
        )
    about = [
        ("graph", f"{data.source} at {', '.join(f'{scale:g}' for scale in sizes.scales)}"),
        ("model", f"GCN, {setup.layers} layers of {setup.hidden}, dropout {setup.dropout:g}"),
    ]
    with matmul_precision(device) as precision:
        about.append(("device", f"{device_name(device)}, {precision} products, torch {torch.__version__}"))
        settings: dict[str, Any] = {"graph": data.source, "device": about[-1][1], "clusters": sizes.clusters}
        settings |= {"at": sizes.at, **{k: getattr(setup, k) for k in ("hidden", "layers", "dropout", "norm", "seed")}}
        book.open(settings)
        about += [
            ("time", f"median of {setup.repeat} epochs after {setup.warmup}; training steps with Adam, no evaluation"),
            ("lines", done_of(book, cells)),
            ("run folder", str(folder)),
        ]
        out.print(facts(about))
        shelf = Shelf(lambda scale: load_graph(dataclasses.replace(data, scale=scale)))

        def work(cell: ScaleCell) -> ScaleRecord:
            return measure_cell(shelf(cell.scale), cell, methods[cell], setup, device)

        work_and_show(out, book, cells, work, _said, lambda: _show(out, book), pace)


def sizes_of(choice: ScaleChoice, choices: Sequence[MethodChoice], device: torch.device) -> Sizes:
    """The lists, read."""
    default = "0.125,0.315,0.794,2" if device.type == "cuda" else "0.02,0.05,0.13,0.32"
    scales = sorted(parse_list(choice.scales or default, "--scales", positive("--scales")))
    sweep = parse_list(choice.sweep, "--sweep", lambda text: whole("--sweep", text))
    divided = [c.label for c in choices if c.name != FULL]
    wrong = [c.label for c in choices if c.name in METHODS and c.name != FULL and "parts" not in options_of(c.name)]
    if wrong:
        raise ConfigError(f"expected methods whose batches are parts of the graph (got {', '.join(wrong)}): drop them")
    at = choice.at if choice.at is not None else scales[-2] if len(scales) > 1 else scales[-1]
    parts, clusters = whole("--parts", str(choice.parts)), whole("--clusters", str(choice.clusters))
    return Sizes(scales, parts, clusters, sweep, at, [FULL, *divided])


def method_of(cell: ScaleCell, choices: dict[str, MethodChoice], partition: str | None) -> Method:
    """The method of a line."""
    if cell.config == WHOLE:
        return FullBatch()
    ((parts, clusters),) = parse_configs(cell.config)
    chosen = choices[cell.method]
    given: dict[str, Any] = {"partition": partition} if partition else {}
    given |= chosen.options.given() | {"parts": parts, "clusters": clusters}
    return build_method(dataclasses.replace(chosen, options=MethodOptions(**given)))


def _said(r: ScaleRecord) -> str:
    config = "" if r.config == WHOLE else f" {r.config}"
    return f"{r.edges:,} edges, {r.method}{config}: {ms_figure(r.ms)} ms, {mb_figure(r.peak)} MB"


def _show(out: Console, book: Book[ScaleCell, ScaleRecord]) -> None:
    records = book.read()
    if not records:
        out.print("nothing is measured yet")
        return
    settings = json.loads((book.folder / "scale.json").read_text())
    sizes, swept = over_sizes(records, settings["clusters"]), over_clusters(records, settings["at"])
    tables = [(*table_of(records), CAPTION)]
    slopes = slopes_of(sizes)
    if slopes:
        tables.append((["method", "time", "step memory", "memory between steps"], slopes, SLOPES))
    for headers, cells, caption in tables:
        out.print(rich_table(headers, cells, 2, caption))
    replace(book.folder / "scale.md", "\n".join(markdown_table(*table) for table in tables).encode())
    at = next((r.edges for lines in swept.values() for r in lines), 0)
    panels = [
        Growth("milliseconds an epoch", "edges, millions", _points(sizes, "size", "ms"), True),
        Growth("MB at the peak of a step, all in all", "edges, millions", _points(sizes, "size", "peak"), True),
        Growth(
            f"milliseconds an epoch, {at / 1e6:.2g} M edges", "clusters per batch", _points(swept, "clusters", "ms")
        ),
        Growth(f"MB of a step, {at / 1e6:.2g} M edges", "clusters per batch", _points(swept, "clusters", "step")),
    ]
    title = f"{settings['graph']}: cost over size ({settings['clusters']} parts a batch) and over parts a batch"
    save(scale_figure(panels, title), book.folder / "scale.png")
    out.print(f"scale.jsonl, scale.md, scale.png in {book.folder}", soft_wrap=True)


def table_of(records: Sequence[ScaleRecord]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of text."""
    headers = ["edges", "method", "parts/clusters", "steps", "ms / epoch", "ms / M edges", "x full", "non-zeros"]
    headers += ["x work", "halo/core", "step MB", "between MB", "peak MB"]
    full = {r.scale: r.ms for r in records if r.method == FULL}
    rows = []
    for r in records:
        line = [f"{r.edges:,}", r.method, r.config, str(r.steps), ms_figure(r.ms), ms_figure(r.ms_per_million)]
        over = r.ms / full[r.scale] if r.scale in full else None
        line += [ratio_figure(over), share_figure(r.entries)]
        line.append(ratio_figure(over / r.entries if over is not None and r.entries else None))
        line += [f"{r.halo_ratio:.2f}", mb_figure(r.step), mb_figure(r.lives), mb_figure(r.peak)]
        rows.append(line)
    return headers, rows


def slopes_of(sizes: dict[str, list[ScaleRecord]]) -> list[list[str]]:
    """One row a method that was measured at several sizes."""
    rows = []
    for label, lines in sizes.items():
        edges = [r.edges for r in lines]
        powers = [slope(edges, values) for values in zip(*[(r.ms, r.step, r.lives) for r in lines], strict=True)]
        if None not in powers:
            rows.append([label, *[f"{power:.2f}" for power in powers]])
    return rows


def _points(curves: dict[str, list[ScaleRecord]], x: str, y: str) -> dict[str, list[tuple[float, float]]]:
    """The curves of a panel: edges in millions or clusters, against milliseconds or megabytes."""
    return {
        label: [
            (r.edges / 1e6 if x == "size" else float(r.clusters or 0), r.ms if y == "ms" else getattr(r, y) / 1e6)
            for r in lines
        ]
        for label, lines in curves.items()
    }
