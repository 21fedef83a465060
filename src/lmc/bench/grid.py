"""Training losses over a grid of settings: every method from scratch in every division, norm and rate, for several
seeds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from lmc.bench.testbed import Testbed, free, train_epochs
from lmc.engine.exact import chunks_of, exact_logits, exact_states
from lmc.methods import ClusterMethod, Run
from lmc.models import BatchNorm
from lmc.train.evaluate import evaluate_problem


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
    """What came of it.

    Args:
        loss: the exact training loss of the whole graph in evaluation mode; None where it is not finite.
        objective: the same with the batch statistics of the whole graph in the place of running ones: what full-batch
            training minimises. Without batch norm, the loss again.
        test: accuracy (micro-F1 for multi-label targets) of the same pass on the test nodes.
        seconds: of training steps.
        halo_ratio: mean over batches of (core + 1-hop halo) / core; None for a method that does not divide the graph.
        diverged: the loss is not finite.
    """

    loss: float | None
    objective: float | None
    test: float
    seconds: float
    halo_ratio: float | None
    diverged: bool


class Spread(NamedTuple):
    """Losses over seeds."""

    mean: float
    low: float
    high: float


def grid_cells(
    configs: Mapping[str, int],
    norms: Sequence[tuple[str, float]],
    lrs: Sequence[float],
    methods: Sequence[str],
    seeds: int,
) -> list[GridCell]:
    """All cells, a whole grid for each seed in turn, so that an interrupted run has whole grids.

    Args:
        configs: epochs by division.
        norms: each with its dropout.
    """
    return [
        GridCell(config, norm, dropout, lr, epochs, seed, method)
        for seed in range(seeds)
        for config, epochs in configs.items()
        for norm, dropout in norms
        for lr in lrs
        for method in methods
    ]


def train_cell(stand: Testbed, cell: GridCell) -> GridRecord:
    """Train from scratch and measure."""
    run = stand.bind(cell.config, cell.method, cell.seed, cell.norm, cell.dropout)
    ((_, seconds),) = deque(train_epochs(run, cell.epochs, cell.lr), maxlen=1)
    loss, test = exact_loss(run), evaluate_problem(run.problem, run.problem.placement.tier)["test"]
    objective = exact_loss(run, whole_graph=True) if cell.norm == "batch" else loss
    record = GridRecord(
        **asdict(cell),
        loss=loss if math.isfinite(loss) else None,
        objective=objective if math.isfinite(objective) else None,
        test=test,
        seconds=seconds,
        halo_ratio=halo_ratio(run),
        diverged=not math.isfinite(loss),
    )
    del run
    free(stand.device)
    return record


def exact_loss(run: Run, whole_graph: bool = False) -> float:
    """L of the whole graph at the current parameters, in evaluation mode: no message is missing or old.

    With ``whole_graph``, every batch norm is given the statistics of the whole graph first, for good.
    """
    problem, graph, chunks = run.problem, run.graph, chunks_of(run.problem)
    for l, table in exact_states(problem, chunks, lambda _, width: run.table(width)):
        activation = problem.model.layer(l).activation
        if whole_graph and activation is not None and isinstance(activation.norm, BatchNorm):
            _take_statistics(activation.norm, table.data())
        last = table
    parts = [
        problem.row_losses(logits, graph.y[rows], graph.train[rows]).sum()
        for rows, logits in exact_logits(problem, chunks, last)
    ]
    return float(sum(parts))


def _take_statistics(norm: BatchNorm, states: Tensor) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    var, mean = torch.var_mean(states, 0, correction=0)
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(var)


def halo_ratio(run: Run) -> float | None:
    """Mean over the first epoch's batches of (core + 1-hop halo) / core, whatever of it the method reads."""
    if not isinstance(run.method, ClusterMethod):
        return None
    ratios = []
    for parts in run.clusters.epoch(0):
        rows = run.clusters.core(parts)
        core = torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        core = core.to(run.problem.device)
        ratios.append(1 + run.problem.blocks.halo(core).numel() / core.numel())
    return fmean(ratios)


@dataclass(frozen=True)
class GridRow:
    """The lines of one division, norm and rate, by method and seed."""

    config: str
    norm: str
    dropout: float
    lr: float
    lines: Mapping[str, Mapping[int, GridRecord]]
    objective: bool = False
    """Whether the losses are those of the objective, with statistics of the whole graph."""

    def _loss(self, record: GridRecord) -> float | None:
        return record.objective if self.objective else record.loss

    @property
    def norm_name(self) -> str:
        name = f"{self.norm}:{self.dropout:g}" if self.dropout else self.norm
        return f"{name}, objective" if self.objective else name

    @property
    def halo_ratio(self) -> float | None:
        known = [r.halo_ratio for seeds in self.lines.values() for r in seeds.values() if r.halo_ratio is not None]
        return fmean(known) if known else None

    def seeds(self, method: str) -> int:
        """How many seeds were trained."""
        return len(self.lines.get(method, {}))

    def diverged(self, method: str) -> int:
        """How many seeds diverged."""
        return sum(r.diverged for r in self.lines.get(method, {}).values())

    def spread(self, method: str, relative_to: str | None = None) -> Spread | None:
        """Losses over seeds, or each over another method's loss on the same seed: what a seed does to all methods
        alike falls out. None where there are none, or one diverged."""
        lines = self.lines.get(method, {})
        if relative_to is None:
            found = [self._loss(r) for r in lines.values()]
        else:
            base = self.lines.get(relative_to, {})
            found = [_ratio(self._loss(r), self._loss(base[seed])) for seed, r in lines.items() if seed in base]
        losses = [loss for loss in found if loss is not None]
        if not losses or len(losses) < len(found):
            return None
        return Spread(fmean(losses), min(losses), max(losses))


def _ratio(loss: float | None, base: float | None) -> float | None:
    return loss / base if loss is not None and base else None


def grid_rows(records: Sequence[GridRecord]) -> list[GridRow]:
    """One row per division, norm and rate, in the order of the lines; then, for batch norm, those of the objective."""
    found: dict[tuple[str, str, float, float], dict[str, dict[int, GridRecord]]] = {}
    for r in records:
        lines = found.setdefault((r.config, r.norm, r.dropout, r.lr), {})
        lines.setdefault(r.method, {})[r.seed] = r
    rows = [GridRow(*setting, by_method) for setting, by_method in found.items()]
    return rows + [replace(row, objective=True) for row in rows if row.norm == "batch"]
