"""Rows of tables that a step on a GPU may read and write where they lie, instead of pulling and pushing copies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.kernels.availability import triton_available
from lmc.stores.base import Rows, Table
from lmc.stores.bundle import BundleMember
from lmc.stores.device import DeviceTable
from lmc.stores.staged import StagedTable


@dataclass(frozen=True, eq=False)
class InPlace:
    """The memory of some tables at the rows core, then halo.

    Args:
        tables: the tables.
        tensors: the memory of each of them.
        rows: where the rows stand in the tensors.
        core, halo: the rows, as the tables number them.
        delivered: whether the tensors are copies that were delivered to this step.
    """

    tables: tuple[Table, ...]
    tensors: tuple[Tensor, ...]
    rows: Tensor
    core: Rows
    halo: Tensor
    delivered: bool

    def write_back(self, with_halo: Table) -> None:
        """The step has changed the core rows, and the halo rows of ``with_halo``; tables on the device have changed
        with the tensors."""
        if not self.delivered:
            return
        c = self.rows.numel() - self.halo.numel()
        for table, tensor in zip(self.tables, self.tensors, strict=True):
            table.push(self.core, tensor[:c])
            if table is with_halo:
                table.push(self.halo, tensor[c:])


def in_place(tables: tuple[Table, ...], core: Rows, halo: Tensor, ext: Tensor) -> InPlace | None:
    """The memory of the tables at core and halo; None where a step has to pull and push."""
    if not triton_available(ext):
        return None
    if all(isinstance(table, DeviceTable) for table in tables):
        return InPlace(tables, tuple(table.data() for table in tables), ext, core, halo, delivered=False)
    staged = [table for table in tables if isinstance(table, StagedTable | BundleMember)]
    found = [table.delivered(core, halo) for table in staged]
    if len(staged) < len(tables) or any(tensor is None for tensor in found):
        return None
    rows = torch.arange(ext.numel(), device=ext.device)
    return InPlace(tables, tuple(t for t in found if t is not None), rows, core, halo, delivered=True)
