"""Ctrl-C as a wish: the step under way is finished, the run saved, then the interrupt goes on its way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Stop = Callable[[], bool]


def never() -> bool:
    """For loops that nobody may interrupt this way."""
    return False


@contextmanager
def stop_on_interrupt() -> Iterator[Stop]:
    """Within, the first Ctrl-C makes ``stop()`` true; a second one interrupts at once, as ever.

    Outside the main thread Python delivers no signals, and nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield never
        return
    asked = False
    previous = signal.getsignal(signal.SIGINT)

    def ask(signum: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, previous)
