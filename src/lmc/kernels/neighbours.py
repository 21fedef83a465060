"""The draw of node-wise sampling as one Triton kernel.

Floyd's rounds are three small launches each in plain torch, and a hop of ten of them is bound by the time it takes to
launch them. Here every row is read once and its slots are written once.
:meth:`lmc.sampling.neighbours.Neighbours._slots` is the reference, and what runs elsewhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # no GPU build of torch, no Triton
    triton = None

MOST = 63
"""Fan-outs up to here: the slots of a row lie in registers."""

if triton is not None:

    @triton.jit
    def _slots(  # type: ignore[no-untyped-def]
        about_ptr, indices_ptr, rows_ptr, uniform_ptr, slots_ptr, columns_ptr, num,
        K: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        inside = i < num
        row = tl.load(rows_ptr + i, mask=inside, other=0)
        start = tl.load(about_ptr + row * 3, mask=inside, other=0)
        d = tl.load(about_ptr + row * 3 + 1, mask=inside, other=0)
        loop = tl.load(about_ptr + row * 3 + 2, mask=inside, other=0)
        slot = tl.arange(0, WIDTH).to(tl.int64)[None, :]  # 0 is the diagonal's, j + 1 that of round j
        drawn = tl.zeros((ROWS, WIDTH), dtype=tl.int64) - 1
        for j in tl.static_range(K):
            newest = tl.maximum(d - K + j, 0)
            uniform = tl.load(uniform_ptr + i + j * num, mask=inside, other=0.0)
            number = tl.minimum((uniform * (newest + 1).to(tl.float64)).to(tl.int64), newest)
            again = tl.max((drawn == number[:, None]).to(tl.int32), axis=1) > 0
            number = tl.where(again, newest, number)
            drawn = tl.where(slot == j + 1, number[:, None], drawn)
        drawn = tl.where((d <= K)[:, None], slot - 1, drawn)
        offset = drawn + (drawn >= loop[:, None]).to(tl.int64)
        offset = tl.where(slot == 0, loop[:, None], offset)
        # a row has as many entries as others and a diagonal: one that is not there lies beyond them
        others = (slot > 0) & (slot <= d[:, None]) & (slot <= K)
        filled = ((slot == 0) & (loop <= d)[:, None]) | others
        entry = start[:, None] + offset
        column = tl.load(indices_ptr + entry, mask=filled & inside[:, None], other=0).to(tl.int64)
        at = i[:, None] * (K + 1) + slot
        write = inside[:, None] & (slot <= K)
        tl.store(slots_ptr + at, tl.where(filled, entry, -1), mask=write)
        tl.store(columns_ptr + at, tl.where(filled, column, row[:, None]), mask=write)


def available(rows: Tensor, fanout: int) -> bool:
    """Whether the kernel can draw so many neighbours for these rows."""
    return triton is not None and rows.is_cuda and rows.numel() > 0 and fanout <= MOST


def slots(about: Tensor, indices: Tensor, rows: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Entries by row and slot, and the nodes they read, from uniform numbers [fanout, rows]."""
    (k, num), width = uniform.shape, triton.next_power_of_2(uniform.shape[0] + 1)
    found = rows.new_empty(num, k + 1)
    columns, served = torch.empty_like(found), max(1, 1024 // width)
    rows = rows.contiguous()
    _slots[(triton.cdiv(num, served),)](
        about, indices, rows, uniform, found, columns, num, K=k, ROWS=served, WIDTH=width
    )
    return found, columns
