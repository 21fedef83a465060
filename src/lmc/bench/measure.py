"""Clocks and scales that mean the same on a CPU and a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import torch


def median_ms(epoch: Callable[[], object], device: torch.device, warmup: int, repeat: int) -> float:
    """The median time of ``epoch()`` over ``repeat`` calls, in milliseconds, after ``warmup`` calls not counted."""
    return median(_times(epoch, device, warmup, repeat))


def fastest_ms(kernel: Callable[[], object], device: torch.device, warmup: int, repeat: int) -> float:
    """The shortest time instead: a kernel does the same every time, and whatever delays it is not its own."""
    return min(_times(kernel, device, warmup, repeat))


def _times(epoch: Callable[[], object], device: torch.device, warmup: int, repeat: int) -> list[float]:
    for _ in range(warmup):
        epoch()
    times = []
    for _ in range(repeat):
        wait(device)
        start = time.perf_counter()
        epoch()
        wait(device)
        times.append(1000 * (time.perf_counter() - start))
    return times


def allocated_bytes(device: torch.device) -> int | None:
    """What lives on the device; None on a CPU, where nothing counts it."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else None


@contextmanager
def matmul_precision(device: torch.device) -> Iterator[str]:
    """TF32 products on a GPU, as training there uses them; what was set before is set again after."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield "TF32" if device.type == "cuda" else "float32"
    finally:
        torch.set_float32_matmul_precision(before)


def wait(device: torch.device) -> None:
    """Until all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
