"""Dropout with cheap random numbers, alone or together with the ReLU before it.

**Plain torch.** ``torch.nn.functional.dropout`` draws a float for every element, which takes longer on a CPU than the
sparse product of the layer. Here 64 random bits serve eight elements (rates that are multiples of 1/256, such as 0.5)
or four (any other rate, rounded to a multiple of 1/65536). The kept values are scaled by the rate after rounding, so
that the mean is exact.

**Triton.** No mask is stored: the backward pass draws it again from the same seed, which stays on the device, so that
the host does not wait for it. ReLU and the dropout after it are one pass over the rows in each direction. Their
backward pass needs no mask either, since an element that was dropped or cut off is zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmc.kernels.availability import tl, triton, triton_available

BLOCK = 1024
_INT64_MIN = -(2**63)

if triton is not None:

    @triton.jit
    def _drop_block(x_ptr, y_ptr, at, n, draw, p, scale):  # type: ignore[no-untyped-def]
        x = tl.load(x_ptr + at, mask=at < n)
        tl.store(y_ptr + at, tl.where(draw >= p, x * scale, 0.0), mask=at < n)

    @triton.jit(do_not_specialize=["n"])  # it differs from batch to batch
    def _drop(x_ptr, y_ptr, seed_ptr, n, p, scale, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        # one draw of Philox gives four numbers, so a program serves four blocks
        block = tl.program_id(0).to(tl.int64) * BLOCK
        a, b, c, d = tl.rand4x(tl.load(seed_ptr), block + tl.arange(0, BLOCK))
        at = 4 * block + tl.arange(0, BLOCK)
        _drop_block(x_ptr, y_ptr, at, n, a, p, scale)
        _drop_block(x_ptr, y_ptr, at + BLOCK, n, b, p, scale)
        _drop_block(x_ptr, y_ptr, at + 2 * BLOCK, n, c, p, scale)
        _drop_block(x_ptr, y_ptr, at + 3 * BLOCK, n, d, p, scale)

    @triton.jit
    def _relu_drop_block(s_ptr, h_ptr, t_ptr, at, n, draw, p, scale):  # type: ignore[no-untyped-def]
        s = tl.load(s_ptr + at, mask=at < n)
        h = tl.where(s < 0, 0.0, s)  # NaN stays NaN
        tl.store(h_ptr + at, h, mask=at < n)
        tl.store(t_ptr + at, tl.where(draw >= p, h * scale, 0.0), mask=at < n)

    @triton.jit(do_not_specialize=["n"])
    def _relu_drop(s_ptr, h_ptr, t_ptr, seed_ptr, n, p, scale, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        block = tl.program_id(0).to(tl.int64) * BLOCK
        a, b, c, d = tl.rand4x(tl.load(seed_ptr), block + tl.arange(0, BLOCK))
        at = 4 * block + tl.arange(0, BLOCK)
        _relu_drop_block(s_ptr, h_ptr, t_ptr, at, n, a, p, scale)
        _relu_drop_block(s_ptr, h_ptr, t_ptr, at + BLOCK, n, b, p, scale)
        _relu_drop_block(s_ptr, h_ptr, t_ptr, at + 2 * BLOCK, n, c, p, scale)
        _relu_drop_block(s_ptr, h_ptr, t_ptr, at + 3 * BLOCK, n, d, p, scale)

    @triton.jit
    def relu_dropout_adjoint(  # type: ignore[no-untyped-def]
        at, mask, gt_ptr, t_ptr, gh_ptr, h_ptr, scale, T: tl.constexpr, H: tl.constexpr, TYPE: tl.constexpr
    ):
        # an element that was dropped or cut off is zero
        g = tl.zeros(at.shape, dtype=TYPE)
        if T:
            kept = tl.load(t_ptr + at, mask=mask, other=0.0) > 0
            g += tl.where(kept, tl.load(gt_ptr + at, mask=mask, other=0.0).to(TYPE) * scale, 0.0)
        if H:
            kept = tl.load(h_ptr + at, mask=mask, other=0.0) > 0
            g += tl.where(kept, tl.load(gh_ptr + at, mask=mask, other=0.0).to(TYPE), 0.0)
        return g

    @triton.jit(do_not_specialize=["n"])
    def _relu_drop_back(  # type: ignore[no-untyped-def]
        gt_ptr, t_ptr, gh_ptr, h_ptr, gs_ptr, n, scale, T: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr
    ):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        g = relu_dropout_adjoint(at, at < n, gt_ptr, t_ptr, gh_ptr, h_ptr, scale, T, H, gs_ptr.dtype.element_ty)
        tl.store(gs_ptr + at, g, mask=at < n)


def dropout(x: Tensor, p: float, generator: torch.Generator | None = None) -> Tensor:
    """x with each element zeroed with probability ``p``, and the others scaled by 1 / (1 - p)."""
    if p == 0:
        return x
    return (_FusedDropout if triton_available(x) else _PlainDropout).apply(x, p, generator)


def relu_dropout(s: Tensor, p: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor | None]:
    """h = relu(s), and h after dropout where one kernel makes both; else None, and the caller drops h when it needs to.

    Drawing late in the plain version keeps the random stream of a CPU run independent of what is fused.
    """
    return _FusedReluDropout.apply(s, p, generator) if triton_available(s) else (s.relu(), None)


def keep_mask(like: Tensor, p: float, generator: torch.Generator | None) -> tuple[Tensor, float]:
    """A boolean mask that keeps each element with probability 1 - p, and the scale 1 / (1 - p) to go with it."""
    draw_dtype, levels = (torch.uint8, 2**8) if (p * 2**8).is_integer() else (torch.uint16, 2**16)
    dropped = min(round(p * levels), levels - 1)
    words = -(-like.numel() * draw_dtype.itemsize // 8)
    bits = torch.empty(words, dtype=torch.int64, device=like.device).random_(_INT64_MIN, None, generator=generator)
    scale = levels / (levels - dropped)
    if draw_dtype is torch.uint16:
        # torch compares int16 on every device; both sides are shifted by half the range
        draw_dtype, dropped = torch.int16, dropped - levels // 2
    return (bits.view(draw_dtype)[: like.numel()] >= dropped).view(like.shape), scale


class _PlainDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, generator: torch.Generator | None) -> Tensor:
        keep, scale = keep_mask(x, p, generator)
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return (x * keep).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        return (grads[0] * keep).mul_(ctx.scale), None, None


class _FusedDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, generator: torch.Generator | None) -> Tensor:
        seed = seed_of(x, generator)
        ctx.save_for_backward(seed)
        ctx.p = p
        return _launch_drop(x, seed, p)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (seed,) = ctx.saved_tensors
        return _launch_drop(grads[0], seed, ctx.p), None, None


class _FusedReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, s: Tensor, p: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        s = s.contiguous()
        seed, scale = seed_of(s, generator), 1 / (1 - p)
        h, t = torch.empty_like(s), torch.empty_like(s)
        _relu_drop[(triton.cdiv(s.numel(), 4 * BLOCK),)](s, h, t, seed, s.numel(), p, scale, BLOCK=BLOCK)
        ctx.save_for_backward(h, t)
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        return h, t

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None]:
        h, t = ctx.saved_tensors
        if not any(g is not None for g in grads):
            return None, None, None
        gs = torch.empty_like(h)
        given, which = adjoint_arguments(h, t, *grads)
        _relu_drop_back[(triton.cdiv(h.numel(), BLOCK),)](*given, gs, h.numel(), ctx.scale, **which, BLOCK=BLOCK)
        return gs, None, None


def adjoint_arguments(
    h: Tensor, t: Tensor | None, gh: Tensor | None, gt: Tensor | None
) -> tuple[tuple[Tensor, ...], dict[str, bool]]:
    """The gradients of h = relu(s) and of t, which is h after dropout, as ``relu_dropout_adjoint`` reads them, and
    which of them there are; a kernel needs a pointer also for what it does not read."""
    given = h if gt is None else gt.contiguous(), h if t is None else t, h if gh is None else gh.contiguous(), h
    return given, {"T": gt is not None, "H": gh is not None}


def seed_of(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """The seed of a mask, which stays on the device."""
    return torch.empty(1, dtype=torch.int64, device=like.device).random_(generator=generator)


def _launch_drop(x: Tensor, seed: Tensor, p: float) -> Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    _drop[(triton.cdiv(x.numel(), 4 * BLOCK),)](x, y, seed, x.numel(), p, 1 / (1 - p), BLOCK=BLOCK)
    return y
