"""CUDA streams beside the training stream, the events that order them, and a simulation of both on a CPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from lmc.kernels.packed import Rows

Work = Callable[[], None]

_READY: MutableMapping[Tensor, Event] = WeakTensorKeyDictionary()
_ON_HOST: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()


class Event:
    """An event that completes when the work before it is done; without a CUDA event it is complete."""

    def __init__(self, event: torch.cuda.Event | None = None) -> None:
        self._event = event

    def resolve(self) -> torch.cuda.Event | None:
        """The CUDA event to wait for, if any."""
        return self._event

    def wait(self) -> None:
        """Make the current stream wait: work that it is given from now on runs after the event."""
        if (event := self.resolve()) is not None:
            torch.cuda.current_stream(event.device).wait_event(event)

    def synchronize(self) -> None:
        """Make the host wait."""
        if (event := self.resolve()) is not None:
            event.synchronize()

    def forget_if_complete(self) -> None:
        """Forget the CUDA event if it is complete, so that nothing waits for it any more."""
        if self._event is not None and self._event.query():
            self._event = None


class PendingEvent(Event):
    """The event of work that is not submitted to its stream yet; resolving it makes sure that the work is."""

    def __init__(self, resolve: Callable[[], torch.cuda.Event | None]) -> None:
        super().__init__()
        self._resolve = resolve

    def resolve(self) -> torch.cuda.Event | None:
        return self._resolve()


class CudaStream:
    """A CUDA stream that runs work in the order of submission; a worker thread named ``thread``, or else the caller,
    runs the host's part of it."""

    def __init__(self, device: torch.device, thread: str | None = None) -> None:
        # High priority: a transfer occupies few multiprocessors, and a step waits for it.
        self._stream = torch.cuda.Stream(device, priority=-1)
        self._thread = None if thread is None else _worker(thread)
        self._together = False
        self._defer()

    def _defer(self) -> None:
        """Start an empty list of deferred work, with one event for all of it."""
        self._deferred: list[tuple[Work, Sequence[Event]]] = []
        self._submitted: Future[torch.cuda.Event] = Future()
        self._event = PendingEvent(partial(self._flushed, self._submitted))

    def submit(self, work: Work, after: Sequence[Event], reads: Sequence[Rows] = ()) -> Event:
        """Run ``work`` after these events; ``reads`` are row numbers whose tensors the caller may free meanwhile."""
        self._keep(reads)
        if self._thread is not None:
            return PendingEvent(self._thread.submit(self._run, work, after).result)
        if not self._together:
            return Event(self._run(work, after))
        self._deferred.append((work, after))
        return self._event

    def launch(self, work: Callable[[], Work], after: Sequence[Event], reads: Sequence[Rows] = ()) -> Event:
        """Run ``work`` after these events, in the caller, and what it returns, the host's part, in the thread.

        Between two launches, a thread waits for the interpreter lock that the caller holds: what takes the caller 0.1
        ms takes the thread milliseconds.
        """
        assert self._thread is not None
        self._keep(reads)
        with torch.cuda.stream(self._stream):
            for event in after:
                event.wait()
            on_host = work()
        return PendingEvent(self._thread.submit(self._run, on_host, ()).result)

    def _keep(self, reads: Sequence[Rows]) -> None:
        """Keep the memory of row numbers until the stream has read them."""
        for rows in reads:
            if isinstance(rows, Tensor) and rows.is_cuda:
                rows.record_stream(self._stream)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Defer work that is submitted inside and submit it at the end: one change of streams, one event for all."""
        nested, self._together = self._together, True
        try:
            yield
        finally:
            self._together = nested
            if not nested:
                self.flush()

    def flush(self) -> None:
        """Submit deferred work."""
        if not self._deferred:
            return
        deferred, own, submitted = self._deferred, self._event, self._submitted
        self._defer()
        waited: set[int] = set()
        with torch.cuda.stream(self._stream):
            for work, after in deferred:
                for event in after:
                    found = None if event is own else event.resolve()
                    if found is not None and id(found) not in waited:
                        waited.add(id(found))
                        self._stream.wait_event(found)
                work()
            submitted.set_result(self._stream.record_event())

    def _flushed(self, submitted: Future[torch.cuda.Event]) -> torch.cuda.Event:
        if not submitted.done():
            self.flush()
        return submitted.result()

    def _run(self, work: Work, after: Sequence[Event]) -> torch.cuda.Event:
        with torch.cuda.stream(self._stream):
            for event in after:
                event.wait()
            work()
            return self._stream.record_event()


class SimulatedStream:
    """A queue that simulates a stream where the training device is a CPU. With ``lazy`` it runs work only when one of
    its events is waited for, so that a missing wait changes the numbers; otherwise it runs work at once."""

    def __init__(self, lazy: bool) -> None:
        self.lazy = lazy
        self._queue: deque[tuple[Work, Sequence[Event]]] = deque()
        self._done = 0

    def submit(self, work: Work, after: Sequence[Event], reads: Sequence[Rows] = ()) -> Event:
        self._queue.append((work, after))
        event = PendingEvent(partial(self._run_until, self._done + len(self._queue)))
        if not self.lazy:
            event.wait()
        return event

    def launch(self, work: Callable[[], Work], after: Sequence[Event], reads: Sequence[Rows] = ()) -> Event:
        """Run ``work`` and what it returns as :meth:`submit` does."""
        return self.submit(lambda: work()(), after, reads)

    def _run_until(self, number: int) -> None:
        while self._done < number:
            work, after = self._queue.popleft()
            for event in after:
                event.wait()
            work()
            self._done += 1


Stream = CudaStream | SimulatedStream


def open_stream(device: torch.device, name: str, threaded: bool, lazy: bool = False) -> Stream:
    """A stream for one table. With ``threaded`` a thread of its own does the host's part of the work; tables that need
    none share a stream per GPU and name. ``lazy`` is for a CPU (:class:`SimulatedStream`)."""
    if device.type != "cuda":
        return SimulatedStream(lazy)
    return CudaStream(device, thread=name) if threaded else _shared(device, name)


@contextmanager
def together(device: torch.device) -> Iterator[None]:
    """Submit the work of all tables that share streams at once."""
    if device.type != "cuda":
        yield
        return
    # The inner stream is flushed first: a step waits for reads, and not for writes.
    with _shared(device, "writes").together(), _shared(device, "reads").together():
        yield


def record_event(device: torch.device) -> Event:
    """An event for all work that the current stream has been given so far."""
    return Event(torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None)


def numbers_ready(rows: Rows) -> Event:
    """The event after which ``rows`` can be read by other streams; recorded at the first call for a tensor."""
    if isinstance(rows, slice):
        return Event()
    if rows not in _READY:
        _READY[rows] = record_event(rows.device)
    _READY[rows].forget_if_complete()
    return _READY[rows]


def numbers_on_host(rows: Rows) -> Rows:
    """Row numbers in host memory; each GPU tensor is copied once, since a copy waits for the GPU."""
    if isinstance(rows, slice) or rows.device.type == "cpu":
        return rows
    if rows not in _ON_HOST:
        _ON_HOST[rows] = rows.cpu()
    return _ON_HOST[rows]


@cache
def _shared(device: torch.device, name: str) -> CudaStream:
    return CudaStream(device)


def _worker(name: str) -> ThreadPoolExecutor:
    """A worker thread; a table has one that reads and one that writes, and they split the cores."""
    cores = torch.get_num_threads()
    thread = ThreadPoolExecutor(1, f"lmc-{name}")
    thread.submit(torch.set_num_threads, max(1, cores // 2)).result()
    torch.set_num_threads(cores)  # the call above also set the number for threads that start later
    return thread
