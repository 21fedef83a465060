"""The C heap: keep freed memory for the next step, or return it to the operating system after a large allocation."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of mallopt(3)
_kept = False


def keep_memory() -> bool:
    """Make the C library keep freed memory; returns whether it does.

    Every step allocates the same large tensors. glibc maps each block above 32 MB anew and unmaps it when it is freed,
    so the operating system zeroes its pages again in every step, which takes as long as the arithmetic. The setting
    concerns the whole process, which then keeps its peak memory. The command line and :func:`lmc.fit` on a CPU apply
    it; ``fit(keep_memory=False)`` does not, and a script with its own loop may call this once. Without glibc nothing
    happens.
    """
    global _kept
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    _kept = mallopt is not None and bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, -1))
    return _kept


def release_freed() -> None:
    """Return freed memory that :func:`keep_memory` kept, after work whose tensors no step allocates again."""
    if _kept:
        ctypes.CDLL(None).malloc_trim(0)
