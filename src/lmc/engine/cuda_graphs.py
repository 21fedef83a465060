"""Steps on fixed subgraphs, recorded once as CUDA graphs and replayed.

A small step is bound by the time that its kernels take to launch. Everything that changes between two visits of a
fixed batch changes in place: parameters, tables, and the dropout generator, which a graph advances as an eager step
would. So the whole step, forward, backward and the pushes between, is one recording.

Rows are transferred outside of the recording. They are delivered to one of two buffers, and there is a recording for
each; what the step pushes is written back afterwards from where the recording left it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmc.engine.batches import convert_matrices
from lmc.engine.layered import Estimate
from lmc.engine.problem import Problem
from lmc.graph import Batch
from lmc.models import modes_kept
from lmc.stores import Staging, WriteLogs, overwrite

if TYPE_CHECKING:
    from lmc.engine.run import Run

Compute = Callable[[Batch], Estimate]
"""Computes the estimate on a batch."""


@dataclass(frozen=True)
class Recording:
    """A step, where it leaves its results, and what it pushes."""

    graph: torch.cuda.CUDAGraph
    grads: list[Tensor]
    loss: Tensor
    logs: WriteLogs


class Recorder:
    """Records the step of every fixed batch, for every buffer that its rows are delivered to. All recordings share one
    memory pool, since steps never run at the same time.

    Args:
        early: record a batch when it is first visited; else that visit runs eagerly, since it may make things that
            outlive the step. Libraries must have created their handles (:func:`warm_up`).
    """

    def __init__(self, problem: Problem, generator: torch.Generator, staging: Staging, early: bool) -> None:
        device, self.early, self._dtype = problem.device, early, problem.dtype
        self._generator = generator
        self._staging = staging
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._seen: set[Batch] = set()
        self._recorded: dict[object, Recording] = {}

    def __call__(self, batch: Batch, compute: Compute) -> Estimate:
        """The results of a step, valid until the next step."""
        known = batch in self._seen
        self._seen.add(batch)
        if not self._staging.recordable or not (known or self.early):
            return compute(batch)
        if not known:
            convert_matrices(batch, self._dtype)
        here = batch, self._staging.addresses
        if here not in self._recorded:
            self._recorded[here] = self._record(batch, compute)
        recording = self._recorded[here]
        recording.graph.replay()
        self._staging.replay(recording.logs)
        return recording.grads, recording.loss.clone()

    def _record(self, batch: Batch, compute: Compute) -> Recording:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        # another thread may transfer rows of other steps meanwhile
        record = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        with no_collection(), record:
            grads, loss = compute(batch)
        return Recording(graph, grads, loss, self._staging.logs())


def warm_up(run: Run) -> None:
    """Run the first step and undo it, so that kernels are compiled, and libraries loaded, before steps are recorded.

    Triton keeps what it has compiled on disk, so that this takes seconds once per machine, and milliseconds later.
    """
    recorder, model = run.pipeline.recorder, run.problem.model
    if recorder is None or not recorder.early:
        return
    batch = next(run.source.epoch(0, 0))
    state, changed = run.generator.get_state(), [*run.numbers.values(), *model.buffers()]
    before = [tensor.clone() for tensor in changed]
    with modes_kept(model):
        run.problem.kind.estimate(run, batch, keep=True, dropout=True)
    for table in run.named_tables().values():
        overwrite(table)
    for tensor, was in zip(changed, before, strict=True):
        tensor.copy_(was)
    run.generator.set_state(state)


@contextmanager
def no_collection() -> Iterator[None]:
    """Python's garbage collector is off within: freeing the graphs of another run would invalidate the recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
