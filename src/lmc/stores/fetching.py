"""Rows that are read ahead of a step into a cache on the training device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from lmc.kernels.packed import Rows, num_rows
from lmc.kernels.row_transfers import RowCache, gather, overlay
from lmc.stores.host_io import HostIO
from lmc.stores.host_rows import HostRows
from lmc.stores.streams import Event, Stream, Work, numbers_on_host, numbers_ready, record_event
from lmc.stores.transfers import Fetch, PendingWrite
from lmc.stores.write_back import WriteBack


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
        last = self.current
        previous = None if last is None or last.delivered is None else last
        if last is not None and last.delivered is None and not self._host.kernels_read:
            last.fetched.synchronize()  # nothing waited for it, and its thread reads ``cache.num``, which changes soon
        cache, free = self._free_cache(rows)
        fetch = Fetch(rows, cache, writes.newest)
        # Behind the last of these events lie the previous use of the cache and the packing of the older pending write.
        launched = record_event(self._host.device) if last is None or last.delivered is None else last.delivered
        after = [free, writes.written, *map(numbers_ready, rows), *writes.readers(cache), launched]
        work = self._work(fetch, [source for source in (writes.older, previous) if source is not None])
        fetch.fetched = self.stream.submit(work, after, rows)
        self.current = fetch

    def _work(self, fetch: Fetch, sources: Sequence[PendingWrite | Fetch]) -> Work:
        """What fills the cache of a fetch: the first of ``sources`` that has a row, else the host table.

        Rows of the newest pending write are laid over on delivery, so they are not read from the host table.
        """
        newest = [] if fetch.newest is None else fetch.newest.rows
        caches = tuple(source.cache for source in sources)
        if self._io is None or self._host.kernels_read:
            return partial(self._gather, fetch, caches, next((r for r in newest if isinstance(r, slice)), None))
        present = [*newest, *(r for source in sources for r in source.rows)]
        numbers = [numbers_on_host(r) for r in fetch.rows], [numbers_on_host(r) for r in present]
        return partial(self._io.fetch, fetch, caches, *numbers)

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
        return [*self._spare, *([] if self.current is None else [self.current.cache])]

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

    def _gather(self, fetch: Fetch, caches: tuple[RowCache, ...], skip: slice | None) -> None:
        gather(self._host.packed, fetch.write_numbers(), fetch.cache.filled, caches, fetch.cache.slots, skip)
