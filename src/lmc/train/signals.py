"""Ctrl-C, and the signals of schedulers, as a request to stop after the current step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from lmc.errors import Interrupted

Stop = Callable[[], bool]
"""Whether training is to stop after the current step."""

_FROM_SCHEDULERS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]


def never() -> bool:
    """The stop function of a loop that is not to be interrupted in this way."""
    return False


@contextmanager
def stop_on_interrupt() -> Iterator[Stop]:
    """Within, Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 make ``stop()`` true; a second Ctrl-C interrupts at once, as usual.

    Schedulers repeat their signals, so further ones change nothing. A signal of theirs that is ignored (``nohup``), or
    for which the program has a handler of its own, stays as it is; Ctrl-C is always handled. An :class:`Interrupted`
    that leaves the block carries the number of the signal. Outside the main thread Python delivers no signals, and
    nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield never
        return
    received: list[int] = []
    previous = {s: signal.getsignal(s) for s in _FROM_SCHEDULERS if signal.getsignal(s) == signal.SIG_DFL}
    previous[signal.SIGINT] = signal.getsignal(signal.SIGINT)

    def request(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        if signum == signal.SIGINT:
            signal.signal(signal.SIGINT, previous[signal.SIGINT])

    for signum in previous:
        signal.signal(signum, request)
    try:
        yield lambda: bool(received)
    except Interrupted as error:
        error.signal = received[0] if received else signal.SIGINT
        raise
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
