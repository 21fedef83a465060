"""Mini-batches of rows in random order."""

from __future__ import annotations

import torch
from torch import Tensor


def shuffled(rows: Tensor, batch_size: int, seed: int) -> list[Tensor]:
    """All of ``rows`` in random order, in batches of at most ``batch_size`` rows whose sizes differ by at most one."""
    order = torch.randperm(rows.numel(), generator=torch.Generator().manual_seed(seed))
    return list(rows[order.to(rows.device)].tensor_split(num_batches(rows.numel(), batch_size)))


def num_batches(num_rows: int, batch_size: int) -> int:
    """The number of batches in an epoch."""
    return max(1, -(-num_rows // batch_size))
