"""Reads ahead of a step, and writes behind it, while steps run on the training device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from lmc.kernels.packed import Rows, laid_out, num_rows
from lmc.kernels.row_transfers import MOST_CACHES, MOST_LEFT_OUT, RowCache, append, gather, overlay, scatter
from lmc.stores.host import HostIO, HostRows
from lmc.stores.streams import Event, Stream, Work, numbers_on_host, numbers_ready, record_event
from lmc.stores.transfers import Fetch, PendingWrite, StepWrite

KEPT = 3
"""Steps whose rows stay on the training device: the more, the fewer rows are read from the host and written to it."""
assert min(MOST_CACHES, MOST_LEFT_OUT) >= KEPT - 1, "the kernels have to look through all older pending writes"


class WriteBack:
    """Keeps what the last steps pushed on the training device, and writes it to the host table."""

    def __init__(self, host: HostRows, io: HostIO | None, stream: Stream) -> None:
        self._host, self._io, self.stream = host, io, stream
        self._pending: list[PendingWrite] = []
        self._spare: RowCache | None = None
        self._last: PendingWrite | None = None
        """The last write that is not pending any more."""
        self.written = Event()
        """Completes when the host table holds all that is not pending any more."""
        self._last_but_one = Event()
        """The event :attr:`written` before the last write."""

    @property
    def newest(self) -> PendingWrite | None:
        """The pending write of the last step."""
        return self._pending[-1] if self._pending else None

    @property
    def older(self) -> list[PendingWrite]:
        """The pending writes of the steps before that, the newest first."""
        return self._pending[-2::-1]

    @property
    def caches(self) -> list[RowCache]:
        """The caches of pending writes that are not in place, and a free one."""
        free = [] if self._spare is None else [self._spare]
        return [pending.cache for pending in self._pending if not pending.in_place] + free

    def pending_since(self, write: PendingWrite | None) -> bool:
        """Whether all that was pushed after ``write`` (None: from the beginning) is pending."""
        return write is self._last or write in self._pending

    def holds(self, cache: RowCache) -> bool:
        """Whether rows are pending in ``cache``, or older writes look up in it which rows a pending one replaces."""
        written = [pending.cache for pending in self._pending]
        replaced = [pending.replaces[0] for pending in self._pending if pending.replaces is not None]
        return any(used.slots is cache.slots for used in written + replaced)

    def add(self, pushed: Sequence[StepWrite], fetch: Fetch | None) -> None:
        """Note what a step pushed as the newest pending write, and send the oldest. ``fetch`` was delivered to it."""
        if not pushed and not self._pending:
            return
        if len(self._pending) == KEPT:
            self._forget(self._pending[0])
        self._pending.append(self._pending_write(pushed, fetch))
        if len(self._pending) == KEPT:
            self._send(self._pending[0], self._pending[1:])

    def flush(self) -> None:
        """Bring the host table up to date: for the current stream and, where the host writes, for the host."""
        for pending in list(self._pending):
            self._send(pending)
            assert pending.written is not None
            pending.written.wait() if self._host.kernels_write else pending.written.synchronize()
            self._forget(pending)

    def _forget(self, oldest: PendingWrite) -> None:
        """The oldest pending write is not pending any more; its memory may be used again on the current stream."""
        assert oldest.written is not None
        if not oldest.in_place:
            oldest.written.wait()
            self._spare = oldest.cache
        self._last_but_one, self.written, self._last = self.written, oldest.written, oldest
        self._pending.remove(oldest)

    def _pending_write(self, pushed: Sequence[StepWrite], fetch: Fetch | None) -> PendingWrite:
        """What a step pushed: where it is, if that is the begin of a fetch that was changed in place, or else packed
        into memory that lasts."""
        rows, num = [write.rows for write in pushed], sum(num_rows(write.rows) for write in pushed)
        begin = [write.piece for write in pushed] == list(range(len(pushed)))
        in_place = fetch is not None and begin and all(write.in_place for write in pushed)
        if fetch is not None and in_place:
            cache = replace(fetch.cache, num=num)
        else:
            cache = self._empty(num)
            for write in pushed:
                append(cache, write.rows, write.values)
        pieces = {write.piece for write in pushed}
        all_pushed = fetch is not None and all(k in pieces for k in range(len(fetch.rows)))
        replaces = (replace(fetch.cache), fetch.fetched) if fetch is not None and all_pushed else None
        return PendingWrite(cache, rows, record_event(self._host.device), in_place, replaces)

    def _empty(self, num: int) -> RowCache:
        """An empty cache for ``num`` rows, in memory that is free if there is enough."""
        cache, self._spare = self._spare, None
        if cache is None or cache.capacity < num:
            cache = self._host.cache(num, None if cache is None else cache.slots)
        cache.num = 0
        return cache

    def _send(self, pending: PendingWrite, newer: Sequence[PendingWrite] = ()) -> None:
        """Start to write to the host table, without rows that ``newer`` writes replace."""
        if pending.written is not None:
            return
        replaced = [write.replaces for write in newer if write.replaces is not None]
        pending.left_out = tuple(cache for cache, _ in replaced)
        after = [pending.packed, *(fetched for _, fetched in replaced)]
        if self._io is None:
            pending.written = self.stream.submit(partial(self._scatter, pending), after, pending.rows)
            return
        numbers = [] if pending.left_out else [numbers_on_host(rows) for rows in pending.rows]
        self._last_but_one.resolve()  # its page-locked memory is used again
        work = partial(self._io.write_back, self._io.next_stage(), pending.cache, numbers, pending.left_out)
        if pending.left_out:
            pending.written = self.stream.launch(work, after, pending.rows)
        else:  # two copies, which the thread launches as soon as the caller would
            pending.written = self.stream.submit(lambda: work()(), after, pending.rows)

    def _scatter(self, pending: PendingWrite) -> None:
        for rows, start, num in laid_out(pending.rows):
            scatter(pending.cache.values.rows(start, num), rows, self._host.packed, pending.left_out)


class Fetcher:
    """Reads the rows of the next step while a step runs.

    Caches take turns: the step under way reads one while the rows of the next step arrive in another, many of them from
    those that the steps before have read. They soon reach their final size, so that a recorded step finds its rows at
    one of a few addresses.
    """

    def __init__(self, host: HostRows, io: HostIO | None, stream: Stream) -> None:
        self._host, self._io, self.stream = host, io, stream
        self.current: Fetch | None = None
        """The fetch of the step under way or, once it is started, of the next one."""
        self._delivered: list[Fetch] = []
        """Fetches that were delivered, the newest first."""
        self._spare: list[RowCache] = []
        self._largest = 0

    def start(self, rows: tuple[Rows, ...], writes: WriteBack) -> None:
        """Start to fetch ``rows``; the docstring of :mod:`lmc.stores` says from where each row is read."""
        last, delivered = self.current, None if self.current is None else self.current.delivered
        if last is not None and delivered is None and not self._host.kernels_read:
            last.fetched.synchronize()  # nothing waited for it, and its thread reads ``cache.num``, which changes soon
        cache, free = self._free_cache(rows)
        if writes.holds(cache):  # steps were few in comparison with fetches
            if last is not None:
                last.fetched.wait()  # it may still read memory that is free afterwards
            writes.flush()
        fetch = Fetch(rows, cache, writes.newest)
        # Behind the last of these events lies the previous use of the cache.
        launched = delivered or record_event(self._host.device)
        packed = [write.packed for write in writes.older]
        after = [free, writes.written, *map(numbers_ready, rows), *packed, launched]
        work = self._work(fetch, self._sources(cache, writes))
        fetch.fetched = self.stream.submit(work, after, rows)
        self.current = fetch

    def _sources(self, filled: RowCache, writes: WriteBack) -> list[PendingWrite | Fetch]:
        """Where the fetch that fills a cache finds rows on the device: the older pending writes, each with the rest of
        the fetch that it is a part of, and as many other fetches as there may be."""
        self._delivered = [f for f in self._delivered if f.cache.slots is not filled.slots][:KEPT]
        fetches = {id(f.cache.slots): f for f in self._delivered if writes.pending_since(f.newest)}
        older = [fetches.pop(id(write.cache.slots), write) for write in writes.older]
        return [*older, *fetches.values()][:MOST_CACHES]

    def _work(self, fetch: Fetch, sources: Sequence[PendingWrite | Fetch]) -> Work:
        """What fills the cache of a fetch: the first of ``sources`` that has a row, else the host table. Rows of the
        newest pending write are not read from the host table, since they are laid over on delivery."""
        newest = [] if fetch.newest is None else fetch.newest.rows
        io, table, cache = self._io, self._host.packed, fetch.cache
        caches = tuple(replace(source.cache) for source in sources)
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
            self._delivered.insert(0, fetch)

    def drop(self) -> None:
        """Forget the fetches and keep their caches."""
        if self.current is not None:
            self.current.fetched.wait()
            self._spare.append(self.current.cache)
        self.current, self._delivered = None, []

    @property
    def caches(self) -> list[RowCache]:
        return self._spare if self.current is None else [*self._spare, self.current.cache]

    def _free_cache(self, rows: tuple[Rows, ...]) -> tuple[RowCache, Event]:
        """The cache that was filled first, large enough, and the event after which its memory may be written."""
        cache = self._spare.pop(0) if len(self.caches) > KEPT else self._host.cache(0)
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
