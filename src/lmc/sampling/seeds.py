"""Seeds derived from seeds: every source of chance has its own stream, and none touches a global one."""

from __future__ import annotations

import hashlib


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed for the stream called ``names`` under ``seed``; the same on every machine."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1
