"""Ctrl-C as a request: the current step is finished and the run saved before training stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Stop = Callable[[], bool]
"""Whether training is to stop after the current step."""


def never() -> bool:
    """The stop function of a loop that is not to be interrupted in this way."""
    return False


@contextmanager
def stop_on_interrupt() -> Iterator[Stop]:
    """Within, the first Ctrl-C makes ``stop()`` true; a second one interrupts at once, as usual.

    Outside the main thread Python delivers no signals, and nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield never
        return
    requested = False
    previous = signal.getsignal(signal.SIGINT)

    def request(signum: int, frame: FrameType | None) -> None:
        nonlocal requested
        requested = True
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, request)
    try:
        yield lambda: requested
    finally:
        signal.signal(signal.SIGINT, previous)
