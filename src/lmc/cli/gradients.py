"""``lmc bench gradients``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from lmc.bench.cells import Book
from lmc.bench.compare import has_error
from lmc.bench.gradients import (
    GradientCell,
    GradientRecord,
    GradientRow,
    gradient_cells,
    gradient_rows,
    measure_cell,
)
from lmc.bench.testbed import Testbed
from lmc.cli.build import load_graph
from lmc.cli.cells import (
    Pace,
    choices_of,
    config_names,
    done_of,
    first_of,
    known,
    markdown,
    methods_in,
    parse_list,
    positive,
    rich_table,
    whole,
    work_and_show,
)
from lmc.cli.choices import DataChoice, ModelChoice, RunChoice
from lmc.cli.console import console, error_figure, facts
from lmc.cli.training import device_name
from lmc.errors import ConfigError
from lmc.methods import Method
from lmc.stores import check_device

CAPTION = (
    "relative error of a batch's gradient against backward SGD on the same batch, mean over parameters, 3 batches, "
    "measurements and seeds; marked: the best LMC4Conv"
)


@dataclass(frozen=True)
class GradientsChoice:
    """What to measure, as lists."""

    datasets: str
    configs: str
    lrs: str
    epochs: int
    every: int
    methods: str
    seeds: int
    data_dir: Path | None = None
    limit: float | None = None
    summary_only: bool = False


def gradients_command(choice: GradientsChoice, model: ModelChoice, where: RunChoice) -> None:
    """Measure every cell that has no line yet, then the table of all lines."""
    out, pace = console(), Pace(choice.limit)
    folder = where.run_dir or Path("runs/bench/gradients")
    book = Book(folder, "gradients", GradientCell, GradientRecord)
    if choice.summary_only:
        _show(out, known(book))
        return
    device, choices = check_device(where.device), choices_of(choice.methods)
    names = parse_list(choice.datasets, "DATASETS", str)
    divisions = divisions_of(choice.configs, names)
    methods = {name: {config: methods_in(config, choices) for config in configs} for name, configs in divisions.items()}
    _check(choice, next(iter(next(iter(methods.values())).values())))
    lrs = parse_list(choice.lrs, "--lrs", positive("--lrs"))
    seeds = whole("--seeds", str(choice.seeds))
    cells = gradient_cells(divisions, lrs, [c.label for c in choices], seeds)
    graphs = {name: load_graph(DataChoice(name, choice.data_dir)) for name in names}
    layers = model.layers or 3
    settings: dict[str, Any] = {"layers": layers, "hidden": model.hidden, "device": device.type}
    settings |= {"epochs": choice.epochs, "every": choice.every}
    book.open(settings | {f"data of {name}": graph.checksum for name, graph in graphs.items()})
    about = [
        *[("graph", repr(graph)) for graph in graphs.values()],
        ("model", f"GCN, {layers} layers of {model.hidden}"),
    ]
    about += [("device", device_name(device)), ("run folder", str(folder))]
    about += [("cells", done_of(book, cells))]
    out.print(facts(about))
    stands = {
        name: Testbed(graph, methods[name], device, hidden=model.hidden, layers=layers)
        for name, graph in graphs.items()
    }

    def work(cell: GradientCell) -> GradientRecord:
        return measure_cell(stands[cell.dataset], cell, choice.epochs, choice.every)

    work_and_show(out, book, cells, work, _said, lambda: _show(out, book), pace)


def divisions_of(text: str, datasets: Sequence[str]) -> dict[str, list[str]]:
    """``"10/2,20/2"`` for every graph, ``"cora=10/2,10/5,dblp=20/2"`` for each its own."""
    own: dict[str, list[str]] = {}
    name = ""
    for part in text.split(","):
        before, mark, config = part.strip().rpartition("=")
        name = before.strip() if mark else name
        own.setdefault(name, []).append(config)
    shared = own.pop("", [])
    unknown = [name for name in own if name not in datasets]
    missing = [name for name in datasets if not shared and name not in own]
    if unknown or missing:
        raise ConfigError(
            f"expected --configs for {', '.join(datasets)} (got {text!r}): "
            + (f"{', '.join(unknown)} is none of them" if unknown else f"{', '.join(missing)} has none")
        )
    return {name: config_names(",".join([*shared, *own.get(name, [])])) for name in datasets}


def _check(choice: GradientsChoice, methods: Mapping[str, Method]) -> None:
    exact = [label for label, method in methods.items() if not has_error(method)]
    if exact:
        raise ConfigError(f"expected methods whose gradient may err (got {', '.join(exact)}): drop it")
    if not 1 <= choice.every <= choice.epochs:
        raise ConfigError(f"expected --every from 1 to --epochs = {choice.epochs} (got {choice.every})")


def _said(r: GradientRecord) -> str:
    error = "diverged" if r.error is None else f"error {error_figure(r.error)}"
    return f"seed {r.seed}, {r.dataset} {r.config}, lr {r.lr:g}, {r.method}: {error}"


def _show(out: Console, book: Book[GradientCell, GradientRecord]) -> None:
    records = book.read()
    if not records:
        out.print("no cell is done yet")
        return
    headers, rows = table_of(list(gradient_rows(records)), list(dict.fromkeys(r.method for r in records)))
    out.print(rich_table(headers, rows, 3, CAPTION))
    markdown(book.folder / "gradients.md", headers, rows, CAPTION)
    out.print(f"gradients.jsonl, gradients.md in {book.folder}", soft_wrap=True)


def table_of(rows: Sequence[GradientRow], labels: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of text."""
    cmc, lmc = first_of(labels, "cmc"), first_of(labels, "lmc")
    headers = ["graph", "parts/clusters", "lr", *labels, *([f"{cmc} / best lmc"] if cmc and lmc else [])]
    cells = []
    for row in rows:
        line = [row.dataset, row.config, f"{row.lr:g}"]
        for label in labels:
            text = "diverged" if label in row.diverged else error_figure(row.errors.get(label))
            line.append(f"**{text}**" if label == row.best else text)
        if cmc and lmc:
            ratio = row.over_best(cmc)
            line.append("-" if ratio is None else f"{ratio:.2f}")
        cells.append(line)
    return headers, cells
