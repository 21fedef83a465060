"""What a method keeps and what it costs: messages and memory (the paper's memory table)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from lmc.graph import CSR, Aggregation, Batch
from lmc.methods import Problem, Run


@dataclass(frozen=True)
class Messages:
    """Share of the full graph's messages (self-loops included) that reach core rows in one epoch."""

    forward: float
    backward: float


def messages_kept(run: Run) -> Messages:
    """sum over the batches of ||A_batch||_0 / ||A||_0, for the forward and for the backward pass."""
    forward = backward = 0
    for batch in run.batches(run.epoch):
        operator = batch.operators[-1]
        if not isinstance(operator, Aggregation):  # P X alone, computed on the whole graph: nothing is missing
            run.epoch -= 1
            return Messages(1.0, 1.0)
        forward += _rows(operator.forward, batch)
        backward += _rows(operator.backward, batch)
    run.epoch -= 1
    return Messages(forward / run.problem.P.nnz, backward / run.problem.P.nnz)


def _rows(matrix: CSR, batch: Batch) -> int:
    return int(matrix.indptr[batch.num_core])


@dataclass(frozen=True)
class Memory:
    """Bytes by purpose. ``step`` is the measured peak of one step beyond what lives between steps.

    ``tiers`` holds the histories, and features that are not on the device, by tier; ``graph`` the structure, targets,
    and features on the device; ``parameters`` the model's.
    """

    step: int
    tiers: dict[str, int]
    graph: int
    parameters: int


def memory(run: Run, batch: Batch) -> Memory:
    """Memory of a run, and the peak of one step on ``batch``; histories and gradients stay as they are."""
    problem = run.problem
    return Memory(
        step=peak_bytes(lambda: run.gradient(batch), problem.device),
        tiers=_tiers(run),
        graph=sum(_bytes(t) for t in (problem.P, problem.graph.adj, problem.graph.y, *_features(problem))),
        parameters=sum(_bytes(p) for p in problem.model.parameters()),
    )


def _tiers(run: Run) -> dict[str, int]:
    found: dict[str, int] = {}
    stored = run.problem.stored
    for table in [*run.all_tables(), *([] if stored is None else [stored])]:
        found[table.tier] = found.get(table.tier, 0) + _bytes(table.data())
    return found


def _features(problem: Problem) -> list[torch.Tensor | CSR]:
    return [problem.X] if isinstance(problem.X, torch.Tensor | CSR) else []


def peak_bytes(step: Callable[[], object], device: torch.device) -> int:
    """The largest sum of live allocations while ``step()`` runs, beyond what was there before it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def _bytes(value: torch.Tensor | CSR) -> int:
    if isinstance(value, CSR):
        parts = [value.indptr, value.indices, *([] if value.values is None else [value.values])]
        return sum(_bytes(part) for part in parts)
    return value.numel() * value.element_size()
