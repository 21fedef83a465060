"""``lmc bench accuracy``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console

from lmc.bench.accuracy import (
    AccuracyCell,
    AccuracyRecord,
    Rate,
    accuracy_cells,
    best_rate,
    rates_of,
    targets_of,
    train_cell,
)
from lmc.bench.cells import Book
from lmc.bench.measure import matmul_precision
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
from lmc.cli.console import console, facts, file_name
from lmc.cli.grid import norm_and_dropout
from lmc.cli.speed import named
from lmc.cli.training import device_name
from lmc.errors import ConfigError
from lmc.report import accuracy_figure, save
from lmc.stores import check_device


@dataclass(frozen=True)
class AccuracyChoice:
    """What is trained, and to which accuracy; by default the full batch's."""

    config: str
    lrs: str
    norm: str
    seeds: int
    epochs: int
    full_epochs: int
    methods: str
    target: float | None = None
    within: float = 0.0
    limit: float | None = None
    summary_only: bool = False


def accuracy_command(data: DataChoice, choice: AccuracyChoice, model: ModelChoice, where: RunChoice) -> None:
    """Train every cell that has no line yet, then the table and the figure of all lines."""
    out, pace = console(), Pace(choice.limit)
    folder = where.run_dir or Path("runs/bench") / file_name(f"accuracy-{named(data)}")
    book = Book(folder, "accuracy", AccuracyCell, AccuracyRecord)
    if choice.target is not None and not 0 < choice.target < 1:
        raise ConfigError(f"expected an accuracy between 0 and 1 for --target (got {choice.target:g})")
    if not 0 <= choice.within < 100:
        raise ConfigError(f"expected percentage points from 0 on for --within (got {choice.within:g})")
    if choice.summary_only:
        _show(out, known(book), choice)
        return
    device, choices = check_device(where.device), choices_of(choice.methods)
    config, *others = config_names(choice.config)
    if others:
        raise ConfigError(f"expected one division for --config (got {choice.config!r})")
    epochs, seeds = whole("--epochs", str(choice.epochs)), whole("--seeds", str(choice.seeds))
    if whole("--full-epochs", str(choice.full_epochs)) % epochs:
        raise ConfigError(f"expected --full-epochs as a multiple of --epochs (got {choice.full_epochs} and {epochs})")
    labels, lrs = [c.label for c in choices], parse_list(choice.lrs, "--lrs", positive("--lrs"))
    if choice.target is None and first_of(labels, "full") is None:
        raise ConfigError(f"expected full among --methods, or a --target (got {choice.methods!r})")
    cells = accuracy_cells(config, norm_and_dropout(choice.norm), lrs, labels, seeds, epochs, choice.full_epochs)
    graph, layers = load_graph(data), model.layers or 3
    shared = {"graph": graph.name, "data": graph.checksum, "layers": layers, "hidden": model.hidden}
    lengths = {"epochs": epochs, "full epochs": choice.full_epochs}
    book.open({**shared, "config": config, "norm": choice.norm, "device": device.type, **lengths})
    with matmul_precision(device) as precision:
        out.print(
            facts(
                [
                    ("graph", repr(graph)),
                    ("model", f"GCN, {layers} layers of {model.hidden}, norm {choice.norm}"),
                    ("device", f"{device_name(device)}, {precision} products"),
                    ("cells", done_of(book, cells)),
                    ("run folder", str(folder)),
                ]
            )
        )
        stand = Testbed(graph, {config: methods_in(config, choices)}, device, hidden=model.hidden, layers=layers)
        work_and_show(
            out,
            book,
            cells,
            lambda cell: train_cell(stand, cell),
            _said,
            lambda: _show(out, book, choice),
            pace,
        )


def _said(r: AccuracyRecord) -> str:
    return f"seed {r.seed}, lr {r.lr:g}, {r.method}: {100 * r.chosen:.2f} % in {r.seconds[-1]:.1f} s"


def _show(out: Console, book: Book[AccuracyCell, AccuracyRecord], choice: AccuracyChoice) -> None:
    records, target = book.read(), choice.target
    rates = rates_of(records)
    full = first_of(rates, "full")
    if target is not None:
        targets = {r.seed: target for r in records}
    else:
        targets = {} if full is None else targets_of(rates[full], choice.within / 100)
    if not targets:
        out.print("no cell is done yet" if target else "no full batch is trained yet, and there is no --target")
        return
    best = {label: best_rate(those, targets) for label, those in rates.items()}
    goal = fmean(targets.values())
    headers, rows = _table(best, targets)
    whose = f", {choice.within:g} points below the full batch's on the same seed at its best rate" if not target else ""
    caption = (
        f"target: {100 * goal:.2f} % test accuracy{whose}; for every method the rate that reaches it in the fewest "
        "seconds of training steps, or the most accurate; mean over seeds; accuracy: on the test nodes, where that on "
        "the validation nodes is best"
    )
    out.print(rich_table(headers, rows, 1, caption))
    markdown(book.folder / "accuracy.md", headers, rows, caption)
    curves = {label: _curve(rate.records) for label, rate in best.items()}
    save(accuracy_figure(curves, goal, "test accuracy, best rate of each method"), book.folder / "accuracy.png")
    out.print(f"accuracy.jsonl, accuracy.md, accuracy.png in {book.folder}", soft_wrap=True)


def _table(best: Mapping[str, Rate], targets: Mapping[int, float]) -> tuple[list[str], list[list[str]]]:
    headers = ["method", "lr", "seeds", "accuracy", "epochs", "seconds"]
    rows = []
    for label, rate in best.items():
        reached = rate.reaches(targets)
        took = ["never", "-"] if reached is None else [f"{reached[0]:.1f}", f"{reached[1]:.3f}"]
        rows.append([label, f"{rate.lr:g}", str(len(rate.records)), f"{100 * rate.chosen:.2f} %", *took])
    return headers, rows


def _curve(records: Sequence[AccuracyRecord]) -> list[tuple[float, float, float]]:
    """Means over seeds, evaluation by evaluation."""
    return [
        (at, fmean(r.seconds[k] for r in records), fmean(r.test[k] for r in records))
        for k, at in enumerate(records[0].at)
    ]
