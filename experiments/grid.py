"""Training losses over a grid of settings: parts/clusters, norms, learning rates, methods and seeds."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Annotated, Any, NamedTuple

import torch
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.study import Rates, Seeds, TrainingStudy, parse_norm, train_epochs
from lmc.bench.epoch import free
from lmc.cli.console import TextTable, number
from lmc.cli.lists import at_least_one, first_of, methods_in, parse_configs, parse_list, parse_numbers
from lmc.cli.study import Configs, Methods
from lmc.engine import Run
from lmc.engine.exact import chunks_of, exact_logits, exact_states
from lmc.engine.problem import losses_of
from lmc.errors import ConfigError
from lmc.methods import ClusterMethod
from lmc.models import BatchNorm
from lmc.report.looks import MARKERS, entitle, legend_below, new_figure, plain
from lmc.report.names import looks_of
from lmc.train.evaluate import evaluate_problem

CAPTION = (
    "exact training loss of the whole graph in evaluation mode, mean over seeds; "
    "objective: with batch statistics of the whole graph in the place of running ones; "
    "halo: mean over batches of (core + halo) / core; spread: largest minus smallest over seeds; "
    "(2): over so many seeds only; a / b: mean over seeds of the ratio on the same seed"
)
CEILING = 1.3
"""The largest ratio that a panel shows: one method that fails must not flatten all others into a line."""


@dataclass(frozen=True)
class GridCell:
    """One training. ``config`` is parts/clusters, ``norm`` "none", "layer" or "batch"."""

    config: str
    norm: str
    dropout: float
    lr: float
    epochs: int
    seed: int
    method: str


@dataclass(frozen=True)
class GridRecord(GridCell):
    """The results of one training.

    ``objective`` is the loss with the batch statistics of the whole graph in the place of running ones, which is what
    full-batch training minimises. Without batch norm it equals the loss.
    """

    loss: float | None  # exact training loss of the whole graph in evaluation mode; None where it is not finite
    objective: float | None
    test: float  # accuracy (micro-F1 for multi-label targets) of the same pass on the test nodes
    seconds: float  # time of the training steps
    halo_ratio: float | None  # mean over batches of (core + 1-hop halo) / core; None for a method without parts
    diverged: bool  # whether the loss is not finite


@dataclass(frozen=True, kw_only=True)
class Grid(TrainingStudy[GridCell, GridRecord]):
    """Train every method from scratch over a grid of settings and compare the exact training losses."""

    name, cell, record = "grid", GridCell, GridRecord

    configs: Configs = "80/40,80/10,80/1,800/10,320/4"
    lrs: Rates = "1e-3,3e-3,1e-2"
    norms: Annotated[str, typer.Option(help="none, layer or batch, each with its dropout, comma-separated.")] = (
        "none,batch:0.5,layer:0.5"
    )
    seeds: Seeds = 3
    epochs: Annotated[str, typer.Option(help="One number for each of --configs, or one for all.")] = "24,16,5,5,5"
    methods: Methods = "backward-sgd,gas,lmc,lmc:alpha=1:score=1,cmc"

    def cells(self) -> list[GridCell]:
        """All cells, a whole grid for each seed in turn, so that an interrupted study has whole grids."""
        epochs = self.epochs_of_configs()
        labels = {label: None for config in epochs for label in methods_in(config, self.methods)}
        norms = parse_list(self.norms, "--norms", parse_norm)
        lrs = parse_numbers(self.lrs, "--lrs")
        return [
            GridCell(config, norm, dropout, lr, epochs[config], seed, method)
            for seed in range(at_least_one("--seeds", self.seeds))
            for config in epochs
            for norm, dropout in norms
            for lr in lrs
            for method in labels
        ]

    def epochs_of_configs(self) -> dict[str, int]:
        """The number of epochs by parts/clusters."""
        names = parse_configs(self.configs)
        epochs = [at_least_one("--epochs", part.strip()) for part in self.epochs.split(",")]
        if len(epochs) not in (1, len(names)):
            raise ConfigError(
                f"expected one number of epochs, or one for each of the {len(names)} configs (got {len(epochs)})"
            )
        return dict(zip(names, epochs * len(names) if len(epochs) == 1 else epochs, strict=True))

    def settings(self) -> dict[str, Any]:
        return super().settings() | {f"epochs of {k}": epochs for k, epochs in self.epochs_of_configs().items()}

    def measure(self, cell: GridCell) -> list[GridRecord]:
        method = methods_in(cell.config, self.methods)[cell.method]
        run = self.testbed.bind(method, cell.seed, cell.norm, cell.dropout)
        ((_, seconds),) = deque(train_epochs(run, cell.epochs, cell.lr), maxlen=1)
        loss, test = exact_loss(run), evaluate_problem(run.problem)["test"]
        objective = exact_loss(run, whole_graph=True) if cell.norm == "batch" else loss
        finite = [value if math.isfinite(value) else None for value in (loss, objective)]
        record = GridRecord(
            **asdict(cell), loss=finite[0], objective=finite[1], test=test, seconds=seconds,
            halo_ratio=halo_ratio(run), diverged=finite[0] is None,
        )  # fmt: skip
        del run
        free(self.on)
        return [record]

    def describe(self, record: GridRecord) -> str:
        r, loss = record, "diverged" if record.loss is None else f"loss {record.loss:.4f}"
        setting = f"{r.config}, {r.norm}:{r.dropout:g}, lr {r.lr:g}"
        return f"seed {r.seed}, {setting}, {r.method}: {loss} in {r.seconds:.1f} s"

    def tables(self, records: Sequence[GridRecord]) -> list[TextTable]:
        rows, labels = grid_rows(records), list(dict.fromkeys(r.method for r in records))
        gas, cmc, exact = (first_of(labels, name) for name in ("gas", "cmc", "backward-sgd"))
        headers = ["parts/clusters", "norm", "lr", "halo", *labels]
        headers += [f"spread of {gas}"] if gas else []
        headers += [f"{cmc} / {exact}"] if cmc and exact else []
        lines = []
        for row in rows:
            line = [row.config, row.norm_name, f"{row.lr:g}", number(row.halo_ratio, 2)]
            line += [row.mean_text(label) for label in labels]
            line += [row.range_text(gas)] if gas else []
            line += [row.ratio_text(cmc, exact)] if cmc and exact else []
            lines.append(line)
        return [TextTable(headers, lines, CAPTION, named=3)]

    def figure(self, records: Sequence[GridRecord]) -> Figure | None:
        """Losses relative to backward SGD, or to GAS where backward SGD was not trained everywhere."""
        rows, labels = grid_rows(records), list(dict.fromkeys(r.method for r in records))
        candidates = [first_of(labels, name) for name in ("backward-sgd", "gas")]
        baseline = next((c for c in candidates if c and all(row.spread(c) is not None for row in rows)), None)
        return None if baseline is None else grid_figure(rows, labels, baseline)


def exact_loss(run: Run, whole_graph: bool = False) -> float:
    """L of the whole graph at the current parameters, in evaluation mode: no message is missing or old.

    With ``whole_graph``, every batch norm first takes the statistics of the whole graph, and keeps them.
    """
    problem, chunks = run.problem, chunks_of(run.problem)
    for l, table in exact_states(problem, chunks, lambda _, width: run.problem.table(width)):
        activation = problem.model.layer(l).activation
        if whole_graph and activation is not None and isinstance(activation.norm, BatchNorm):
            _take_statistics(activation.norm, table.data())
        last = table
    parts = [losses_of(problem, logits, rows).sum() for rows, logits in exact_logits(problem, chunks, [last])]
    return float(sum(parts))


def _take_statistics(norm: BatchNorm, states: Tensor) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    var, mean = torch.var_mean(states, 0, correction=0)
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(var)


def halo_ratio(run: Run) -> float | None:
    """Mean over the first epoch's batches of (core + 1-hop halo) / core, whatever of the halo the method reads."""
    if not isinstance(run.method, ClusterMethod):
        return None
    ratios = []
    for parts in run.clusters.epoch(0):
        rows = run.clusters.core(parts)
        core = torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        core = core.to(run.problem.device)
        ratios.append(1 + run.problem.blocks.halo(core).numel() / core.numel())
    return fmean(ratios)


class Spread(NamedTuple):
    """Losses over seeds."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class GridRow:
    """The lines of one configuration, norm and rate, by method and seed."""

    config: str
    norm: str
    dropout: float
    lr: float
    lines: Mapping[str, Mapping[int, GridRecord]]
    objective: bool = False  # whether losses are those of the objective, with statistics of the whole graph

    def _losses(self, method: str) -> dict[int, float | None]:
        """The losses of a method by seed."""
        lines = self.lines.get(method, {})
        return {seed: r.objective if self.objective else r.loss for seed, r in lines.items()}

    @property
    def norm_name(self) -> str:
        name = f"{self.norm}:{self.dropout:g}" if self.dropout else self.norm
        return f"{name}, objective" if self.objective else name

    @property
    def halo_ratio(self) -> float | None:
        known = [r.halo_ratio for seeds in self.lines.values() for r in seeds.values() if r.halo_ratio is not None]
        return fmean(known) if known else None

    def seeds(self, method: str) -> int:
        return len(self.lines.get(method, {}))

    def diverged(self, method: str) -> int:
        return sum(r.diverged for r in self.lines.get(method, {}).values())

    def spread(self, method: str, relative_to: str | None = None) -> Spread | None:
        """Losses over seeds, or ratios to another method's loss on the same seed, in which the effect of the seed on
        all methods cancels. None where there are none, or one diverged."""
        found = self._losses(method)
        if relative_to is not None:
            base = self._losses(relative_to)
            pairs = {seed: (loss, base[seed]) for seed, loss in found.items() if seed in base}
            found = {seed: a / b if a is not None and b else None for seed, (a, b) in pairs.items()}
        losses = [loss for loss in found.values() if loss is not None]
        if not losses or len(losses) < len(found):
            return None
        return Spread(fmean(losses), min(losses), max(losses))

    def mean_text(self, method: str) -> str:
        """The mean loss in words."""
        if self.diverged(method):
            return f"{self.diverged(method)}/{self.seeds(method)} diverged"
        spread, missing = self.spread(method), self.seeds(method) < max(self.seeds(other) for other in self.lines)
        return "-" if spread is None else f"{spread.mean:.4f}" + f" ({self.seeds(method)})" * missing

    def range_text(self, method: str) -> str:
        """The largest minus the smallest loss over seeds."""
        spread = self.spread(method)
        return "-" if spread is None or self.seeds(method) < 2 else f"{spread.high - spread.low:.4f}"

    def ratio_text(self, method: str, base: str) -> str:
        """The mean ratio of two methods' losses on the same seed."""
        spread = self.spread(method, relative_to=base)
        return number(None if spread is None else spread.mean, 4)


def grid_rows(records: Sequence[GridRecord]) -> list[GridRow]:
    """One row per configuration, norm and rate, in the order of the lines; then, for batch norm, the objective's."""
    found: dict[tuple[str, str, float, float], dict[str, dict[int, GridRecord]]] = {}
    for r in records:
        lines = found.setdefault((r.config, r.norm, r.dropout, r.lr), {})
        lines.setdefault(r.method, {})[r.seed] = r
    rows = [GridRow(*setting, by_method) for setting, by_method in found.items()]
    return rows + [replace(row, objective=True) for row in rows if row.norm == "batch"]


def grid_figure(rows: Sequence[GridRow], labels: Sequence[str], baseline: str) -> Figure:
    """One panel for each norm: a marker for each method and setting, with a bar from the lowest to the highest seed."""
    panels: dict[str, list[GridRow]] = {}
    for row in rows:
        panels.setdefault(row.norm_name, []).append(row)
    looks = looks_of(labels)
    width = max(6.5, 1.5 + 0.16 * max(map(len, panels.values())) * max(3, len(labels)))
    figure = new_figure(width, 1.6 + 3.0 * len(panels), f"Training loss divided by that of {looks[baseline].name}")
    for place, (norm, those) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(len(panels), 1, place)
        for k, label in enumerate(labels):
            shift = 0.7 * (k / max(1, len(labels) - 1) - 0.5)
            points = [row.spread(label, relative_to=baseline) for row in those]
            _draw(axes, points, shift, looks[label].colour, MARKERS[k % len(MARKERS)])
        _label(axes, norm, [f"{row.config}\n{row.lr:g}" for row in those], looks[baseline].name)
    legend_below(figure, looks, lines=False, markers=True, columns=max(1, min(len(labels), int(width / 1.9))))
    return figure


def _draw(axes: Axes, points: Sequence[Spread | None], shift: float, colour: str, marker: str) -> None:
    for i, point in enumerate(points):
        if point is None:
            continue
        mean, low, high = point
        if mean > CEILING:
            axes.annotate(
                f"{mean:.3g}", (i + shift, 1.0), xycoords=("data", "axes fraction"), ha="center", va="top",
                rotation=90, fontsize=7.5, color=colour,
            )  # fmt: skip
            continue
        axes.vlines(i + shift, low, min(high, CEILING), color=colour, linewidth=1.6, alpha=0.6)
        axes.plot([i + shift], [mean], color=colour, marker=marker, markersize=5, linestyle="")


def _label(axes: Axes, norm: str, names: Sequence[str], baseline: str) -> None:
    plain(axes)
    words = norm.replace("none", "no norm").replace(":", " norm, dropout ")
    entitle(axes, words)
    axes.set_ylabel(f"loss / loss of {baseline}", fontsize=10)
    axes.set_xlabel("parts / parts in a batch, and the learning rate below", fontsize=9)
    axes.axhline(1.0, color="#4d4d4d", linewidth=0.9, zorder=0)
    for i in range(1, len(names)):
        axes.axvline(i - 0.5, color="#eeeeee", linewidth=0.8, zorder=0)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xticks(range(len(names)), names, fontsize=8.5)
