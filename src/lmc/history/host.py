"""Host memory, page-locked where the training device is a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lmc.history.base import Table
from lmc.history.staged import StagedTable


class HostTable(StagedTable):
    """Rows in host memory (:class:`StagedTable` says how they travel)."""

    def __init__(
        self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device, behind: bool | None = None
    ) -> None:
        # the rows themselves are gathered by the host: the copies it makes of them are page-locked, not they
        super().__init__(torch.zeros(num_rows, width, dtype=dtype), device, behind)


@dataclass(frozen=True)
class Pinned:
    """Rows in host memory, copied through page-locked buffers: for tables that do not fit on the GPU."""

    name: str = "host"

    def table(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Table:
        return HostTable(num_rows, width, dtype, device)
