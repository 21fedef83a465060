"""The sums of a matrix's columns, which are the gradients of biases and scales, and of their squares."""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.kernels.availability import tl, triton, triton_available

ROWS = 16
"""Rows that a program adds up at a time."""
MAX_PROGRAMS = 512
"""Programs that share the rows of a sum, at most."""

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
    return partial.sum(0)
