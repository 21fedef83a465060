"""Row-wise work as Triton kernels that read every row once and write it once; plain torch is the reference, and what
runs where Triton is not.

- Dropout keeps no mask: it is drawn again in the backward pass from the same seed, which stays on the device, so that a
  step neither waits for it nor stores it (:mod:`lmc.kernels.dropout`).
- ReLU with the dropout that follows it, in one pass each way; the mask need not be drawn again, since a row that was
  dropped, or cut off, is zero.
- Sums of columns, in an order that does not depend on chance.
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
ROWS = 16
"""Rows whose columns a program adds up at a time."""
PROGRAMS = 512
"""That share the rows of a sum, at most."""

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

    @triton.jit
    def _rectify(s_ptr, h_ptr, t_ptr, at, n, draw, p, scale):  # type: ignore[no-untyped-def]
        s = tl.load(s_ptr + at, mask=at < n)
        h = tl.where(s < 0, 0.0, s)  # not a number stays what it is
        tl.store(h_ptr + at, h, mask=at < n)
        tl.store(t_ptr + at, tl.where(draw >= p, h * scale, 0.0), mask=at < n)

    @triton.jit
    def _rectify_and_drop(s_ptr, h_ptr, t_ptr, seed_ptr, n, p, scale, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        block = tl.program_id(0).to(tl.int64) * BLOCK
        a, b, c, d = tl.rand4x(tl.load(seed_ptr), block + tl.arange(0, BLOCK))
        at = 4 * block + tl.arange(0, BLOCK)
        _rectify(s_ptr, h_ptr, t_ptr, at, n, a, p, scale)
        _rectify(s_ptr, h_ptr, t_ptr, at + BLOCK, n, b, p, scale)
        _rectify(s_ptr, h_ptr, t_ptr, at + 2 * BLOCK, n, c, p, scale)
        _rectify(s_ptr, h_ptr, t_ptr, at + 3 * BLOCK, n, d, p, scale)

    @triton.jit
    def _back(  # type: ignore[no-untyped-def]
        gt_ptr, t_ptr, gh_ptr, h_ptr, gs_ptr, n, scale, T: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr
    ):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        if T:
            g = tl.where(tl.load(t_ptr + at, mask=inside) > 0, tl.load(gt_ptr + at, mask=inside) * scale, 0.0)
            if H:
                g += tl.where(tl.load(h_ptr + at, mask=inside) > 0, tl.load(gh_ptr + at, mask=inside), 0.0)
        else:
            g = tl.where(tl.load(h_ptr + at, mask=inside) > 0, tl.load(gh_ptr + at, mask=inside), 0.0)
        tl.store(gs_ptr + at, g, mask=inside)

    @triton.jit
    def _add_up(v_ptr, out_ptr, n, d, stride, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
        i, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
        wide = out_ptr.dtype.element_ty
        total = tl.zeros((ROWS, WIDTH), dtype=wide)
        for first in range(0, n, tl.num_programs(0) * ROWS):
            inside = (first + i < n)[:, None] & (k < d)[None, :]
            at = (first + i)[:, None].to(tl.int64) * stride + k[None, :]
            total += tl.load(v_ptr + at, mask=inside, other=0.0).to(wide)
        tl.store(out_ptr + tl.program_id(0) * d + k, tl.sum(total, 0), mask=k < d)


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


class RectifyAndDrop(torch.autograd.Function):
    """h = relu(s), and t = h with dropout."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, p: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        s = s.contiguous()
        seed = torch.empty(1, dtype=torch.int64, device=s.device).random_(generator=generator)
        h, t = torch.empty_like(s), torch.empty_like(s)
        scale = 1 / (1 - p)
        _rectify_and_drop[(triton.cdiv(s.numel(), 4 * BLOCK),)](s, h, t, seed, s.numel(), p, scale, BLOCK=BLOCK)
        ctx.save_for_backward(h, t)
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        return h, t

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None]:
        h, t = ctx.saved_tensors
        gh, gt = (None if g is None else g.contiguous() for g in grads)
        if gh is None and gt is None:
            return None, None, None
        gs = torch.empty_like(h)
        grid = (triton.cdiv(h.numel(), BLOCK),)
        # a pointer that is not read has to be one all the same
        _back[grid](
            h if gt is None else gt, t, h if gh is None else gh, h, gs, h.numel(), ctx.scale,
            T=gt is not None, H=gh is not None, BLOCK=BLOCK,
        )  # fmt: skip
        return gs, None, None


def column_sums(v: Tensor) -> Tensor:
    """v.sum(0), in float32 at least, of a matrix whose rows are contiguous."""
    n, d = v.shape
    programs = max(1, min(PROGRAMS, triton.cdiv(n, ROWS)))
    partial = v.new_empty(programs, d, dtype=torch.promote_types(v.dtype, torch.float32))
    _add_up[(programs,)](v, partial, n, d, v.stride(0), ROWS=ROWS, WIDTH=triton.next_power_of_2(d))
    return partial.sum(0)
