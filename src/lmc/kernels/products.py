"""Dense products for results that are approximations anyway: on a GPU they are rounded to 11 bits on the way in."""

from __future__ import annotations

import torch
from torch import Tensor


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
