"""Arrays in page-locked host memory, which a GPU reads over the bus: for what does not fit on it."""

from __future__ import annotations

import contextlib
import math
import mmap
import weakref

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # no GPU build of torch, no Triton
    triton = None

BLOCK = 1024
GRID = 64
READ_ONLY = 8
"""cudaHostRegisterReadOnly."""

if triton is not None:

    @triton.jit(do_not_specialize=["num"])
    def _take(array_ptr, at_ptr, out_ptr, num, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        for first in range(tl.program_id(0) * BLOCK, num, tl.num_programs(0) * BLOCK):
            i = first + tl.arange(0, BLOCK)
            at = tl.load(at_ptr + i, mask=i < num, other=0)
            tl.store(out_ptr + i, tl.load(array_ptr + at, mask=i < num), mask=i < num)


def take(array: Tensor, at: Tensor) -> Tensor:
    """array[at], on the device of ``at``; both have one dimension."""
    if array.device == at.device:
        return array[at]
    if triton is None or not at.is_cuda or not array.is_pinned():
        return array[at.cpu()].to(at.device)
    out = torch.empty(at.shape, dtype=array.dtype, device=at.device)
    if at.numel():
        _take[(GRID,)](array, at, out, at.numel(), BLOCK=BLOCK)
    return out


def allocate_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros in pages of their own, which can be locked without those of others; torch's own page-locked memory comes in
    powers of two."""
    count = math.prod(shape)
    if not count:
        return torch.zeros(shape, dtype=dtype)
    own = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    return torch.frombuffer(mmap.mmap(-1, count * dtype.itemsize, **own), dtype=dtype, count=count).view(shape)


def pin(rows: Tensor, device: torch.device, owner: object, read_only: bool = False) -> bool:
    """Page-lock host memory while ``owner`` lives, so that the kernels can reach it, or but read it; whether that went
    well."""
    if triton is None or device.type != "cuda" or not rows.numel() or not rows.is_contiguous():
        return False
    if rows.is_pinned():
        return True
    with torch.cuda.device(device):
        failed = int(torch.cuda.cudart().cudaHostRegister(rows.data_ptr(), rows.nbytes, READ_ONLY if read_only else 0))
        if failed:
            with contextlib.suppress(RuntimeError):  # the next launch would be blamed for it
                torch.zeros(1, device=device)
            return False
    # the finaliser holds the memory: it is not given back before it is unlocked
    weakref.finalize(owner, _unlock, rows).atexit = False
    return True


def _unlock(rows: Tensor) -> None:
    torch.cuda.cudart().cudaHostUnregister(rows.data_ptr())
