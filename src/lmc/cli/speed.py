"""``lmc bench speed``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from lmc.bench import Setup
from lmc.bench.cells import Book
from lmc.bench.measure import matmul_precision
from lmc.bench.speed import (
    COPY,
    WHOLE,
    Course,
    SpeedCell,
    SpeedRecord,
    SpeedRow,
    check_models,
    speed_rows,
    time_cell,
)
from lmc.cli.build import build_method, keeps_histories, load_graph, options_of
from lmc.cli.cells import (
    Pace,
    choices_of,
    config_names,
    first_of,
    known,
    markdown_table,
    ms_figure,
    parse_list,
    ratio_figure,
    rich_table,
    share_figure,
    without_empty,
    work_and_show,
)
from lmc.cli.choices import DataChoice, MethodChoice, MethodOptions, ModelChoice, RunChoice
from lmc.cli.console import console, facts, file_name
from lmc.cli.timing import parse_configs
from lmc.cli.training import device_name
from lmc.errors import ConfigError
from lmc.methods import METHODS, Method
from lmc.report import Panel, rows_figure, save
from lmc.results import replace
from lmc.stores import check_device

TIERS = ("device", "host", "disk")
_RECURRENT = {"lmc": "lmc4rec", "cmc": "cmc4rec"}
"""The same idea for a fixed point."""

TIMES = (
    "ms of an epoch of training steps, median; x pyg-full, x full, x lmc: time over that of torch_geometric.nn.GCN on "
    "edge_index, of our full batch of the same model, of LMC on the same batches; non-zeros: of all batches over the "
    "graph's; x work: time over (non-zeros x full-batch time); of device speed: over that of the device tier"
)
BYTES = (
    "one sparse product with a batch's matrix at the hidden width, the fastest of 16, and the whole epoch: bytes that "
    "have to move (lmc.bench.traffic) a second, over those of a copy within the device's memory, the fastest of 16; "
    "gathered: counting a row for every entry; iterations: of both solves of all steps; iteration ms: of the forward "
    "solver; x bound: over one sparse product plus one dense one of its sizes"
)


@dataclass(frozen=True)
class SpeedChoice:
    """What to time, as lists; None: what suits the device."""

    models: str
    methods: str
    configs: str | None
    tiers: str | None
    tier_methods: str | None
    tier_configs: str | None
    redraw: bool
    pyg: bool
    repeat: int | None
    warmup: int | None
    limit: float | None = None
    summary_only: bool = False


def speed_command(data: DataChoice, choice: SpeedChoice, model: ModelChoice, where: RunChoice) -> None:
    """Time every line that the folder has not yet, then the tables and the figure of all lines."""
    out, pace, device = console(), Pace(choice.limit), check_device(where.device)
    data = suited(data, device)
    folder = where.run_dir or Path("runs/bench") / file_name(f"speed-{named(data)}-{device.type}")
    book = Book(folder, "speed", SpeedCell, SpeedRecord)
    if choice.summary_only:
        _show(out, known(book))
        return
    setup = setup_of(model, where.seed, choice.warmup, choice.repeat, device)
    choices = choices_of(choice.methods)
    for wanted in choices:  # a wrong option is told before a graph is loaded
        build_method(wanted)
    course = course_of(choice, choices, device)
    for cell in course.cells():
        if cell.config != WHOLE:
            method_of(cell, choices)
    graph = load_graph(data)
    with matmul_precision(device) as precision:
        about = [
            ("graph", repr(graph)),
            ("models", f"{', '.join(course.models)}; layers of {setup.hidden}, dropout {setup.dropout:g}"),
            ("device", f"{device_name(device)}, {precision} products, torch {torch.__version__}"),
            ("time", f"median of {setup.repeat} epochs after {setup.warmup}; training steps with Adam, no evaluation"),
        ]
        settings = {"graph": graph.name, "data": graph.checksum, "device": about[2][1]}
        book.open(settings | {k: v for k, v in dataclasses.asdict(setup).items() if k not in ("repeat", "warmup")})
        cells = course.continued(book.read())
        left = len(book.left(cells))
        lines = f"{len(cells)}, of which {len(cells) - left} are done"
        out.print(facts([*about, ("lines", lines), ("run folder", str(folder))]))

        def work(cell: SpeedCell) -> SpeedRecord:
            return time_cell(graph, cell, setup, device, lambda c: method_of(c, choices))

        work_and_show(out, book, cells, work, _said, lambda: _show(out, book), pace)


def suited(data: DataChoice, device: torch.device) -> DataChoice:
    """The data, with a graph that suits the device in the place of "auto"."""
    if data.source != "auto":
        return data
    return dataclasses.replace(data, source="arxiv-like" if device.type == "cuda" or data.scale else "arxiv-like@0.1")


def named(data: DataChoice) -> str:
    """The graph's name, its scale with it."""
    return data.source if data.scale is None else f"{data.source}@{data.scale:g}"


def setup_of(model: ModelChoice, seed: int, warmup: int | None, repeat: int | None, device: torch.device) -> Setup:
    """How to time; by default oftener on a GPU."""
    on_gpu = device.type == "cuda"
    return Setup(
        hidden=model.hidden,
        layers=model.layers or Setup.layers,
        dropout=Setup.dropout if model.dropout is None else model.dropout,
        norm=None if model.norm == "none" else model.norm,
        seed=seed,
        warmup=warmup if warmup is not None else 3 if on_gpu else 1,
        repeat=repeat if repeat is not None else 20 if on_gpu else 3,
    )


def course_of(choice: SpeedChoice, choices: Sequence[MethodChoice], device: torch.device) -> Course:
    """The lists, read."""
    on_gpu = device.type == "cuda"
    models = parse_list(choice.models, "--models", str)
    check_models(models)
    labels = {model: [c.label for c in choices_for(model, choices)] for model in models}
    configs = config_names(choice.configs or ("80/40,80/10,80/1" if on_gpu else "80/40,80/10"))
    tiers = tiers_of(choice.tiers, device)
    varied = _varied(choice.tier_methods, labels[models[0]], models[0])
    varied_in = config_names(choice.tier_configs) if choice.tier_configs else [_tenth(configs)]
    return Course(models, labels, configs, choice.pyg, tiers, choice.redraw, varied, varied_in)


def _varied(text: str | None, labels: Sequence[str], model: str) -> list[str]:
    """The methods for other tiers and redrawn batches; by default LMC, else the first that keeps histories."""
    keeping = [label for label in labels if keeps_histories(label.partition(":")[0])]
    if text is None:
        return [first_of(keeping, "lmc") or first_of(keeping, "lmc4rec") or keeping[0]] if keeping else []
    varied = []
    for wanted in parse_list(text, "--tier-methods", str):
        found = [label for label in keeping if wanted in (label, label.partition(":")[0])]
        if not found:
            raise ConfigError(
                f"expected --tier-methods among those timed on {model} that keep histories, "
                f"{', '.join(keeping) or 'none'} (got {wanted!r})"
            )
        varied += found
    return varied


def _tenth(configs: Sequence[str]) -> str:
    """80/10 where it is there, else the first."""
    return "80/10" if "80/10" in configs else configs[0]


def tiers_of(text: str | None, device: torch.device) -> list[str]:
    """The tiers; on a CPU the device is the host."""
    tiers = parse_list(text or ",".join(TIERS if device.type == "cuda" else ("device", "disk")), "--tiers", str)
    unknown = [tier for tier in tiers if tier not in TIERS]
    if unknown:
        raise ConfigError(f"expected tiers of {', '.join(TIERS)} (got {', '.join(unknown)})")
    return tiers


def choices_for(model: str, choices: Sequence[MethodChoice]) -> list[MethodChoice]:
    """The methods that train a model: lmc4rec for lmc where it is a fixed point."""
    found = []
    for choice in choices:
        name = _RECURRENT.get(choice.name, choice.name) if model == "recgcn" else choice.name
        cls = METHODS.get(name)
        if cls is not None and not (cls.trains_recurrent if model == "recgcn" else cls.trains_convolutional):
            continue
        if cls is not None and "parts" not in options_of(name):
            raise ConfigError(f"expected methods whose batches are parts of the graph (got {choice.label}): drop it")
        found.append(choice if name == choice.name else MethodChoice(name, name))
    if not found:
        raise ConfigError(f"expected a method that trains {model} (got {', '.join(c.label for c in choices)}): add one")
    return found


def method_of(cell: SpeedCell, choices: Sequence[MethodChoice]) -> Method:
    """The method of a line."""
    chosen = next(c for c in choices_for(cell.model, choices) if c.label == cell.method)
    ((parts, clusters),) = parse_configs(cell.config)
    given = chosen.options.given() | {"parts": parts, "clusters": clusters}
    if cell.redraw:
        given["redraw"] = True
    return build_method(dataclasses.replace(chosen, options=MethodOptions(**given)))


def _said(r: SpeedRecord) -> str:
    if r.method == COPY:
        return f"copy: {(r.rate or 0) / 1e9:,.1f} GB/s"
    return f"{_name(r)}: {ms_figure(r.ms)} ms"


def _name(r: SpeedRecord) -> str:
    words = [r.model, r.method, *([r.config] if r.config != WHOLE else []), *([r.tier] if r.tier != "device" else [])]
    return " ".join([*words, *(["redrawn"] if r.redraw else [])])


def _show(out: Console, book: Book[SpeedCell, SpeedRecord]) -> None:
    records = book.read()
    rows = speed_rows(records)
    if not rows:
        out.print("nothing is timed yet")
        return
    copies = {r.sitting: r.rate or 0 for r in records if r.method == COPY}
    bandwidth = "copy: " + ", ".join(f"{rate / 1e9:,.1f} GB/s" for rate in copies.values())
    tables = [(*times_of(rows, len(copies) > 1), TIMES), (*bytes_of(rows), f"{bandwidth}; {BYTES}")]
    for headers, cells, caption in tables:
        out.print(rich_table(headers, cells, 2, caption))
    replace(book.folder / "speed.md", "\n".join(markdown_table(*table) for table in tables).encode())
    _draw(book.folder, rows)
    out.print(f"speed.jsonl, speed.md, speed.png in {book.folder}", soft_wrap=True)


def times_of(rows: Sequence[SpeedRow], sittings: bool) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of text: times."""
    headers = ["model", "method", "parts/clusters", "histories", "batches", "steps", "ms / epoch", "x pyg-full"]
    headers += [
        "x full",
        "non-zeros",
        "x work",
        "x lmc",
        "of device speed",
        "step MB",
        *(["sitting"] if sittings else []),
    ]
    cells = []
    for row in rows:
        r = row.record
        divided = r.config != WHOLE
        line = [r.model, r.method, r.config, r.tier if divided else "-"]
        line += ["-" if not divided else "redrawn" if r.redraw else "fixed", str(r.steps), ms_figure(r.ms)]
        line += [
            ratio_figure(row.vs_pyg),
            ratio_figure(row.vs_full),
            share_figure(r.nnz_share),
            ratio_figure(row.vs_work),
        ]
        line += [ratio_figure(row.vs_rival), share_figure(row.of_device)]
        line.append("-" if r.step_mb is None else f"{r.step_mb:,.1f}")
        cells.append([*line, *([str(r.sitting)] if sittings else [])])
    return without_empty(headers, cells)


def bytes_of(rows: Sequence[SpeedRow]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of text: bytes, and iterations of fixed points."""
    headers = ["model", "line", "product ms", "GB/s", "of copy", "gathered GB/s", "epoch GB", "GB/s", "of copy"]
    headers += ["iterations", "iteration ms", "x bound"]
    cells = []
    for row in rows:
        r = row.record
        if r.moved is None:
            continue
        gathered = r.product_gathered / r.product_ms * 1e3 if r.product_gathered and r.product_ms else None
        line = [r.model, _name(r).partition(" ")[2], ms_figure(r.product_ms), _giga(r.product_rate)]
        line += [share_figure(row.product_of_copy), _giga(gathered), f"{r.moved / 1e9:,.3f}", _giga(r.rate)]
        line += [share_figure(row.of_copy), "-" if r.iterations is None else f"{r.iterations:,.0f}"]
        cells.append([*line, ms_figure(r.iteration_ms), ratio_figure(row.vs_bound)])
    return without_empty(headers, cells)


def title_of(settings: Path) -> str:
    """Graph and device of a benchmark."""
    about = json.loads(settings.read_text())
    return f"{about['graph']}, {about['device']}"


def _giga(rate: float | None) -> str:
    return "-" if rate is None else f"{rate / 1e9:,.1f}"


def _draw(folder: Path, rows: Sequence[SpeedRow]) -> None:
    panels = [
        Panel("milliseconds an epoch", [row.record.ms for row in rows], log=True),
        Panel(
            "bytes a second over those of a copy",
            [row.of_copy for row in rows],
            [row.product_of_copy for row in rows],
            "the sparse product alone",
            limit=1.0,
            numbers=False,
        ),
    ]
    names, labels = [_name(row.record) for row in rows], [row.record.method for row in rows]
    save(rows_figure(names, labels, panels, title_of(folder / "speed.json")), folder / "speed.png")
