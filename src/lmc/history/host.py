"""Host memory, page-locked where the training device is a GPU."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.history.base import Table
from lmc.history.staged import StagedTable


class HostTable(StagedTable):
    """Rows in host memory (:class:`StagedTable` says how they travel)."""

    def __init__(
        self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device, behind: bool | None = None
    ) -> None:
        super().__init__(_zeros(num_rows, width, dtype, device), device, behind)


def _zeros(num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Pages of their own, which can be locked one table at a time; torch's own page-locked memory comes in powers of
    two."""
    count = num_rows * width
    if device.type != "cuda" or not count:
        return torch.zeros(num_rows, width, dtype=dtype)
    own = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    pages = mmap.mmap(-1, count * dtype.itemsize, **own)
    return torch.frombuffer(pages, dtype=dtype, count=count).view(num_rows, width)


@dataclass(frozen=True)
class Pinned:
    """Rows in page-locked host memory, which the GPU reads and writes itself: for tables that do not fit on it."""

    name: str = "host"

    def table(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Table:
        return HostTable(num_rows, width, dtype, device)
