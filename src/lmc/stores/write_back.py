"""What steps push, on its way from the training device to the host table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from lmc.kernels.packed import Rows, num_rows
from lmc.kernels.row_transfers import RowCache, append, scatter
from lmc.stores.host_io import HostIO
from lmc.stores.host_rows import HostRows
from lmc.stores.streams import Event, Stream, numbers_on_host, record_event
from lmc.stores.transfers import Fetch, PendingWrite, StepWrite


class WriteBack:
    """Keeps what the last two steps pushed on the training device, and writes it to the host table."""

    def __init__(self, host: HostRows, io: HostIO | None, stream: Stream) -> None:
        self._host, self._io, self.stream = host, io, stream
        self._pending: list[PendingWrite] = []
        self.written = Event()
        """Completes when the host table holds all that is not pending any more."""

    @property
    def newest(self) -> PendingWrite | None:
        """The pending write of the last step."""
        return self._pending[-1] if self._pending else None

    @property
    def older(self) -> PendingWrite | None:
        """The pending write of the step before that."""
        return self._pending[0] if len(self._pending) == 2 else None

    @property
    def caches(self) -> list[RowCache]:
        return [pending.cache for pending in self._pending]

    def readers(self, cache: RowCache) -> list[Event]:
        """The events of writes that look rows up in ``cache``: nobody may fill it before they complete."""
        found = (p for p in self._pending if p.excluded is not None and p.excluded.slots is cache.slots)
        return [pending.written for pending in found if pending.written is not None]

    def add(self, pushed: Sequence[StepWrite], fetch: Fetch | None) -> None:
        """Pack what a step pushed into a pending write, and send the one before.

        Args:
            fetch: the rows that the step read. If it pushed all of them, the pending write before leaves them out.
        """
        if not pushed and not self._pending:
            return
        pieces = {write.piece for write in pushed}
        all_pushed = fetch is not None and all(k in pieces for k in range(len(fetch.rows)))
        for before in self._pending:
            self._send(before, fetch if all_pushed and self._host.kernels_write else None)
        pending = self._reused(sum(num_rows(write.rows) for write in pushed))
        for write in pushed:
            append(pending.cache, write.rows, write.values)
        pending.rows, pending.packed = [write.rows for write in pushed], record_event(self._host.device)
        self._pending.append(pending)

    def flush(self) -> None:
        """Bring the host table up to date: for the current stream and, where the host writes, for the host."""
        for pending in self._pending:
            self._send(pending)
            assert pending.written is not None
            pending.written.wait() if self._host.kernels_write else pending.written.synchronize()
        self._pending = []

    def _reused(self, num: int) -> PendingWrite:
        """An empty pending write for ``num`` rows, in the memory of the oldest if there are two."""
        cache = None
        if (oldest := self.older) is not None:
            assert oldest.written is not None
            oldest.written.wait()
            self.written = oldest.written
            self._pending.remove(oldest)
            cache = oldest.cache
        if cache is None or cache.capacity < num:
            cache = self._host.cache(num, None if cache is None else cache.slots)
        cache.num = 0
        return PendingWrite(cache)

    def _send(self, pending: PendingWrite, fetch: Fetch | None = None) -> None:
        """Start to write to the host table, without the rows of ``fetch``, which are in a newer pending write."""
        if pending.written is not None:
            return
        after = [pending.packed]
        if self._io is None:
            if fetch is not None:
                pending.excluded = replace(fetch.cache)
                after.append(fetch.fetched)
            work = partial(self._scatter, pending.cache, pending.rows, pending.excluded)
        else:
            work = partial(self._io.write_back, pending.cache, [numbers_on_host(rows) for rows in pending.rows])
        pending.written = self.stream.submit(work, after, pending.rows)

    def _scatter(self, cache: RowCache, contents: Sequence[Rows], excluded: RowCache | None) -> None:
        start = 0
        for rows in contents:
            scatter(cache.values.rows(start, num_rows(rows)), rows, self._host.packed, excluded)
            start += num_rows(rows)
