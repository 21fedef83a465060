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

import torch
from torch import Tensor

from lmc.engine.layered import Estimate
from lmc.graph import Batch
from lmc.stores import Staging, WriteLogs

Compute = Callable[[], Estimate]
"""Computes the estimate on one batch."""


@dataclass(frozen=True)
class Recording:
    """A step, where it leaves its results, and what it pushes."""

    graph: torch.cuda.CUDAGraph
    grads: list[Tensor]
    loss: Tensor
    logs: WriteLogs


class Recorder:
    """Records the step of every fixed batch, for every buffer that its rows are delivered to. All recordings share one
    memory pool, since steps never run at the same time."""

    def __init__(self, device: torch.device, generator: torch.Generator, staging: Staging) -> None:
        self._generator = generator
        self._staging = staging
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._seen: set[Batch] = set()
        self._recorded: dict[object, Recording] = {}

    def __call__(self, batch: Batch, compute: Compute) -> Estimate:
        """The results of a step, valid until the next step. The first visit of a batch runs eagerly, since libraries
        create their handles then, the second is recorded, and later ones are replayed."""
        if batch not in self._seen or not self._staging.recordable:
            self._seen.add(batch)
            return compute()
        here = batch, self._staging.addresses
        if here not in self._recorded:
            self._recorded[here] = self._record(compute)
        recording = self._recorded[here]
        recording.graph.replay()
        self._staging.replay(recording.logs)
        return recording.grads, recording.loss.clone()

    def _record(self, compute: Compute) -> Recording:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        # another thread may transfer rows of other steps meanwhile
        record = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        with _no_collection(), record:
            grads, loss = compute()
        return Recording(graph, grads, loss, self._staging.logs())


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's garbage collector is off within: freeing the graphs of another run would invalidate the recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
