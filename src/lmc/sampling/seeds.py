"""Named random streams: every random choice has a stream of its own, and none uses torch's global generator."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed for the stream ``names`` of ``seed``; the same on every machine."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def generator(device: torch.device, seed: int, *names: object) -> torch.Generator:
    """A generator of the stream ``names`` of ``seed``, on the device where its numbers are used."""
    return torch.Generator(device).manual_seed(derive(seed, *names))


def shuffled(rows: Tensor, batch_size: int, seed: int) -> list[Tensor]:
    """All of ``rows`` in random order, in batches of at most ``batch_size`` rows whose sizes differ by at most one."""
    order = torch.randperm(rows.numel(), generator=torch.Generator().manual_seed(seed))
    return list(rows[order.to(rows.device)].tensor_split(num_batches(rows.numel(), batch_size)))


def num_batches(num_rows: int, batch_size: int) -> int:
    """The number of batches in an epoch."""
    return max(1, -(-num_rows // batch_size))
