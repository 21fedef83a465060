"""Host memory, page-locked where the training device is a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lmc.graph import pages
from lmc.history.base import Table
from lmc.history.staged import StagedTable


class HostTable(StagedTable):
    """Rows in host memory (:class:`StagedTable` says how they travel)."""

    def __init__(
        self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device, behind: bool | None = None
    ) -> None:
        own = device.type == "cuda"
        rows = pages((num_rows, width), dtype) if own else torch.zeros(num_rows, width, dtype=dtype)
        super().__init__(rows, device, behind)


@dataclass(frozen=True)
class Pinned:
    """Rows in page-locked host memory, which the GPU reads and writes itself: for tables that do not fit on it."""

    name: str = "host"

    def table(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Table:
        return HostTable(num_rows, width, dtype, device)
