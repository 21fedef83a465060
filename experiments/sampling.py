"""The share of sampling in a training step.

Batches are drawn and used in turn, each timed alone, and then as training does it, timed together.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from statistics import fmean, median
from typing import Annotated

import torch
import typer

from lmc.bench.epoch import Setup, free, ready, wait
from lmc.cli.console import TextTable, number, percent
from lmc.cli.lists import at_least_one
from lmc.cli.spec import parse_method, parse_methods
from lmc.cli.study import Dropout, GraphStudy, Hidden, Layers, Methods, Seed
from lmc.engine import Run
from lmc.graph import Aggregation, Batch, Graph
from lmc.methods import Method
from lmc.train import train_step

CAPTION = (
    "medians over steps; sampling, step: each alone, the device idle before; share of sampling: sampling / (sampling + "
    "step); training: a step with its draw as in training, where a GPU draws the next batch during a step"
)


@dataclass(frozen=True)
class SamplingCell:
    """The spec of a method."""

    method: str


@dataclass(frozen=True)
class SamplingRecord(SamplingCell):
    """Medians over the timed steps. Drawing and using a batch are timed alone, the device idle before."""

    steps: int  # in an epoch
    rows: float  # of the outermost layer, in the mean
    entries: float  # non-zeros of all operators of a batch, in the mean
    sample_ms: float  # drawing a batch
    step_ms: float  # forward, backward, optimiser
    share: float  # of sampling in both
    training_ms: float  # a step with its draw without waiting: on a GPU the next batch is drawn while a step runs


@dataclass(frozen=True, kw_only=True)
class Sampling(GraphStudy[SamplingCell, SamplingRecord]):
    """Time the drawing of batches and the steps that use them: the share of sampling."""

    name, cell, record = "sampling", SamplingCell, SamplingRecord
    shared = ("batch_size", "hidden", "layers", "dropout", "steps", "warmup", "seed")

    methods: Methods = "graphsage:fanouts=10/10/5"
    batch_size: Annotated[int, typer.Option(help="Training nodes from which a batch grows.")] = 1024
    hidden: Hidden = 256
    layers: Layers = 3
    dropout: Dropout = 0.5
    steps: Annotated[int, typer.Option(help="Steps to take the median of.")] = 20
    warmup: Annotated[int, typer.Option(help="Steps before them.")] = 3
    seed: Seed = 0

    @cached_property
    def chosen(self) -> dict[str, Method]:
        """The methods by spec."""
        return {label: parse_method(label, batch_size=self.batch_size) for label in parse_methods(self.methods)}

    def cells(self) -> list[SamplingCell]:
        at_least_one("--steps", self.steps)
        return [SamplingCell(label) for label in self.chosen]

    def facts(self) -> list[tuple[str, str]]:
        model = f"GCN, {self.layers} layers of {self.hidden}, dropout {self.dropout:g}"
        return [*super().facts(), ("model", model), ("time", f"median of {self.steps} steps after {self.warmup}")]

    def measure(self, cell: SamplingCell) -> list[SamplingRecord]:
        setup = Setup(self.hidden, self.layers, self.dropout, seed=self.seed, warmup=self.warmup)
        record = time_sampling(cell, self.graph, self.chosen[cell.method], setup, self.on, self.steps)
        free(self.on)
        return [record]

    def describe(self, record: SamplingRecord) -> str:
        return f"{record.method}: {percent(record.share)} of a step is sampling"

    def tables(self, records: Sequence[SamplingRecord]) -> list[TextTable]:
        headers = ["method", "steps an epoch", "rows", "entries", "sampling ms", "step ms"]
        rows = [
            [r.method, str(r.steps), number(r.rows, 0), number(r.entries, 0), number(r.sample_ms, 2),
             number(r.step_ms, 2), percent(r.share), number(r.training_ms, 2)]
            for r in records
        ]  # fmt: skip
        return [TextTable([*headers, "share of sampling", "training ms"], rows, CAPTION)]


def time_sampling(
    cell: SamplingCell, graph: Graph, method: Method, setup: Setup, device: torch.device, steps: int = 20
) -> SamplingRecord:
    """Time ``steps`` steps of a GCN after ``setup.warmup`` more, over as many epochs as that takes; twice."""
    run, optimizer = ready(method, graph, setup, device)
    count = steps + setup.warmup
    draws, uses, rows, entries = [], [], [], []
    wait(device)
    start = time.perf_counter()
    for batch in _first(run, count, in_turn=True):
        wait(device)
        drawn = time.perf_counter()
        train_step(run, optimizer, batch)
        wait(device)
        used = time.perf_counter()
        draws.append(1000 * (drawn - start))
        uses.append(1000 * (used - drawn))
        rows.append(batch.num_core + batch.num_halo)
        entries.append(sum(op.forward.nnz for op in batch.operators if isinstance(op, Aggregation)))
        start = time.perf_counter()
    for done, batch in enumerate(_first(run, count, in_turn=False)):
        if done == setup.warmup:
            wait(device)
            start = time.perf_counter()
        train_step(run, optimizer, batch)
    wait(device)
    training_ms = 1000 * (time.perf_counter() - start) / steps
    sample_ms, step_ms = median(draws[setup.warmup :]), median(uses[setup.warmup :])
    share = sample_ms / (sample_ms + step_ms)
    sizes = run.num_batches, fmean(rows), fmean(entries)
    return SamplingRecord(cell.method, *sizes, sample_ms, step_ms, share, training_ms)


def _first(run: Run, count: int, in_turn: bool) -> Iterator[Batch]:
    """So many batches; ``in_turn`` each is drawn when it is needed, never during a step."""
    epochs = range(-(-count // run.num_batches))
    batches = (run.source.epoch(k, 0) if in_turn else run.batches(k) for k in epochs)
    return islice(chain.from_iterable(batches), count)
