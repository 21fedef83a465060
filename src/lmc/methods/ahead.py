"""Batches with one of them known in advance, so that what it reads can be sent for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from lmc.graph import Batch

T = TypeVar("T")


class Lookahead:
    """An iterator over batches that can also tell which one comes next."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._next: Batch | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch, self._next = self._next or next(self._batches), None
        return batch

    def peek(self) -> Batch | None:
        """The batch that comes next, built now; None after the last."""
        if self._next is None:
            self._next = next(self._batches, None)
        return self._next


class Beside:
    """Builds what comes next on a stream of its own, while the training stream works on a step.

    A build has to know sizes, and waits for the device to tell them: here it waits for its own few kernels, not for the
    step. On a CPU it builds, and that is all.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._begun: torch.cuda.Event | None = None

    def begin(self) -> None:
        """A step begins. What was freed before may be built over, and what was computed before may be read."""
        if self._stream is not None:
            self._begun = torch.cuda.current_stream(self._device).record_event()

    def __call__(self, build: Callable[[], T]) -> T:
        if self._stream is None or self._begun is None:
            return build()
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._begun)
            built = build()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return built
