"""What a method keeps and what it costs: messages and memory (the paper's memory table)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from lmc.engine import Run
from lmc.graph import CSR, Aggregation, Batch


@dataclass(frozen=True)
class Messages:
    """Share of the full graph's messages (self-loops included) that reach core rows in one epoch."""

    forward: float
    backward: float


def messages_kept(run: Run) -> Messages:
    """sum over the batches of ||A_batch||_0 / ||A||_0, for the forward and for the backward pass."""
    epoch, nnz = run.epoch, run.problem.P.nnz
    forward = backward = 0
    for batch in run.batches(epoch):
        run.epoch = epoch
        operator = batch.operators[-1]
        if not isinstance(operator, Aggregation):  # P X, computed once on the whole graph: no message is missing
            return Messages(1.0, 1.0)
        forward += int(operator.forward.indptr[batch.num_core])
        backward += int(operator.backward.indptr[batch.num_core])
    return Messages(forward / nnz, backward / nnz)


@dataclass(frozen=True)
class Memory:
    """Bytes by purpose. ``step`` is the measured peak of one step beyond what is kept between steps.

    ``tiers`` counts the histories, and features that are not on the device, by tier; ``graph`` the structure, targets,
    and features on the device; ``parameters`` those of the model.
    """

    step: int
    tiers: dict[str, int]
    graph: int
    parameters: int


def memory(run: Run, batch: Batch) -> Memory:
    """Memory of a run, and the peak of one step on ``batch``; histories and gradients are not changed."""
    problem = run.problem
    tiers: dict[str, int] = {}
    for table in (*run.all_tables(), *([] if problem.stored is None else [problem.stored])):
        tiers[table.tier] = tiers.get(table.tier, 0) + table.data().nbytes
    features = [problem.X] if isinstance(problem.X, torch.Tensor | CSR) else []
    return Memory(
        step=peak_bytes(lambda: run.gradient(batch), problem.device),
        tiers=tiers,
        graph=sum(_bytes(t) for t in (problem.P, problem.graph.adj, problem.graph.y, *features)),
        parameters=sum(p.nbytes for p in problem.model.parameters()),
    )


def peak_bytes(step: Callable[[], object], device: torch.device) -> int:
    """The largest sum of live allocations while ``step()`` runs, beyond what was allocated before it."""
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
        return sum(part.nbytes for part in (value.indptr, value.indices, value.values) if part is not None)
    return value.nbytes
