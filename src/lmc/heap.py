"""The C heap: keep freed memory for the next step, or return it to the operating system after a large allocation."""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of mallopt(3)
_kept = False


def keep_memory() -> bool:
    """Make the C library keep freed memory, and torch use huge pages; returns whether memory is kept.

    Every step allocates the same large tensors. glibc maps each block above 32 MB anew and unmaps it when it is freed,
    so the operating system zeroes its pages again in every step, which takes as long as the arithmetic. The setting
    concerns the whole process, which then keeps its peak memory. The command line and :func:`lmc.fit` on a CPU apply
    it; ``fit(keep_memory=False)`` does not, and a script with its own loop may call this once. Without glibc nothing
    happens.

    In huge pages of 2 MB, the rows that a sparse product reads are found without a walk through the page tables. Torch
    asks for them if this is called before it makes its first tensor on the CPU, as the command line does.
    """
    global _kept
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    _kept = mallopt is not None and bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, -1))
    return _kept


def release_freed() -> None:
    """Return freed memory that :func:`keep_memory` kept, after work whose tensors no step allocates again."""
    if _kept:
        ctypes.CDLL(None).malloc_trim(0)
