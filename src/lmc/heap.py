"""Memory on a CPU: freed blocks are kept for the next step, and given back where there is none like the last."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # names of mallopt(3)
_kept = False


def keep_memory() -> bool:
    """Tell the C library to keep freed memory; says whether it could be told.

    Every step allocates the same large tensors. glibc maps each block above 32 MB afresh and unmaps it when it is
    freed, so the system zeroes its pages again in every step, which takes as long as the arithmetic. The setting is the
    process's, so a library does not make it unasked: the command line does, a script calls this once. Memory then stays
    with the process at its peak. Elsewhere than with glibc nothing happens.
    """
    global _kept
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    _kept = mallopt is not None and bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, -1))
    return _kept


def hand_back() -> None:
    """Give back, once, what :func:`keep_memory` has kept: after work whose tensors no step will ask for again."""
    if _kept:
        ctypes.CDLL(None).malloc_trim(0)
