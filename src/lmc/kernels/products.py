"""Dense products for results that are approximations anyway, on a GPU rounded to 11 bits on the way in; and inverses of
triangular matrices."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

SMALL = 32
"""Rows of the diagonal blocks that a triangular matrix is divided into."""


def coarse_mm(a: Tensor, b: Tensor, minus_from: Tensor | None = None) -> Tensor:
    """a @ b, or ``minus_from`` - a @ b.

    float32 matrices on a GPU are multiplied in TensorFloat-32, which is several times as fast. bfloat16 ones give
    float32 where the rows of a batch are summed over (``a`` is a transposed view).
    """
    if a.dtype == torch.bfloat16 and a.stride(0) == 1:
        product = torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()
        return product if minus_from is None else minus_from - product
    if not (a.is_cuda and a.dtype == torch.float32):
        return _mm(a, b, minus_from)
    matmul = torch.backends.cuda.matmul
    was, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        return _mm(a, b, minus_from)
    finally:
        matmul.fp32_precision = was


def _mm(a: Tensor, b: Tensor, minus_from: Tensor | None) -> Tensor:
    return a @ b if minus_from is None else torch.addmm(minus_from, a, b, alpha=-1)


def lower_inverse(L: Tensor) -> Tensor:
    """L^-1 of lower triangular matrices [k, r, r].

    The diagonal blocks are inverted together, then pairs of blocks are joined until one is left. Torch would solve with
    one matrix after the other.
    """
    k, r, size, s = L.shape[0], L.shape[1], SMALL, SMALL
    while size < r:
        size *= 2
    L = pad(L, (0, size - r, 0, size - r))
    L.diagonal(dim1=1, dim2=2)[:, r:] = 1
    found = _diagonal(L.view(k, -1, s, size // s, s), 1, 3)
    found = torch.linalg.solve_triangular(found, torch.eye(s, dtype=L.dtype, device=L.device), upper=False)
    while s < size:
        a, c = found[:, ::2], found[:, 1::2]
        below = _diagonal(L.view(k, -1, 2, s, size // (2 * s), 2, s)[:, :, 1, :, :, 0], 1, 3)
        left = torch.cat([a, -c @ (below @ a)], -2)
        found = torch.cat([left, pad(c, (0, 0, s, 0))], -1)
        s *= 2
    return found[:, 0, :r, :r]


def _diagonal(blocks: Tensor, row: int, column: int) -> Tensor:
    """The diagonal blocks of a matrix of blocks, [k, blocks, s, s]."""
    return blocks.diagonal(dim1=row, dim2=column).movedim(-1, 1)
