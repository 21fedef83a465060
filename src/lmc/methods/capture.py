"""Steps on fixed subgraphs, recorded once as CUDA graphs and replayed.

A small step is bound by the time its kernels take to launch. All that changes between two visits of a fixed batch is
in place: parameters, tables, the dropout generator (which a graph advances as an eager step would). So the whole step,
forward, backward and the pushes between, is one recording.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from lmc.graph import Batch

Step = Callable[[], tuple[list[Tensor], Tensor]]
"""Computes the gradients and the loss of one batch."""


class Recorder:
    """Records the step of every batch; their scratch memory is shared, since they never run at the same time."""

    def __init__(self, device: torch.device, generator: torch.Generator) -> None:
        self._generator = generator
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._seen: set[Batch] = set()
        self._recorded: dict[Batch, tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]] = {}

    def __call__(self, batch: Batch, step: Step) -> tuple[list[Tensor], Tensor]:
        """The step's results. The first visit runs it as it is (libraries make their handles then), the second
        records it, the later ones replay. Results are valid until the next step."""
        if batch not in self._seen:
            self._seen.add(batch)
            return step()
        if batch not in self._recorded:
            self._recorded[batch] = self._record(step)
        graph, grads, loss = self._recorded[batch]
        graph.replay()
        return grads, loss.clone()

    def _record(self, step: Step) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        with _no_collection(), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            grads, loss = step()
        return graph, grads, loss


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
