"""The tiers of memory: device, host and disk, and the fastest of them that has room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from lmc.errors import ConfigError
from lmc.stores.base import DeviceTable, Store, Table, tables_of
from lmc.stores.disk import FileRows
from lmc.stores.host import host_zeros
from lmc.stores.memory import free_memory
from lmc.stores.staged import StagedTable, members

SHARE = 0.6
"""The share of the free memory that tables may take; the rest is for the steps."""


@dataclass(frozen=True)
class Device:
    """Rows in the memory of the training device: the fastest tier."""

    name: str = "device"

    def table(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Table:
        return DeviceTable(num_rows, width, dtype, device)


@dataclass(frozen=True)
class Pinned:
    """Rows in page-locked host memory, which the GPU reads and writes itself: for tables that do not fit on it."""

    name: str = "host"

    def table(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Table:
        return StagedTable(host_zeros(num_rows, [width], dtype, device))

    def tables(self, num_rows: int, widths: Sequence[int], dtype: torch.dtype, device: torch.device) -> list[Table]:
        return members(StagedTable(host_zeros(num_rows, widths, dtype, device)))


@dataclass(frozen=True)
class Disk:
    """Rows in a file, mapped into memory and removed at the end.

    Args:
        path: the folder of the file; by default the system's folder for temporary files. It should be on a fast local
            disk with room for the tables, and not on a file system in memory, which /tmp is on some systems.
    """

    path: str | Path | None = None
    name: str = "disk"

    def table(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Table:
        return StagedTable(FileRows(num_rows, [width], dtype, device, self.path), tier=self.name)

    def tables(self, num_rows: int, widths: Sequence[int], dtype: torch.dtype, device: torch.device) -> list[Table]:
        return members(StagedTable(FileRows(num_rows, widths, dtype, device, self.path), tier=self.name))


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
        if device.type != "cpu" and size <= SHARE * free_memory(torch.device("cpu")):
            return Pinned()
        return Disk(self.path)


TIERS: dict[str, Store] = {"auto": Auto(), "device": Device(), "disk": Disk(), "host": Pinned()}


def store(choice: str | Store, name: str = "history") -> Store:
    """The store named "device", "host", "disk" ("disk:/path" for a folder) or "auto"; a store is returned as it is.

    Args:
        name: the option, for messages.
    """
    if not isinstance(choice, str) and hasattr(choice, "table"):
        return choice
    if isinstance(choice, str) and choice.startswith("disk:"):
        return Disk(choice.removeprefix("disk:"))
    if choice not in TIERS:
        raise ConfigError(f"expected {name} in {sorted(TIERS)}, or disk:FOLDER (got {choice!r})")
    return TIERS[choice]
