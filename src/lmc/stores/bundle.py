"""Tables whose rows travel together: a step reads and writes them at the same rows, so one order serves them all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lmc.stores.base import Rows, Store, Table
from lmc.stores.staged import StagedTable


class Carried:
    """One of the tables that a :class:`StagedTable` carries. Asking for rows ahead asks for those of all."""

    def __init__(self, carrier: StagedTable, index: int) -> None:
        self.carrier, self._index = carrier, index

    @property
    def tier(self) -> str:
        return self.carrier.tier

    @property
    def stages(self) -> bool:
        return self.carrier.stages

    def pull(self, rows: Rows) -> Tensor:
        return self.carrier.pull(rows, self._index)

    def push(self, rows: Rows, values: Tensor) -> None:
        self.carrier.push(rows, values, self._index)

    def add(self, rows: Rows, values: Tensor) -> None:
        self.carrier.add(rows, values, self._index)

    def prefetch(self, *rows: Rows) -> None:
        self.carrier.prefetch(*rows)

    def data(self) -> Tensor:
        return self.carrier.data(self._index)

    def delivered(self, *rows: Rows) -> Tensor | None:
        return self.carrier.delivered(*rows, plane=self._index)


@runtime_checkable
class Carries(Protocol):
    """A store that can make tables which travel together."""

    def tables(self, num_rows: int, widths: Sequence[int], dtype: torch.dtype, device: torch.device) -> list[Table]: ...


def tables_of(
    store: Store, num_rows: int, widths: Sequence[int], dtype: torch.dtype, device: torch.device
) -> list[Table]:
    """Tables of zeros that are read and written at the same rows."""
    if len(widths) > 1 and isinstance(store, Carries):
        return store.tables(num_rows, widths, dtype, device)
    return [store.table(num_rows, width, dtype, device) for width in widths]


def carried(carrier: StagedTable) -> list[Table]:
    """The tables that it carries."""
    return [Carried(carrier, k) for k in range(carrier.num_planes)]


def carriers(tables: Iterable[Table | None]) -> list[StagedTable]:
    """What the rows of these tables travel with, each once."""
    found = (table.carrier if isinstance(table, Carried) else table for table in tables)
    return list(dict.fromkeys(table for table in found if isinstance(table, StagedTable)))
