"""How much of a training step is sampling: batches are drawn and used in turns, each with its own clock, and then as
training does it, with one clock for both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from statistics import median

import torch

from lmc.bench.epoch import Setup, ready
from lmc.bench.measure import wait
from lmc.graph import Aggregation, Batch, Graph
from lmc.methods import Method, Run


@dataclass(frozen=True)
class SamplingTiming:
    """Medians over the steps that were timed.

    Args:
        steps: steps in an epoch.
        rows: rows of the outermost layer, in the mean.
        entries: non-zeros of all operators of a batch, in the mean.
        sample_ms, step_ms: drawing a batch; forward, backward, optimiser; each alone, the device idle before.
        share: of sampling in both.
        training_ms: a step of training with its draw, in the mean, nothing waited for: on a GPU the next batch is drawn
            while a step runs.
    """

    method: str
    steps: int
    rows: float
    entries: float
    sample_ms: float
    step_ms: float
    share: float
    training_ms: float


def time_sampling(
    label: str, graph: Graph, method: Method, setup: Setup, device: torch.device, steps: int = 20
) -> SamplingTiming:
    """Time ``steps`` steps of a GCN after ``setup.warmup`` more, over as many epochs as that takes; twice."""
    run, optimizer = ready(method, graph, setup, device)
    number = steps + setup.warmup
    draws, uses, rows, entries = [], [], [], []
    wait(device)
    start = time.perf_counter()
    for batch in _first(run, number, in_turn=True):
        wait(device)
        drawn = time.perf_counter()
        _use(run, batch, optimizer)
        wait(device)
        used = time.perf_counter()
        draws.append(1000 * (drawn - start))
        uses.append(1000 * (used - drawn))
        rows.append(batch.num_core + batch.num_halo)
        entries.append(sum(op.forward.nnz for op in batch.operators if isinstance(op, Aggregation)))
        start = time.perf_counter()
    for done, batch in enumerate(_first(run, number, in_turn=False)):
        if done == setup.warmup:
            wait(device)
            start = time.perf_counter()
        _use(run, batch, optimizer)
    wait(device)
    training_ms = 1000 * (time.perf_counter() - start) / steps
    sample_ms, step_ms = median(draws[setup.warmup :]), median(uses[setup.warmup :])
    return SamplingTiming(
        label,
        run.num_batches,
        sum(rows) / len(rows),
        sum(entries) / len(entries),
        sample_ms,
        step_ms,
        sample_ms / (sample_ms + step_ms),
        training_ms,
    )


def _first(run: Run, number: int, in_turn: bool) -> Iterator[Batch]:
    """So many batches; ``in_turn`` each is drawn when it is asked for, never beside a step."""
    epochs = range(-(-number // run.num_batches))
    batches = (run.method.draw(run, k, 0) if in_turn else run.batches(k) for k in epochs)
    return islice(chain.from_iterable(batches), number)


def _use(run: Run, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=True)
    run.accumulate(batch)
    optimizer.step()
