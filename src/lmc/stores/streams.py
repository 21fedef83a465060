"""Work beside the training stream, in the order it was given, with tickets to wait for.

On a GPU a lane is a stream, or a thread with a stream of its own where the host has to lend a hand. On a CPU it is a
queue, and does its work as ``late`` as the tickets allow: then a wait that is missing shows in the numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

Work = Callable[[], None]


class Ticket:
    """Something that will have been done."""

    def __init__(
        self,
        event: torch.cuda.Event | Future[torch.cuda.Event] | None = None,
        lane: Lane | None = None,
        number: int = 0,
    ) -> None:
        self._event, self._lane, self._number = event, lane, number

    @property
    def event(self) -> torch.cuda.Event | None:
        """On a GPU; waits, on the host, for a thread to come so far."""
        return self._event.result() if isinstance(self._event, Future) else self._event

    @property
    def passed(self) -> bool:
        """Whether nobody has to wait for it, as far as is known without waiting."""
        return isinstance(self._event, torch.cuda.Event) and self._event.query()

    def wait(self) -> None:
        """Nothing given to the current stream from now on happens before it."""
        if self._lane is not None:
            self._lane.catch_up(self._number)
        elif (event := self.event) is not None:
            torch.cuda.current_stream(event.device).wait_event(event)

    def finish(self) -> None:
        """The host waits for it."""
        if self._lane is not None:
            self._lane.catch_up(self._number)
        elif (event := self.event) is not None:
            event.synchronize()


class Promise(Ticket):
    """A ticket for work that a stream is given together with other work (:meth:`Lane.together`)."""

    def __init__(self, lane: Lane) -> None:
        super().__init__()
        self._with = lane

    @property
    def event(self) -> torch.cuda.Event | None:
        if self._event is None:
            self._with.flush()
        return super().event

    def keep(self, event: torch.cuda.Event) -> None:
        """It is given to the stream now."""
        self._event = event


class Lane:
    """Work in order. ``hand``: the host has to do some of it, in a thread of this name."""

    def __init__(self, device: torch.device, hand: str | None = None, late: bool = False) -> None:
        self._device = device
        # few programs, to be let in first
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        # a thread for every lane: those of several tables work side by side
        self._hand = None if hand is None else _hand(hand)
        self.late = late
        self._queue: deque[tuple[Work, tuple[Ticket, ...]]] = deque()
        self._done = 0
        self._together = False
        self._promised: list[tuple[Work, tuple[Ticket, ...], Promise]] = []

    @contextmanager
    def together(self) -> Iterator[None]:
        """Work that is given to a stream in here is given to it at once: one change of streams, one event for all."""
        if self._together:
            yield
            return
        self._together = self._stream is not None and self._hand is None
        try:
            yield
        finally:
            self._together = False
            self.flush()

    def flush(self) -> None:
        """Give the stream what was promised."""
        promised, self._promised = self._promised, []
        if not promised:
            return
        assert self._stream is not None
        mine = {id(promise) for _, _, promise in promised}
        waited: set[int] = set()
        with torch.cuda.stream(self._stream):  # and on its device
            for work, after, _ in promised:
                for ticket in after:
                    event = None if id(ticket) in mine else ticket.event
                    if event is not None and id(event) not in waited:
                        waited.add(id(event))
                        self._stream.wait_event(event)
                work()
            event = self._stream.record_event()
        for _, _, promise in promised:
            promise.keep(event)

    def do(self, work: Work, after: tuple[Ticket, ...], reads: tuple[Tensor, ...] = ()) -> Ticket:
        """Give it ``work``, to be done after these tickets; ``reads``: tensors that may be freed meanwhile."""
        if self._stream is None:
            self._queue.append((work, after))
            ticket = Ticket(lane=self, number=self._done + len(self._queue))
            if not self.late:
                ticket.wait()
            return ticket
        for tensor in reads:
            tensor.record_stream(self._stream)
        if self._hand is not None:
            return Ticket(self._hand.submit(self._on_stream, work, after))
        if self._together:
            promise = Promise(self)
            self._promised.append((work, after, promise))
            return promise
        return Ticket(self._on_stream(work, after))

    def _on_stream(self, work: Work, after: tuple[Ticket, ...]) -> torch.cuda.Event:
        assert self._stream is not None
        with torch.cuda.stream(self._stream):
            for ticket in after:
                ticket.wait()
            work()
            return self._stream.record_event()

    def catch_up(self, number: int) -> None:
        """On a CPU: do the work up to this one."""
        while self._done < number:
            work, after = self._queue.popleft()
            for ticket in after:
                ticket.wait()
            work()
            self._done += 1


def _hand(name: str) -> ThreadPoolExecutor:
    """A thread that works with every other core: there are two of them."""
    cores = torch.get_num_threads()
    hand = ThreadPoolExecutor(1, f"lmc-{name}")
    hand.submit(torch.set_num_threads, max(1, cores // 2)).result()
    torch.set_num_threads(cores)  # which was set for this thread, and for all that are still to begin
    return hand


@cache
def shared(device: torch.device, name: str) -> Lane:
    """A stream beside training that all tables of a GPU share."""
    assert device.type == "cuda"
    return Lane(device)


@contextmanager
def together(device: torch.device) -> Iterator[None]:
    """What tables give to the lanes they share is given at once."""
    if device.type != "cuda":
        yield
        return
    with (
        shared(device, "writes").together(),
        shared(device, "reads").together(),
    ):  # the reads, which a step awaits, first
        yield


def mark(device: torch.device) -> Ticket:
    """A ticket for all that the current stream was given so far."""
    if device.type != "cuda":
        return Ticket()
    return Ticket(torch.cuda.current_stream(device).record_event())
