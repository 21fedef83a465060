"""Rows and columns that are written within CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence

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


def unwritten(constant: Tensor) -> bool:
    """Whether a constant, which is not zero, has to be written into this memory of zeros.

    A GPU is not asked, since the host would wait for the answer: there it is written again.
    """
    return constant.is_cuda or not bool(constant.any())


def column_of(values: Sequence[float], like: Tensor) -> float | Tensor:
    """The values as a column [k, 1], written one by one, since a recording transfers nothing from the host; one number
    if they are equal."""
    alike = min(values) == max(values)
    return values[0] if alike else torch.cat([like.new_full((1, 1), value) for value in values])
