"""Dense products for results that are approximations anyway: on a GPU they are rounded to 11 bits on the way in."""

from __future__ import annotations

import torch
from torch import Tensor


def coarse_mm(a: Tensor, b: Tensor) -> Tensor:
    """a @ b. float32 matrices on a GPU are multiplied in TensorFloat-32, which is several times as fast; bfloat16 ones
    give float32 where the rows are summed over (``a`` is a transposed view)."""
    if a.dtype == torch.bfloat16 and a.stride(0) == 1:
        return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()
    if not (a.is_cuda and a.dtype == torch.float32):
        return a @ b
    matmul = torch.backends.cuda.matmul
    was, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        return a @ b
    finally:
        matmul.fp32_precision = was
