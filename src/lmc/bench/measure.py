"""Clocks and memory figures that mean the same on a CPU and a GPU."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


def elapsed_ms(call: Callable[[], object], device: torch.device) -> float:
    """The time of one call in milliseconds, with all work on the device that it started."""
    wait(device)
    start = time.perf_counter()
    call()
    wait(device)
    return 1000 * (time.perf_counter() - start)


def fastest_ms(kernel: Callable[[], object], device: torch.device, warmup: int, repeat: int) -> float:
    """The shortest of ``repeat`` calls after ``warmup`` calls: a kernel does the same every time, and delays are not
    its own."""
    for _ in range(warmup):
        kernel()
    return min(elapsed_ms(kernel, device) for _ in range(repeat))


def allocated_bytes(device: torch.device) -> int | None:
    """Bytes of live tensors on the device; None on a CPU, where they are not counted."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else None


@contextmanager
def matmul_precision(device: torch.device, tf32: bool = True) -> Iterator[None]:
    """TF32 products on a GPU, as training there uses them; afterwards the previous precision is set again."""
    before = torch.get_float32_matmul_precision()
    if tf32 and device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def wait(device: torch.device) -> None:
    """Wait until all work on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free(device: torch.device) -> None:
    """Free the memory of finished runs, recorded steps included."""
    gc.collect()  # a run and the batches that it draws refer to each other
    if device.type == "cuda":
        torch.cuda.empty_cache()
