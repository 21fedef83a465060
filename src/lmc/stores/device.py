"""The memory of the training device: the fastest tier."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.stores.base import Rows, Table


class DeviceTable:
    """Rows in the memory of the training device."""

    tier, stages = "device", False

    def __init__(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._rows = torch.zeros(num_rows, width, dtype=dtype, device=device)

    def pull(self, rows: Rows) -> Tensor:
        return self._rows[rows] if isinstance(rows, slice) else self._rows.index_select(0, rows)

    def push(self, rows: Rows, values: Tensor) -> None:
        write(self._rows, rows, values, adds=False)

    def add(self, rows: Rows, values: Tensor) -> None:
        write(self._rows, rows, values, adds=True)

    def prefetch(self, *rows: Rows) -> None:
        """Nothing to do: the rows are here."""

    def data(self) -> Tensor:
        return self._rows


def write(table: Tensor, rows: Rows, values: Tensor, adds: bool) -> None:
    """table[rows] = values, or += values."""
    values = values.to(table.dtype)
    if isinstance(rows, slice):
        table[rows].add_(values) if adds else table[rows].copy_(values)
    else:
        table.index_add_(0, rows, values) if adds else table.index_copy_(0, rows, values)


@dataclass(frozen=True)
class Device:
    """Rows in the memory of the training device."""

    name: str = "device"

    def table(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Table:
        return DeviceTable(num_rows, width, dtype, device)
