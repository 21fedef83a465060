"""Work beside that of the current stream.

Streams are shared by all runs of a process, since libraries keep memory for every stream that they were used on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")

SIDE, RECORDING = "side", "recording"
STREAMS = (SIDE, RECORDING)


def beside(device: torch.device, call: Callable[[], T]) -> Callable[[], T]:
    """Run ``call`` on a second stream of a GPU, in parallel with what the current stream is given next. Returns a
    function that makes the current stream wait for it and gives the result."""
    if device.type != "cuda":
        result = call()
        return lambda: result
    side = shared_stream(device, SIDE)
    side.wait_stream(torch.cuda.current_stream(device))  # so memory that it frees is used again after its last reader
    with torch.cuda.stream(side):
        result = call()

    def join() -> T:
        torch.cuda.current_stream(device).wait_stream(side)
        return result

    return join


def shared_stream(device: torch.device, name: str) -> torch.cuda.Stream:
    """The stream of this name, one of :data:`STREAMS`."""
    return _stream(torch.cuda.current_device() if device.index is None else device.index, name)


@cache
def _stream(index: int, name: str) -> torch.cuda.Stream:
    # small kernels of high priority run where blocks of a large one have ended, and do not wait for its last block
    return torch.cuda.Stream(index, priority=-1 if name == SIDE else 0)
