"""The fastest tier that has room, table by table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from lmc.history.base import Store, Table
from lmc.history.carried import tables_of
from lmc.history.device import Device
from lmc.history.disk import Disk
from lmc.history.host import Pinned
from lmc.history.memory import free_memory

SHARE = 0.6
"""Of the memory that is free, what tables may take; the rest is for the steps."""


@dataclass(frozen=True)
class Auto:
    """Every table on the fastest tier with room for it: the device, host memory, disk. ``run.tiers`` tells.

    Args:
        path: as for :class:`Disk`.
    """

    path: str | Path | None = None
    name: str = "auto"

    def table(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Table:
        return self.choose(num_rows * width * dtype.itemsize, device).table(num_rows, width, dtype, device)

    def tables(self, num_rows: int, widths: Sequence[int], dtype: torch.dtype, device: torch.device) -> list[Table]:
        """From the first that finds no room on the device on, they travel together."""
        found: list[Table] = []
        for k, width in enumerate(widths):
            if self.choose(num_rows * width * dtype.itemsize, device).name != "device":
                rest = widths[k:]
                tier = self.choose(num_rows * sum(rest) * dtype.itemsize, device)
                return found + tables_of(tier, num_rows, rest, dtype, device)
            found.append(Device().table(num_rows, width, dtype, device))
        return found

    def choose(self, size: int, device: torch.device) -> Store:
        """The tier for a table of ``size`` bytes, by what is free now."""
        if size <= SHARE * free_memory(device):
            return Device()
        host = torch.device("cpu")
        if device.type != "cpu" and size <= SHARE * free_memory(host):
            return Pinned()
        return Disk(self.path)
