"""Batches with one of them known in advance, so that what it reads can be sent for."""

from __future__ import annotations

from collections.abc import Iterator

from lmc.graph import Batch


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
