"""Arrays in pinned (page-locked) host memory, which kernels on a GPU read over the bus."""

from __future__ import annotations

import contextlib
import math
import mmap
import weakref

import torch
from torch import Tensor

from lmc.kernels.availability import tl, triton, triton_available

BLOCK = 1024
GRID = 64
READ_ONLY = 8
"""The flag cudaHostRegisterReadOnly."""

if triton is not None:

    @triton.jit(do_not_specialize=["num"])
    def _take(array_ptr, at_ptr, out_ptr, num, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        for first in range(tl.program_id(0) * BLOCK, num, tl.num_programs(0) * BLOCK):
            i = first + tl.arange(0, BLOCK)
            at = tl.load(at_ptr + i, mask=i < num, other=0)
            tl.store(out_ptr + i, tl.load(array_ptr + at, mask=i < num), mask=i < num)


def take(array: Tensor, at: Tensor) -> Tensor:
    """``array[at]`` on the device of ``at``; both have one dimension."""
    if array.device == at.device:
        return array[at]
    if not (triton_available(at) and array.is_pinned()):
        return array[at.cpu()].to(at.device)
    out = torch.empty(at.shape, dtype=array.dtype, device=at.device)
    if at.numel():
        _take[(GRID,)](array, at, out, at.numel(), BLOCK=BLOCK)
    return out


def allocate_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros in memory pages that hold nothing else, so that they can be pinned alone.

    Torch's own pinned memory is not used because it is allocated in powers of two.
    """
    count = math.prod(shape)
    if not count:
        return torch.zeros(shape, dtype=dtype)
    flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    return torch.frombuffer(mmap.mmap(-1, count * dtype.itemsize, **flags), dtype=dtype, count=count).view(shape)


def pin(rows: Tensor, device: torch.device, owner: object, read_only: bool = False) -> bool:
    """Pin host memory as long as ``owner`` lives, so that kernels on ``device`` can read and write it.

    Args:
        read_only: kernels may only read the memory. The pages of a file can only be pinned in this way, if at all.

    Returns:
        Whether the memory is pinned now.
    """
    if triton is None or device.type != "cuda" or not rows.numel() or not rows.is_contiguous():
        return False
    if rows.is_pinned():
        return True
    with torch.cuda.device(device):
        failed = int(torch.cuda.cudart().cudaHostRegister(rows.data_ptr(), rows.nbytes, READ_ONLY if read_only else 0))
        if failed:
            with contextlib.suppress(RuntimeError):  # otherwise the next launch would report this error
                torch.zeros(1, device=device)
            return False
    # the finaliser keeps a reference to the memory, so it is not freed before it is unpinned
    weakref.finalize(owner, _unpin, rows).atexit = False
    return True


def _unpin(rows: Tensor) -> None:
    torch.cuda.cudart().cudaHostUnregister(rows.data_ptr())
