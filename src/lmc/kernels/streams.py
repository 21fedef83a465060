"""Work beside that of the current stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")


def beside(device: torch.device, call: Callable[[], T]) -> Callable[[], T]:
    """Call, with all work on a GPU on a stream of its own, beside what the current stream is given next. The function
    that comes back gives the result, which may be used from then on."""
    if device.type != "cuda":
        result = call()
        return lambda: result
    side = _side_stream(device)
    side.wait_stream(torch.cuda.current_stream(device))  # so memory that it frees is used again after its last reader
    with torch.cuda.stream(side):
        result = call()

    def join() -> T:
        torch.cuda.current_stream(device).wait_stream(side)
        return result

    return join


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
