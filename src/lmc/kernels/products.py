"""Dense products of a chosen precision, whatever torch's settings and autocast are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

BLOCK = 32
"""Rows of a triangular matrix up to which it is inverted as a whole."""


def coarse_mm(a: Tensor, b: Tensor, minus_from: Tensor | None = None) -> Tensor:
    """a @ b, or ``minus_from`` - a @ b, for results that are approximations anyway.

    float32 matrices on a GPU are rounded to 11 bits on the way in (TensorFloat-32), which is several times as fast.
    bfloat16 ones give float32 where the rows of a batch are summed over (``a`` is a transposed view).
    """
    with _precision(a, "tf32"):
        b = b.to(a.dtype)
        if a.dtype == torch.bfloat16 and a.stride(0) == 1:
            product = torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()
            return product if minus_from is None else minus_from - product
        return a @ b if minus_from is None else torch.addmm(minus_from, a, b, alpha=-1)


def add_coarse_mm(out: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """out += a @ b in place, with the precision of :func:`coarse_mm`."""
    with _precision(a, "tf32"):
        return torch.addmm(out, a, b.to(a.dtype), out=out)


def exact_mm(a: Tensor, b: Tensor) -> Tensor:
    """a @ b rounded once, in the dtype of ``a``: for an inverse of large condition, where even 11 bits are too few."""
    with _precision(a, "ieee"):
        return a @ b.to(a.dtype)


def lower_inverse(L: Tensor) -> Tensor:
    """L^-1 of lower triangular matrices [k, r, r]. Halves of the diagonal are inverted at once, since a GPU solves for
    the rows of a triangle one block after the other."""
    k, r, _ = L.shape
    h = r // 2
    if r <= BLOCK or r % 2:
        eye = torch.eye(r, dtype=L.dtype, device=L.device)
        return torch.linalg.solve_triangular(L, eye.expand_as(L), upper=False)
    upper, lower = lower_inverse(torch.cat([L[:, :h, :h], L[:, h:, h:]])).split(k)
    inverse = torch.zeros_like(L)
    inverse[:, :h, :h], inverse[:, h:, h:] = upper, lower
    inverse[:, h:, :h] = -exact_mm(exact_mm(lower, L[:, h:, :h]), upper)
    return inverse


@contextmanager
def _precision(a: Tensor, float32: str) -> Iterator[None]:
    """Products within are not narrowed by autocast; those of float32 on a GPU have this precision."""
    settings = torch.backends.cuda.matmul
    was = settings.fp32_precision
    narrows = torch.is_autocast_enabled(a.device.type)
    with torch.autocast(a.device.type, enabled=False) if narrows else nullcontext():
        settings.fp32_precision = float32
        try:
            yield
        finally:
            settings.fp32_precision = was
