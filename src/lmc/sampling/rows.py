"""Mini-batches of rows: seeds in random order, and the generators their samples come from."""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.sampling.seeds import derive


def shuffled(rows: Tensor, batch_size: int, seed: int) -> list[Tensor]:
    """All of ``rows`` in random order, in batches that differ by one row at most and none above ``batch_size``."""
    order = torch.randperm(rows.numel(), generator=torch.Generator().manual_seed(seed))
    return list(rows[order.to(rows.device)].tensor_split(num_batches(rows.numel(), batch_size)))


def num_batches(num_rows: int, batch_size: int) -> int:
    """Batches in an epoch."""
    return max(1, -(-num_rows // batch_size))


def generator(device: torch.device, seed: int, *names: object) -> torch.Generator:
    """The stream called ``names`` under ``seed``, on the device where its numbers are used."""
    return torch.Generator(device).manual_seed(derive(seed, *names))
