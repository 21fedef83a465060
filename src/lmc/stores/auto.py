"""The fastest tier that has room, table by table."""

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
        """Those that come one after the other on a tier off the device travel together."""
        found: list[Table] = []
        while left := widths[len(found) :]:

            def tier(num: int, left: Sequence[int] = left) -> Store:
                return self.choose(num_rows * sum(left[:num]) * dtype.itemsize, device)

            first = tier(1)
            fitting = [num for num in range(1, len(left) + 1) if tier(num).name == first.name]
            num = 1 if first.name == "device" else max(fitting)
            found += tables_of(first, num_rows, left[:num], dtype, device)
        return found

    def choose(self, size: int, device: torch.device) -> Store:
        """The tier for a table of ``size`` bytes, by what is free now."""
        if size <= SHARE * free_memory(device):
            return Device()
        host = torch.device("cpu")
        if device.type != "cpu" and size <= SHARE * free_memory(host):
            return Pinned()
        return Disk(self.path)
