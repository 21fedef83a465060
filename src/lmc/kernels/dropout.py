"""Dropout with cheap random numbers.

``torch.nn.functional.dropout`` draws a float for every element; on a CPU that takes longer than the sparse product of
the layer. Here 64 random bits serve eight elements (rates that are multiples of 1/256, such as 0.5) or four (any
other rate, rounded to a multiple of 1/65536). The kept values are scaled by the rate that was really used, so that
the mean is exact either way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmc.graph import CSR
from lmc.kernels import rows as fused

_INT64 = -(2**63)


def keep_mask(like: Tensor, p: float, generator: torch.Generator | None) -> tuple[Tensor, float]:
    """A boolean mask that keeps each element with probability 1 - p, and the scale 1 / (1 - p) to go with it."""
    lane, levels = (torch.uint8, 2**8) if (p * 2**8).is_integer() else (torch.uint16, 2**16)
    dropped = min(round(p * levels), levels - 1)
    words = -(-like.numel() * lane.itemsize // 8)
    bits = torch.empty(words, dtype=torch.int64, device=like.device).random_(_INT64, None, generator=generator)
    if lane is torch.uint16:
        # int16, since torch compares it everywhere; the draw is the same shifted by half the range
        draw, dropped = bits.view(torch.int16), dropped - levels // 2
        scale = levels / (levels // 2 - dropped)
    else:
        draw = bits.view(lane)
        scale = levels / (levels - dropped)
    return (draw[: like.numel()] >= dropped).view(like.shape), scale


class _Dropout(torch.autograd.Function):
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


def dropout(x: Tensor | CSR, p: float, generator: torch.Generator | None = None) -> Tensor | CSR:
    """Zero each element (each stored element of a sparse matrix) with probability ``p`` and rescale the rest."""
    if p == 0:
        return x
    if isinstance(x, CSR):
        keep, scale = keep_mask(x.data, p, generator)
        return CSR(x.indptr, x.indices, x.data * keep * scale, x.num_cols)
    if fused.available(x):
        return fused.Dropout.apply(x, p, generator)
    return _Dropout.apply(x, p, generator)
