"""Batches that are made ahead of their step, so that what they read can be prefetched."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor

from lmc.graph import Batch, Graph, live_tensors


class Lookahead:
    """An iterator over batches that can look at the next one."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._next: Batch | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch, self._next = self._next or next(self._batches), None
        return batch

    def peek(self) -> Batch | None:
        """The next batch, which is made now; None after the last."""
        if self._next is None:
            self._next = next(self._batches, None)
        return self._next

    def step_begins(self) -> None:
        """Called before a step is launched."""

    def step_ends(self) -> None:
        """Called after a step is launched."""


class ConcurrentDraw(Lookahead):
    """On a GPU: while a step is launched and runs, a second thread draws the next batch on a stream of its own.

    A draw waits for all work that was queued before the step, and work that is queued after the step waits for the
    draw, so that only the step itself runs beside it. A step must not change what draws read. The batches are the same
    as without the second thread, since each has its own generator.
    """

    def __init__(self, batches: Iterator[Batch], device: torch.device) -> None:
        super().__init__(batches)
        self._device = device
        self._stream = _draw_stream(device)
        self._thread = ThreadPoolExecutor(1, "lmc-draw")
        self._drawn: Future[Batch | None] | None = None

    def __next__(self) -> Batch:
        self.step_ends()  # a step that failed has not called it
        return super().__next__()

    def step_begins(self) -> None:
        if self._next is None and self._drawn is None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            self._drawn = self._thread.submit(self._draw)

    def step_ends(self) -> None:
        if self._drawn is None:
            return
        drawn, self._drawn = self._drawn, None
        self._next = drawn.result()
        here = torch.cuda.current_stream(self._device)
        here.wait_stream(self._stream)
        for tensor in tensors(self._next):
            tensor.record_stream(here)  # its memory belongs to the other stream

    def _draw(self) -> Batch | None:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            return next(self._batches, None)


class DrawAhead(Lookahead):
    """On a GPU: a second thread draws the next batch as soon as one is taken, on a stream of its own.

    For batches at fixed addresses whose draw reads and writes nothing that steps change, so that neither waits for the
    other.

    Args:
        thread: draws one batch at a time, those of an epoch that was left early included.
    """

    def __init__(self, batches: Iterator[Batch], device: torch.device, thread: ThreadPoolExecutor) -> None:
        super().__init__(batches)
        self._device, self._stream, self._thread = device, _draw_stream(device), thread
        self._drawn = self._thread.submit(self._draw)

    def __next__(self) -> Batch:
        batch, drawn = self._drawn.result()
        if batch is None:
            raise StopIteration
        torch.cuda.current_stream(self._device).wait_event(drawn)
        self._drawn = self._thread.submit(self._draw)
        return batch

    def peek(self) -> Batch | None:
        return self._drawn.result()[0]

    def _draw(self) -> tuple[Batch | None, torch.cuda.Event]:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            return next(self._batches, None), self._stream.record_event()


@cache
def _draw_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all draws, since freed memory is reused by the stream that allocated it."""
    return torch.cuda.Stream(device, priority=-1)


def tensors(batch: Batch | None) -> list[Tensor]:
    """Every tensor of a batch, except those of the graph."""
    return live_tensors(batch, apart=(Graph,))
