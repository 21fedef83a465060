"""Epochs and seconds until a method reaches an accuracy, with several learning rates and seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Annotated

import typer
from matplotlib.figure import Figure

from experiments.study import Rates, Seeds, TrainingStudy, parse_norm, train_epochs
from lmc.bench.epoch import free
from lmc.cli.console import TextTable
from lmc.cli.lists import at_least_one, first_of, methods_in, parse_configs, parse_numbers
from lmc.cli.study import Methods
from lmc.errors import ConfigError
from lmc.report.looks import draw_curve, name_lines, new_figure, plain, plain_decimals
from lmc.report.names import looks_of
from lmc.train.evaluate import evaluate_problem


@dataclass(frozen=True)
class AccuracyCell:
    """One training, evaluated after every ``every`` epochs. ``config`` is parts/clusters, ``norm`` "none", "layer" or
    "batch"."""

    config: str
    norm: str
    dropout: float
    lr: float
    epochs: int
    every: int
    seed: int
    method: str


@dataclass(frozen=True)
class AccuracyRecord(AccuracyCell):
    """The evaluations of one training, over the whole graph: accuracies (micro-F1 for multi-label targets)."""

    at: list[int]  # epochs done at each evaluation
    seconds: list[float]  # time of the training steps until then; it includes the recording of steps on a GPU
    val: list[float]
    test: list[float]

    @property
    def chosen(self) -> float:
        """Test accuracy at the best accuracy on the validation nodes."""
        return self.test[max(range(len(self.val)), key=self.val.__getitem__)]

    def reaches(self, target: float) -> tuple[int, float] | None:
        """Epochs and seconds until the test accuracy first reaches the target."""
        return next(((e, s) for e, s, t in zip(self.at, self.seconds, self.test, strict=True) if t >= target), None)


@dataclass(frozen=True, kw_only=True)
class Accuracy(TrainingStudy[AccuracyCell, AccuracyRecord]):
    """Measure epochs and seconds until a method is as accurate as the full batch, with the best learning rate of
    each."""

    name, cell, record = "accuracy", AccuracyCell, AccuracyRecord
    shared = ("layers", "hidden", "config", "norm", "epochs", "full_epochs")

    config: Annotated[str, typer.Option(help="parts/clusters.")] = "80/10"
    lrs: Rates = "1e-3,3e-3,1e-2"
    norm: Annotated[str, typer.Option(help="none, layer or batch, with its dropout.")] = "layer:0.5"
    seeds: Seeds = 3
    epochs: Annotated[int, typer.Option(help="Epochs of every method but the full batch.")] = 40
    full_epochs: Annotated[int, typer.Option(help="Epochs of the full batch, which makes one step in each.")] = 400
    methods: Methods = "full,cluster,gas,lmc,cmc"
    target: Annotated[float | None, typer.Option(help="Test accuracy to reach.", show_default="the full batch's")] = (
        None
    )
    within: Annotated[float, typer.Option(help="Percentage points that may be missing to the full batch's.")] = 0.1

    def __post_init__(self) -> None:
        if self.target is not None and not 0 < self.target < 1:
            raise ConfigError(f"expected an accuracy between 0 and 1 for --target (got {self.target:g})")
        if not 0 <= self.within < 100:
            raise ConfigError(f"expected percentage points from 0 on for --within (got {self.within:g})")

    def cells(self) -> list[AccuracyCell]:
        """All cells, seed by seed. A full batch makes one step in an epoch: it has ``full_epochs`` epochs, and as many
        evaluations as the other methods."""
        config, *others = parse_configs(self.config)
        if others:
            raise ConfigError(f"expected one division for --config (got {self.config!r})")
        epochs, full_epochs = at_least_one("--epochs", self.epochs), at_least_one("--full-epochs", self.full_epochs)
        if full_epochs % epochs:
            raise ConfigError(f"expected --full-epochs as a multiple of --epochs (got {full_epochs} and {epochs})")
        labels = list(methods_in(config, self.methods))
        if self.target is None and first_of(labels, "full") is None:
            raise ConfigError(f"expected full among --methods, or a --target (got {self.methods!r})")
        norm, lrs = parse_norm(self.norm), parse_numbers(self.lrs, "--lrs")
        full = (full_epochs, full_epochs // epochs)
        lengths = {label: full if label.partition(":")[0] == "full" else (epochs, 1) for label in labels}
        return [
            AccuracyCell(config, *norm, lr, *lengths[label], seed, label)
            for seed in range(at_least_one("--seeds", self.seeds))
            for lr in lrs
            for label in labels
        ]

    def measure(self, cell: AccuracyCell) -> list[AccuracyRecord]:
        method = methods_in(cell.config, self.methods)[cell.method]
        run = self.testbed.bind(method, cell.seed, cell.norm, cell.dropout)
        at, seconds, scores = [], [], []
        for epoch, spent in train_epochs(run, cell.epochs, cell.lr):
            if epoch % cell.every == 0:
                at.append(epoch)
                seconds.append(spent)
                scores.append(evaluate_problem(run.problem))
        val, test = [s["val"] for s in scores], [s["test"] for s in scores]
        del run
        free(self.on)
        return [AccuracyRecord(**asdict(cell), at=at, seconds=seconds, val=val, test=test)]

    def describe(self, record: AccuracyRecord) -> str:
        r = record
        return f"seed {r.seed}, lr {r.lr:g}, {r.method}: {100 * r.chosen:.2f} % in {r.seconds[-1]:.1f} s"

    def targets(self, records: Sequence[AccuracyRecord]) -> dict[int, float]:
        """The accuracy to reach, by seed."""
        if self.target is not None:
            return {r.seed: self.target for r in records}
        rates = rates_of(records)
        full = first_of(rates, "full")
        return {} if full is None else targets_of(rates[full], self.within / 100)

    def missing(self) -> str:
        """Without a full batch there is no target."""
        return super().missing() if self.target else "no full batch is trained yet, and there is no --target"

    def tables(self, records: Sequence[AccuracyRecord]) -> list[TextTable]:
        targets = self.targets(records)
        if not targets:
            return []
        rows = []
        for label, rates in rates_of(records).items():
            rate = best_rate(rates, targets)
            reached = rate.reaches(targets)
            took = ["never", "-"] if reached is None else [f"{reached[0]:.1f}", f"{reached[1]:.3f}"]
            rows.append([label, f"{rate.lr:g}", str(len(rate.records)), f"{100 * rate.chosen:.2f} %", *took])
        whose = f", {self.within:g} points below the full batch's on the same seed at its best rate"
        caption = (
            f"target: {100 * fmean(targets.values()):.2f} % test accuracy{'' if self.target else whose}; for every "
            "method the rate that reaches it in the fewest seconds of training steps, or the most accurate; mean over "
            "seeds; accuracy: on the test nodes, where that on the validation nodes is best"
        )
        return [TextTable(["method", "lr", "seeds", "accuracy", "epochs", "seconds"], rows, caption)]

    def figure(self, records: Sequence[AccuracyRecord]) -> Figure:
        """Accuracy over epochs and over seconds, at the best rate of every method."""
        targets = self.targets(records)
        best = {label: best_rate(rates, targets) for label, rates in rates_of(records).items()}
        return accuracy_figure({label: rate.curve() for label, rate in best.items()}, fmean(targets.values()))


@dataclass(frozen=True)
class Rate:
    """A method with one learning rate, over seeds."""

    method: str
    lr: float
    records: Sequence[AccuracyRecord]

    @property
    def chosen(self) -> float:
        """Mean test accuracy at the best validation accuracy."""
        return fmean(r.chosen for r in self.records)

    def reaches(self, targets: Mapping[int, float]) -> tuple[float, float] | None:
        """Mean epochs and seconds to the target of every seed; None where one is not reached."""
        found = [r.reaches(targets[r.seed]) for r in self.records if r.seed in targets]
        reached = [pair for pair in found if pair is not None]
        if not reached or len(reached) < len(found):
            return None
        return fmean(e for e, _ in reached), fmean(s for _, s in reached)

    def curve(self) -> list[tuple[float, float, float]]:
        """Epochs, seconds and accuracy of every evaluation, means over seeds."""
        return [
            (at, fmean(r.seconds[k] for r in self.records), fmean(r.test[k] for r in self.records))
            for k, at in enumerate(self.records[0].at)
        ]


def rates_of(records: Sequence[AccuracyRecord]) -> dict[str, list[Rate]]:
    """The records by method and rate."""
    found: dict[str, list[Rate]] = {}
    for method, lr in dict.fromkeys((r.method, r.lr) for r in records):
        those = [r for r in records if (r.method, r.lr) == (method, lr)]
        found.setdefault(method, []).append(Rate(method, lr, those))
    return found


def targets_of(full: Sequence[Rate], within: float = 0.0) -> dict[int, float]:
    """The accuracy of the full batch on every seed, at its best rate, minus ``within``."""
    best = max(full, key=lambda rate: rate.chosen)
    return {record.seed: record.chosen - within for record in best.records}


def best_rate(rates: Sequence[Rate], targets: Mapping[int, float]) -> Rate:
    """The rate that reaches the targets in the fewest seconds; where none does, the rate with the best accuracy."""

    def rank(rate: Rate) -> tuple[bool, float]:
        reached = rate.reaches(targets)
        return (reached is None, -rate.chosen if reached is None else reached[1])

    return min(rates, key=rank)


def accuracy_figure(curves: Mapping[str, Sequence[tuple[float, float, float]]], target: float) -> Figure:
    """Every method's accuracy over epochs and over seconds of training; the target is a horizontal line."""
    looks = looks_of(list(curves))
    figure = new_figure(11.2, 4.2, "Test accuracy in %, every method at its best learning rate")
    for k, (axes, name) in enumerate(zip(figure.subplots(1, 2, sharey=True), ("epochs", "seconds"), strict=True)):
        for label, curve in curves.items():
            draw_curve(axes, [(point[k], 100 * point[2]) for point in curve], looks[label])
        axes.axhline(100 * target, color="#888888", linewidth=0.9, linestyle=(0, (2, 2)))
        axes.set_xscale("log")
        plain_decimals(axes.xaxis)
        axes.set_xlabel(f"{name} of training, logarithmic", fontsize=10)
        plain(axes)
    shown = [100 * point[2] for curve in curves.values() for point in curve]
    axes.set_ylim(100 * target - 6, max(*shown, 100 * target) + 0.6)
    for k, axes in enumerate(figure.axes):
        name_lines(axes, {label: (curve[-1][k], 100 * curve[-1][2]) for label, curve in curves.items()}, looks)
    return figure
