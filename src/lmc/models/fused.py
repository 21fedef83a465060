"""Dropout as one Triton kernel: reads a row, writes a row, keeps no mask.

The mask is drawn again in the backward pass from the same seed, which stays on the device, so that a step neither waits
for it nor stores it. :mod:`lmc.models.dropout` is the reference in plain torch, and what runs where Triton is not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # no GPU build of torch, no Triton
    triton = None

BLOCK = 1024

if triton is not None:

    @triton.jit
    def _write(x_ptr, y_ptr, at, n, draw, p, scale):  # type: ignore[no-untyped-def]
        x = tl.load(x_ptr + at, mask=at < n)
        tl.store(y_ptr + at, tl.where(draw >= p, x * scale, 0.0), mask=at < n)

    @triton.jit
    def _mask_and_scale(x_ptr, y_ptr, seed_ptr, n, p, scale, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        # one draw of Philox gives four numbers, so a program serves four blocks
        block = tl.program_id(0).to(tl.int64) * BLOCK
        a, b, c, d = tl.rand4x(tl.load(seed_ptr), block + tl.arange(0, BLOCK))
        at = 4 * block + tl.arange(0, BLOCK)
        _write(x_ptr, y_ptr, at, n, a, p, scale)
        _write(x_ptr, y_ptr, at + BLOCK, n, b, p, scale)
        _write(x_ptr, y_ptr, at + 2 * BLOCK, n, c, p, scale)
        _write(x_ptr, y_ptr, at + 3 * BLOCK, n, d, p, scale)


def available(x: Tensor) -> bool:
    """Whether the kernel can run on this tensor."""
    return triton is not None and x.is_cuda


class Dropout(torch.autograd.Function):
    """x with each element zeroed with probability p, the rest scaled by 1 / (1 - p)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, generator: torch.Generator | None) -> Tensor:
        seed = torch.empty(1, dtype=torch.int64, device=x.device).random_(generator=generator)
        ctx.save_for_backward(seed)
        ctx.p = p
        return _apply(x, seed, p)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (seed,) = ctx.saved_tensors
        return _apply(grads[0], seed, ctx.p), None, None


def _apply(x: Tensor, seed: Tensor, p: float) -> Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 4 * BLOCK),)
    _mask_and_scale[grid](x, y, seed, x.numel(), p, 1 / (1 - p), BLOCK=BLOCK)
    return y
