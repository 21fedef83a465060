"""The sums of a matrix's columns, which are the gradients of biases and scales, and of their squares."""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.kernels.availability import tl, triton, triton_available

ROWS = 16
"""Rows that a program adds up at a time."""
MAX_PROGRAMS = 512
"""The largest number of programs that share the rows of a sum."""
PARTS, COLUMNS = 512, 16
"""Sums of programs that are added up at a time, and their columns that one program adds up."""

if triton is not None:

    @triton.jit(do_not_specialize=["n"])  # it differs from batch to batch
    def _add_up(  # type: ignore[no-untyped-def]
        v_ptr, out_ptr, n, d, stride, SQUARED: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
    ):
        i, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
        accumulate_dtype = out_ptr.dtype.element_ty
        total = tl.zeros((ROWS, WIDTH), dtype=accumulate_dtype)
        for first in range(0, n, tl.num_programs(0) * ROWS):
            inside = (first + i < n)[:, None] & (k < d)[None, :]
            at = (first + i)[:, None].to(tl.int64) * stride + k[None, :]
            v = tl.load(v_ptr + at, mask=inside, other=0.0).to(accumulate_dtype)
            total += v * v if SQUARED else v
        tl.store(out_ptr + tl.program_id(0) * d + k, tl.sum(total, 0), mask=k < d)

    @triton.jit(do_not_specialize=["num"])
    def _total(parts_ptr, out_ptr, num, d, PARTS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
        i, k = tl.arange(0, PARTS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        group = tl.program_id(1).to(tl.int64)
        total = tl.zeros((PARTS, COLUMNS), dtype=out_ptr.dtype.element_ty)
        for first in range(0, num, PARTS):
            inside = (first + i < num)[:, None] & (k < d)[None, :]
            at = (group * num + first + i)[:, None] * d + k[None, :]
            total += tl.load(parts_ptr + at, mask=inside, other=0.0)
        tl.store(out_ptr + group * d + k, tl.sum(total, 0), mask=k < d)


def total_of(parts: Tensor) -> Tensor:
    """``parts.sum(1)`` of the sums that programs of a kernel have made, [groups, programs, ...]. With so few rows
    torch's own sum takes as long as making them."""
    groups, num = parts.shape[:2]
    total = parts.new_empty(groups, *parts.shape[2:])
    d = total[0].numel()
    _total[(triton.cdiv(d, COLUMNS), groups)](parts, total, num, d, PARTS=PARTS, COLUMNS=COLUMNS, num_warps=8)
    return total


def column_sums(v: Tensor, squared: bool = False) -> Tensor:
    """``v.sum(0)`` of a matrix, or that of its squares, accumulated in float32 at least. The order of the sums is the
    same in every run."""
    accumulate_dtype = torch.promote_types(v.dtype, torch.float32)
    if not (triton_available(v) and v.stride(1) == 1):
        return (v.to(accumulate_dtype).square() if squared else v).sum(0, dtype=accumulate_dtype)
    n, d = v.shape
    programs = max(1, min(MAX_PROGRAMS, triton.cdiv(n, ROWS)))
    partial = v.new_empty(programs, d, dtype=accumulate_dtype)
    sizes = {"ROWS": ROWS, "WIDTH": triton.next_power_of_2(d)}
    _add_up[(programs,)](v, partial, n, d, v.stride(0), SQUARED=squared, **sizes)
    return total_of(partial.unsqueeze(0))[0]
