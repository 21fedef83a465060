"""Named random streams: every random choice has a stream of its own, and none uses torch's global generator."""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed for the stream ``names`` of ``seed``; the same on every machine."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def generator(device: torch.device, seed: int, *names: object) -> torch.Generator:
    """A generator of the stream ``names`` of ``seed``, on the device where its numbers are used."""
    return torch.Generator(device).manual_seed(derive(seed, *names))
