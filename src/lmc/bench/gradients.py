"""Gradient errors along training: how far every method's batch gradients are from backward SGD's, graph by graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from lmc.bench.compare import measure
from lmc.bench.testbed import Testbed, free, train_epochs
from lmc.diagnostics import GradientProbe


@dataclass(frozen=True)
class GradientCell:
    """One training with measurements on its way. ``dataset`` is what the user calls it."""

    dataset: str
    config: str
    lr: float
    seed: int
    method: str


@dataclass(frozen=True)
class GradientRecord(GradientCell):
    """What came of it.

    Args:
        error: relative error against backward SGD, mean over parameters, batches and measurements; None where it is
            not finite.
        errors: the same by epoch.
        diverged: a measurement is not finite.
    """

    error: float | None
    errors: Mapping[str, float | None]
    diverged: bool


def gradient_cells(
    divisions: Mapping[str, Sequence[str]], lrs: Sequence[float], methods: Sequence[str], seeds: int
) -> list[GradientCell]:
    """All cells, all graphs for each seed in turn; ``divisions`` of every graph."""
    return [
        GradientCell(dataset, config, lr, seed, method)
        for seed in range(seeds)
        for dataset, configs in divisions.items()
        for config in configs
        for lr in lrs
        for method in methods
    ]


def measure_cell(stand: Testbed, cell: GradientCell, epochs: int, every: int) -> GradientRecord:
    """Train from scratch, without norm and dropout, and measure after every ``every`` epochs."""
    run = stand.bind(cell.config, cell.method, cell.seed)
    probe = GradientProbe(run)
    errors = {e: measure(probe, run, e).mean for e, _ in train_epochs(run, epochs, cell.lr) if e % every == 0}
    mean = fmean(errors.values())
    record = GradientRecord(
        **asdict(cell),
        error=mean if math.isfinite(mean) else None,
        errors={str(e): error if math.isfinite(error) else None for e, error in errors.items()},
        diverged=not math.isfinite(mean),
    )
    del run, probe
    free(stand.device)
    return record


@dataclass(frozen=True)
class GradientRow:
    """The errors of one graph, division and rate: the mean over seeds by method, None where a seed diverged."""

    dataset: str
    config: str
    lr: float
    errors: Mapping[str, float | None]

    @property
    def diverged(self) -> list[str]:
        """The methods of which a seed diverged."""
        return [label for label, error in self.errors.items() if error is None]

    @property
    def best(self) -> str | None:
        """The label of the best LMC4Conv."""
        tried = {k: v for k, v in self.errors.items() if k.partition(":")[0] == "lmc" and v is not None}
        return min(tried, key=lambda label: tried[label], default=None)

    def over_best(self, method: str) -> float | None:
        """A method's error over that of the best LMC4Conv."""
        mine, best = self.errors.get(method), self.errors[self.best] if self.best else None
        return mine / best if mine is not None and best else None


def gradient_rows(records: Sequence[GradientRecord]) -> Iterator[GradientRow]:
    """One row per graph, division and rate, in the order of the lines."""
    found: dict[tuple[str, str, float], dict[str, list[float | None]]] = {}
    for r in records:
        found.setdefault((r.dataset, r.config, r.lr), {}).setdefault(r.method, []).append(r.error)
    for (dataset, config, lr), by_method in found.items():
        means = {method: _mean(errors) for method, errors in by_method.items()}
        yield GradientRow(dataset, config, lr, means)


def _mean(errors: Sequence[float | None]) -> float | None:
    finite = [e for e in errors if e is not None]
    return fmean(finite) if len(finite) == len(errors) else None
