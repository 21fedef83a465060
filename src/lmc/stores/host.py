"""Tables in host memory, page-locked where the training device is a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lmc.kernels.packed import Packed
from lmc.kernels.pinned import allocate_pages
from lmc.stores.base import Table
from lmc.stores.bundle import members
from lmc.stores.host_rows import HostRows
from lmc.stores.staged import StagedTable


def host_zeros(num_rows: int, widths: Sequence[int], dtype: torch.dtype, device: torch.device) -> HostRows:
    """Zeros in host memory, for one table or for a bundle of several widths."""
    shape = (num_rows * sum(widths),)
    flat = allocate_pages(shape, dtype) if device.type == "cuda" else torch.zeros(shape, dtype=dtype)
    return HostRows(Packed.over(flat, widths, device), device)


@dataclass(frozen=True)
class Pinned:
    """Rows in page-locked host memory, which the GPU reads and writes itself: for tables that do not fit on it."""

    name: str = "host"

    def table(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Table:
        return StagedTable(host_zeros(num_rows, [width], dtype, device))

    def tables(self, num_rows: int, widths: Sequence[int], dtype: torch.dtype, device: torch.device) -> list[Table]:
        return members(StagedTable(host_zeros(num_rows, widths, dtype, device)))
