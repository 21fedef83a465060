"""The interface between the engine and tables outside of the training device.

The engine knows nothing of caches, streams and pending writes. Around every step it calls, in this order:

    staging.prefetch(rows, inputs)      the rows that the step reads; usually called while the step before still runs
    staging.begin(fixed)                the step starts: the prefetched rows are delivered
    ... the step pulls, pushes and adds ...
    staging.end()                       the step is launched: what it pushed is written back behind it

Tables on the training device are not staged and need none of this.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch

from lmc.kernels.packed import Rows
from lmc.stores.base import Table
from lmc.stores.staged import staged_tables
from lmc.stores.streams import together
from lmc.stores.transfers import StepWrite

WriteLogs = list[list[StepWrite]]
"""What a step pushed, by staged table."""


class Staging:
    """Prefetching and writing back for all tables of a run.

    Args:
        features: the table that the encoder reads, where the features are not on the device.
        bracketed: whether steps are enclosed by :meth:`begin` and :meth:`end`; a solver that reads rows twice is not.
    """

    def __init__(
        self, tables: Iterable[Table], features: Table | None, device: torch.device, bracketed: bool = True
    ) -> None:
        tables = list(tables)
        self._tables, self._features, self._device = staged_tables(tables), features, device
        self._bracketed = staged_tables([*tables, features]) if bracketed else []
        self.active = any(t.staged for t in tables) or (features is not None and features.staged)
        """Whether a prefetch does anything."""

    @property
    def in_flight(self) -> bool:
        """Whether a prefetch is in flight for every staged table."""
        return all(table.in_flight for table in self._bracketed)

    def together(self) -> AbstractContextManager[None]:
        """Submit the transfers that are started inside to their streams at once."""
        return together(self._device)

    def prefetch(self, rows: tuple[Rows, ...], inputs: Rows) -> None:
        """Start reading ``rows`` of every table, and the rows ``inputs`` of the features."""
        with self.together():
            for table in self._tables:
                table.prefetch(*rows)
            if self._features is not None:
                self._features.prefetch(inputs)

    def expect(self, *rows: Rows) -> None:
        """Announce row numbers, just computed on the current stream, that will be read or written soon."""
        for table in self._bracketed:
            table.expect(*rows)

    def begin(self, fixed: bool) -> None:
        """Begin a step; with ``fixed`` its rows are at addresses that a CUDA graph can use."""
        for table in self._bracketed:
            table.begin(fixed)

    def end(self) -> None:
        """End a step, which is launched: write back what it pushed."""
        for table in self._bracketed:
            table.end()

    @property
    def device_bytes(self) -> tuple[int, int]:
        """Bytes on the device for rows in transfer, and for the indices that locate them."""
        found = [table.device_bytes for table in self._bracketed]
        return sum(rows for rows, _ in found), sum(index for _, index in found)

    @property
    def recording_bytes(self) -> int:
        """Additional bytes that recorded steps need for what they push."""
        return sum(table.recording_bytes for table in self._bracketed)

    @property
    def recordable(self) -> bool:
        """Whether no step so far read or wrote in an order that made it wait."""
        return all(table.recordable for table in self._bracketed)

    @property
    def addresses(self) -> tuple[object, ...]:
        """Where the step under way finds its rows; a recording is only valid for these addresses."""
        return tuple(table.address for table in self._bracketed)

    def logs(self) -> WriteLogs:
        """What the step under way has pushed so far; its recording keeps it, since a replay runs no Python."""
        return [table.log.writes for table in self._bracketed]

    def replay(self, logs: WriteLogs) -> None:
        """Note that the step under way was replayed, and so pushed what its recording pushed."""
        for table, log in zip(self._bracketed, logs, strict=True):
            table.log.writes = log
