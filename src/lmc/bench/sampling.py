"""How much of a training step is sampling: batches are drawn and used in turns, each with its own clock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import chain, islice
from statistics import median

import torch

from lmc.bench.epoch import Setup, ready
from lmc.bench.measure import wait
from lmc.graph import Aggregation, Graph
from lmc.methods import Method


@dataclass(frozen=True)
class SamplingTiming:
    """Medians over the steps that were timed.

    Args:
        steps: steps in an epoch.
        rows: rows of the outermost layer, in the mean.
        entries: non-zeros of all operators of a batch, in the mean.
        sample_ms, step_ms: drawing a batch; forward, backward, optimiser.
        share: of sampling in both.
    """

    method: str
    steps: int
    rows: float
    entries: float
    sample_ms: float
    step_ms: float
    share: float


def time_sampling(
    label: str, graph: Graph, method: Method, setup: Setup, device: torch.device, steps: int = 20
) -> SamplingTiming:
    """Time ``steps`` steps of a GCN after ``setup.warmup`` more, over as many epochs as that takes."""
    run, optimizer = ready(method, graph, setup, device)
    epochs = -(-(steps + setup.warmup) // run.num_batches)
    batches = islice(chain.from_iterable(run.batches(k) for k in range(epochs)), steps + setup.warmup)
    draws, uses, rows, entries = [], [], [], []
    wait(device)
    start = time.perf_counter()
    for batch in batches:
        wait(device)
        drawn = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        run.accumulate(batch)
        optimizer.step()
        wait(device)
        used = time.perf_counter()
        draws.append(1000 * (drawn - start))
        uses.append(1000 * (used - drawn))
        rows.append(batch.num_core + batch.num_halo)
        entries.append(sum(op.forward.nnz for op in batch.operators if isinstance(op, Aggregation)))
        start = time.perf_counter()
    sample_ms, step_ms = median(draws[setup.warmup :]), median(uses[setup.warmup :])
    return SamplingTiming(
        label,
        run.num_batches,
        sum(rows) / len(rows),
        sum(entries) / len(entries),
        sample_ms,
        step_ms,
        sample_ms / (sample_ms + step_ms),
    )
