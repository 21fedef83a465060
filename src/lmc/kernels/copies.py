"""Copies of rows that are recorded in CUDA graphs."""

from __future__ import annotations

import torch
from torch import Tensor


def copied(values: Tensor, out: Tensor | None = None) -> Tensor:
    """A copy of ``values``, in ``out`` where it is given.

    On a GPU it is a product with one, since a graph replays torch's own copies of large tensors with 60 % of the
    bandwidth.
    """
    if values.is_cuda and (out is None or out.device == values.device):
        return torch.mul(values, 1, out=out)
    return values.clone() if out is None else out.copy_(values)
