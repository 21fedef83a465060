"""Steps on fixed subgraphs, recorded once as CUDA graphs and replayed.

A small step is bound by the time its kernels take to launch. All that changes between two visits of a fixed batch is
in place: parameters, tables, the dropout generator (which a graph advances as an eager step would). So the whole step,
forward, backward and the pushes between, is one recording.

Rows that travel do so outside of the recording: they are delivered to one of two places, for each of which there is a
recording, and what the step pushes is picked up behind it, from where the recording left it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.graph import Batch
from lmc.stores import Staging, WriteLogs

Step = Callable[[], tuple[list[Tensor], Tensor]]
"""Computes the gradients and the loss of one batch."""


@dataclass(frozen=True)
class Recording:
    """A step, where it leaves its results, and what it pushes."""

    graph: torch.cuda.CUDAGraph
    grads: list[Tensor]
    loss: Tensor
    logs: WriteLogs


class Recorder:
    """Records the step of every batch, for every place where it finds rows that travelled; scratch memory is shared,
    since steps never run at the same time.

    Args:
        staging: the rows that travel.
    """

    def __init__(self, device: torch.device, generator: torch.Generator, staging: Staging) -> None:
        self._generator = generator
        self._staging = staging
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._seen: set[Batch] = set()
        self._recorded: dict[object, Recording] = {}

    def __call__(self, batch: Batch, step: Step) -> tuple[list[Tensor], Tensor]:
        """The step's results. The first visit runs it as it is (libraries make their handles then), the second
        records it, the later ones replay. Results are valid until the next step."""
        if batch not in self._seen or not self._staging.recordable:
            self._seen.add(batch)
            return step()
        here = batch, self._staging.addresses
        if here not in self._recorded:
            self._recorded[here] = self._record(step)
        recording = self._recorded[here]
        recording.graph.replay()
        self._staging.replay(recording.logs)
        return recording.grads, recording.loss.clone()

    def _record(self, step: Step) -> Recording:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        # rows of other steps may be on their way meanwhile, in a thread of their own
        record = torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local")
        with _no_collection(), record:
            grads, loss = step()
        return Recording(graph, grads, loss, self._staging.logs())


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's collector held off: freeing the graphs of a run that is gone would invalidate a recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
