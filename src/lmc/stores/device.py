"""Tables in the memory of the training device: the fastest tier."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.kernels.packed import Rows
from lmc.stores.base import Table, write_rows


class DeviceTable:
    """Rows in the memory of the training device."""

    tier, staged = "device", False

    def __init__(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._rows = torch.zeros(num_rows, width, dtype=dtype, device=device)

    def pull(self, rows: Rows) -> Tensor:
        return self._rows[rows] if isinstance(rows, slice) else self._rows.index_select(0, rows)

    def push(self, rows: Rows, values: Tensor) -> None:
        write_rows(self._rows, rows, values, adds=False)

    def add(self, rows: Rows, values: Tensor) -> None:
        write_rows(self._rows, rows, values, adds=True)

    def prefetch(self, *rows: Rows) -> None:
        """Do nothing: the rows are on the device."""

    def data(self) -> Tensor:
        return self._rows


@dataclass(frozen=True)
class Device:
    """Rows in the memory of the training device."""

    name: str = "device"

    def table(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Table:
        return DeviceTable(num_rows, width, dtype, device)
