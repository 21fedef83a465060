"""How long a method takes to an accuracy: trainings from scratch with several rates and seeds, evaluated on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from lmc.bench.testbed import Testbed, free, train_epochs
from lmc.train.evaluate import evaluate_problem


@dataclass(frozen=True)
class AccuracyCell:
    """One training, evaluated ``every`` so many epochs. ``config`` is parts/clusters, ``norm`` "none", "layer" or
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
    """What came of it, evaluation by evaluation, over the whole graph.

    Args:
        at: epochs done.
        seconds: of training steps until then; the recording of steps on a GPU is one of them.
        val, test: accuracy (micro-F1 for multi-label targets).
    """

    at: list[int]
    seconds: list[float]
    val: list[float]
    test: list[float]

    @property
    def chosen(self) -> float:
        """Test accuracy where that on the validation nodes is best."""
        return self.test[max(range(len(self.val)), key=self.val.__getitem__)]

    def reaches(self, target: float) -> tuple[int, float] | None:
        """Epochs and seconds until the test accuracy is first at the target."""
        return next(((e, s) for e, s, t in zip(self.at, self.seconds, self.test, strict=True) if t >= target), None)


def accuracy_cells(
    config: str,
    norm: tuple[str, float],
    lrs: Sequence[float],
    methods: Sequence[str],
    seeds: int,
    epochs: int,
    full_epochs: int,
) -> list[AccuracyCell]:
    """All cells, seed by seed. A full batch makes one step an epoch: it has ``full_epochs`` of them, and as many
    evaluations as the others."""
    return [
        AccuracyCell(config, *norm, lr, *((full_epochs, full_epochs // epochs) if full else (epochs, 1)), seed, method)
        for seed in range(seeds)
        for lr in lrs
        for method in methods
        for full in [method.partition(":")[0] == "full"]
    ]


def train_cell(stand: Testbed, cell: AccuracyCell) -> AccuracyRecord:
    """Train from scratch and evaluate on the way."""
    run = stand.bind(cell.config, cell.method, cell.seed, cell.norm, cell.dropout)
    at, seconds, scores = [], [], []
    for epoch, spent in train_epochs(run, cell.epochs, cell.lr):
        if epoch % cell.every == 0:
            at.append(epoch)
            seconds.append(spent)
            scores.append(evaluate_problem(run.problem, run.problem.placement.tier))
    val, test = [s["val"] for s in scores], [s["test"] for s in scores]
    record = AccuracyRecord(**asdict(cell), at=at, seconds=seconds, val=val, test=test)
    del run
    free(stand.device)
    return record


@dataclass(frozen=True)
class Rate:
    """A method with one learning rate, over seeds."""

    method: str
    lr: float
    records: Sequence[AccuracyRecord]

    @property
    def chosen(self) -> float:
        return fmean(r.chosen for r in self.records)

    def reaches(self, targets: Mapping[int, float]) -> tuple[float, float] | None:
        """Mean epochs and seconds to the target of every seed; None where one is not reached."""
        found = [r.reaches(targets[r.seed]) for r in self.records if r.seed in targets]
        reached = [pair for pair in found if pair is not None]
        if not reached or len(reached) < len(found):
            return None
        return fmean(e for e, _ in reached), fmean(s for _, s in reached)


def rates_of(records: Sequence[AccuracyRecord]) -> dict[str, list[Rate]]:
    """The records by method and rate."""
    lines: dict[tuple[str, float], list[AccuracyRecord]] = {}
    for record in records:
        lines.setdefault((record.method, record.lr), []).append(record)
    found: dict[str, list[Rate]] = {}
    for (method, lr), those in lines.items():
        found.setdefault(method, []).append(Rate(method, lr, those))
    return found


def targets_of(full: Sequence[Rate], within: float = 0.0) -> dict[int, float]:
    """The accuracy of the full batch on every seed, at its best rate, but for ``within``."""
    best = max(full, key=lambda rate: rate.chosen)
    return {record.seed: record.chosen - within for record in best.records}


def best_rate(rates: Sequence[Rate], targets: Mapping[int, float]) -> Rate:
    """The rate that reaches the targets in the fewest seconds; where none does, that with the best accuracy."""

    def rank(rate: Rate) -> tuple[bool, float]:
        reached = rate.reaches(targets)
        return (reached is None, -rate.chosen if reached is None else reached[1])

    return min(rates, key=rank)
