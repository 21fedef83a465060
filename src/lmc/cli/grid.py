"""``lmc bench grid``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from lmc.bench.cells import Book
from lmc.bench.grid import GridCell, GridRecord, GridRow, grid_cells, grid_rows, train_cell
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
from lmc.cli.speed import named
from lmc.cli.training import device_name
from lmc.errors import ConfigError
from lmc.report import grid_figure, save
from lmc.stores import check_device

CAPTION = (
    "exact training loss of the whole graph in evaluation mode, mean over seeds; "
    "objective: with batch statistics of the whole graph in the place of running ones; "
    "halo: mean over batches of (core + halo) / core; spread: largest minus smallest over seeds; "
    "(2): over so many seeds only; a / b: mean over seeds of the ratio on the same seed"
)


@dataclass(frozen=True)
class GridChoice:
    """The grid, as lists."""

    configs: str
    lrs: str
    norms: str
    seeds: int
    epochs: str
    methods: str
    limit: float | None = None
    summary_only: bool = False


def grid_command(data: DataChoice, choice: GridChoice, model: ModelChoice, where: RunChoice) -> None:
    """Train every cell that has no line yet, then the table and the figure of all lines."""
    out, pace = console(), Pace(choice.limit)
    folder = where.run_dir or Path("runs/bench") / file_name(f"grid-{named(data)}")
    book = Book(folder, "grid", GridCell, GridRecord)
    if choice.summary_only:
        _show(out, known(book))
        return
    device, configs, choices = check_device(where.device), _configs(choice), choices_of(choice.methods)
    methods = {config: methods_in(config, choices) for config in configs}
    norms, lrs = (
        parse_list(choice.norms, "--norms", norm_and_dropout),
        parse_list(choice.lrs, "--lrs", positive("--lrs")),
    )
    cells = grid_cells(configs, norms, lrs, [c.label for c in choices], whole("--seeds", str(choice.seeds)))
    graph = load_graph(data)
    layers = model.layers or 3
    book.open(
        {
            "graph": graph.name,
            "data": graph.checksum,
            "layers": layers,
            "hidden": model.hidden,
            "device": device.type,
            **{f"epochs of {config}": epochs for config, epochs in configs.items()},
        }
    )
    with matmul_precision(device) as precision:
        out.print(
            facts(
                [
                    ("graph", repr(graph)),
                    ("model", f"GCN, {layers} layers of {model.hidden}"),
                    ("device", f"{device_name(device)}, {precision} products"),
                    ("cells", done_of(book, cells)),
                    ("run folder", str(folder)),
                ]
            )
        )
        stand = Testbed(graph, methods, device, hidden=model.hidden, layers=layers)
        work_and_show(out, book, cells, lambda cell: train_cell(stand, cell), _said, lambda: _show(out, book), pace)


def _configs(choice: GridChoice) -> dict[str, int]:
    """Epochs by division."""
    names = config_names(choice.configs)
    epochs = [whole("--epochs", part.strip()) for part in choice.epochs.split(",")]
    if len(epochs) not in (1, len(names)):
        raise ConfigError(
            f"expected one number of epochs, or one for each of the {len(names)} configs (got {len(epochs)})"
        )
    return dict(zip(names, epochs * len(names) if len(epochs) == 1 else epochs, strict=True))


def norm_and_dropout(text: str) -> tuple[str, float]:
    """ "batch:0.5" -> ("batch", 0.5)."""
    name, mark, rate = text.partition(":")
    try:
        dropout = float(rate) if mark else 0.0
    except ValueError:
        dropout = -1.0
    if name not in ("none", "layer", "batch") or not 0 <= dropout < 1:
        raise ConfigError(f"expected norms as none, layer or batch, with a dropout below 1 as batch:0.5 (got {text!r})")
    return name, dropout


def _said(r: GridRecord) -> str:
    loss = "diverged" if r.loss is None else f"loss {r.loss:.4f}"
    return f"seed {r.seed}, {r.config}, {r.norm}:{r.dropout:g}, lr {r.lr:g}, {r.method}: {loss} in {r.seconds:.1f} s"


def _show(out: Console, book: Book[GridCell, GridRecord]) -> None:
    records = book.read()
    rows = grid_rows(records)
    if not rows:
        out.print("no cell is done yet")
        return
    labels = list(dict.fromkeys(r.method for r in records))
    headers, cells = table_of(rows, labels)
    out.print(rich_table(headers, cells, 3, CAPTION))
    markdown(book.folder / "grid.md", headers, cells, CAPTION)
    baseline = next(
        (found for name in ("backward-sgd", "gas") if (found := first_of(labels, name)) and _everywhere(rows, found)),
        None,
    )
    written = ["grid.jsonl", "grid.md"]
    if baseline is not None:
        _draw(book.folder, rows, labels, baseline)
        written.append("grid.png")
    out.print(f"{', '.join(written)} in {book.folder}", soft_wrap=True)


def _everywhere(rows: Sequence[GridRow], label: str) -> bool:
    return all(row.spread(label) is not None for row in rows)


def table_of(rows: Sequence[GridRow], labels: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of text."""
    gas, cmc, exact = (first_of(labels, name) for name in ("gas", "cmc", "backward-sgd"))
    headers = ["parts/clusters", "norm", "lr", "halo", *labels]
    headers += [f"spread of {gas}"] if gas else []
    headers += [f"{cmc} / {exact}"] if cmc and exact else []
    cells = []
    for row in rows:
        line = [row.config, row.norm_name, f"{row.lr:g}", "-" if row.halo_ratio is None else f"{row.halo_ratio:.2f}"]
        line += [_mean(row, label) for label in labels]
        if gas:
            spread = row.spread(gas)
            line.append("-" if spread is None or row.seeds(gas) < 2 else f"{spread.high - spread.low:.4f}")
        if cmc and exact:
            ratio = row.spread(cmc, relative_to=exact)
            line.append("-" if ratio is None else f"{ratio.mean:.4f}")
        cells.append(line)
    return headers, cells


def _mean(row: GridRow, label: str) -> str:
    if row.diverged(label):
        return f"{row.diverged(label)}/{row.seeds(label)} diverged"
    spread, missing = row.spread(label), row.seeds(label) < max(row.seeds(other) for other in row.lines)
    return "-" if spread is None else f"{spread.mean:.4f}" + f" ({row.seeds(label)})" * missing


def _draw(folder: Path, rows: Sequence[GridRow], labels: Sequence[str], baseline: str) -> None:
    by_norm: dict[str, list[GridRow]] = {}
    for row in rows:
        by_norm.setdefault(row.norm_name, []).append(row)
    panels = {
        norm: {label: [row.spread(label, relative_to=baseline) for row in those] for label in labels}
        for norm, those in by_norm.items()
    }
    settings = {norm: [f"{row.config}\n{row.lr:g}" for row in those] for norm, those in by_norm.items()}
    title = f"training loss over that of {baseline}"
    save(grid_figure(panels, settings, title, baseline), folder / "grid.png")
