"""Reads ahead of a step, and writes behind it, while steps run on the training device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from lmc.kernels.packed import Rows, laid_out, num_rows
from lmc.kernels.row_transfers import RowCache, append, gather, overlay, scatter
from lmc.stores.host import HostIO, HostRows
from lmc.stores.streams import Event, Stream, Work, numbers_on_host, numbers_ready, record_event
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
        """The events of writes that look rows up in ``cache``: it must not be filled before they complete."""
        found = (p for p in self._pending if p.excluded is not None and p.excluded.slots is cache.slots)
        return [pending.written for pending in found if pending.written is not None]

    def add(self, pushed: Sequence[StepWrite], fetch: Fetch | None) -> None:
        """Pack what a step pushed into a pending write, and send the one before, which leaves out the rows of ``fetch``
        if the step pushed all that it read."""
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
            work = partial(self._scatter, pending)
        else:
            work = partial(self._io.write_back, pending.cache, [numbers_on_host(rows) for rows in pending.rows])
        pending.written = self.stream.submit(work, after, pending.rows)

    def _scatter(self, pending: PendingWrite) -> None:
        for rows, start, num in laid_out(pending.rows):
            scatter(pending.cache.values.rows(start, num), rows, self._host.packed, pending.excluded)


class Fetcher:
    """Reads the rows of the next step while a step runs.

    Two caches alternate: the step under way reads one while the rows of the next step arrive in the other. They soon
    reach their final size, so that a recorded step finds its rows at one of two addresses.
    """

    def __init__(self, host: HostRows, io: HostIO | None, stream: Stream) -> None:
        self._host, self._io, self.stream = host, io, stream
        self.current: Fetch | None = None
        """The fetch of the step under way or, once it is started, of the next one."""
        self._spare: list[RowCache] = []
        self._largest = 0

    def start(self, rows: tuple[Rows, ...], writes: WriteBack) -> None:
        """Start to fetch ``rows``; the docstring of :mod:`lmc.stores` says from where each row is read."""
        last, delivered = self.current, None if self.current is None else self.current.delivered
        if last is not None and delivered is None and not self._host.kernels_read:
            last.fetched.synchronize()  # nothing waited for it, and its thread reads ``cache.num``, which changes soon
        cache, free = self._free_cache(rows)
        fetch = Fetch(rows, cache, writes.newest)
        # Behind the last of these events lie the previous use of the cache and the packing of the older pending write.
        launched = delivered or record_event(self._host.device)
        after = [free, writes.written, *map(numbers_ready, rows), *writes.readers(cache), launched]
        sources = writes.older, None if delivered is None else last
        work = self._work(fetch, [source for source in sources if source is not None])
        fetch.fetched = self.stream.submit(work, after, rows)
        self.current = fetch

    def _work(self, fetch: Fetch, sources: Sequence[PendingWrite | Fetch]) -> Work:
        """What fills the cache of a fetch: the first of ``sources`` that has a row, else the host table. Rows of the
        newest pending write are not read from the host table, since they are laid over on delivery."""
        newest = [] if fetch.newest is None else fetch.newest.rows
        io, table, cache, caches = self._io, self._host.packed, fetch.cache, tuple(s.cache for s in sources)
        if io is None or self._host.kernels_read:
            skip = next((r for r in newest if isinstance(r, slice)), None)
            return lambda: gather(table, fetch.write_numbers(), cache.filled, caches, cache.slots, skip)
        present = [*newest, *(r for source in sources for r in source.rows)]
        numbers = [numbers_on_host(r) for r in fetch.rows], [numbers_on_host(r) for r in present]
        return lambda: io.fetch(cache, fetch.write_numbers(), caches, *numbers)

    def usable(self, writes: WriteBack) -> Fetch | None:
        """The current fetch, unless a step pushed rows since it was started."""
        return self.current if self.current is not None and self.current.newest is writes.newest else None

    def deliver(self, fetch: Fetch | None) -> None:
        """Lay the newest pending write over a fetch; work that the current stream is given from now on may read it."""
        if fetch is not None and fetch.delivered is None:
            cache = fetch.cache
            fetch.fetched.wait()
            if fetch.newest is not None:
                overlay(cache.filled, cache.rows[: cache.num], fetch.newest.cache)
            fetch.delivered = record_event(self._host.device)

    def drop(self) -> None:
        """Forget the current fetch and keep its cache."""
        if self.current is not None:
            self.current.fetched.wait()
            self._spare.append(self.current.cache)
            self.current = None

    @property
    def caches(self) -> list[RowCache]:
        return self._spare if self.current is None else [*self._spare, self.current.cache]

    def _free_cache(self, rows: tuple[Rows, ...]) -> tuple[RowCache, Event]:
        """The cache that is not in use, large enough, and the event after which its memory may be written."""
        cache = self._spare.pop() if self._spare else self._host.cache(0)
        if self.current is not None:
            self._spare.append(self.current.cache)
        num = sum(num_rows(r) for r in rows)
        self._largest = max(self._largest, num)
        free = Event()
        if cache.capacity < self._largest:
            if self.current is not None:
                self.current.fetched.wait()  # it may still read the memory that is freed here
            cache = self._host.cache(self._largest, cache.slots)
            # Memory that the training stream freed can be written once that stream has come so far.
            free = record_event(self._host.device)
        cache.num = num
        return cache, free
