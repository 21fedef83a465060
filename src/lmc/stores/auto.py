"""The fastest tier that has room, chosen table by table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from lmc.stores.base import Store, Table
from lmc.stores.bundle import tables_of
from lmc.stores.device import Device
from lmc.stores.disk import Disk
from lmc.stores.host import Pinned
from lmc.stores.memory import free_memory

SHARE = 0.6
"""The share of the free memory that tables may take; the rest is for the steps."""


@dataclass(frozen=True)
class Auto:
    """Each table on the fastest tier with room for it: device, host memory or disk. ``run.tiers`` shows the choice.

    Args:
        path: the folder of tables on disk, as for :class:`Disk`.
    """

    path: str | Path | None = None
    name: str = "auto"

    def table(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Table:
        return self.choose(num_rows * width * dtype.itemsize, device).table(num_rows, width, dtype, device)

    def tables(self, num_rows: int, widths: Sequence[int], dtype: torch.dtype, device: torch.device) -> list[Table]:
        """Tables of zeros; consecutive ones that fit on the same tier outside of the device form a bundle."""
        found: list[Table] = []
        while left := widths[len(found) :]:
            sizes = [num_rows * sum(left[: k + 1]) * dtype.itemsize for k in range(len(left))]
            tiers = [self.choose(size, device) for size in sizes]
            fitting = [k + 1 for k, tier in enumerate(tiers) if tier.name == tiers[0].name]
            num = 1 if tiers[0].name == "device" else max(fitting)
            found += tables_of(tiers[0], num_rows, left[:num], dtype, device)
        return found

    def choose(self, size: int, device: torch.device) -> Store:
        """The tier for a table of ``size`` bytes, by the memory that is free now."""
        if size <= SHARE * free_memory(device):
            return Device()
        host = torch.device("cpu")
        if device.type != "cpu" and size <= SHARE * free_memory(host):
            return Pinned()
        return Disk(self.path)
