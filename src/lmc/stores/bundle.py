"""Bundles: tables that steps read and write at the same rows, so that one transfer serves all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lmc.kernels.packed import Rows
from lmc.stores.base import Store, Table
from lmc.stores.staged import StagedTable


class BundleMember:
    """One table of a bundle. A prefetch fetches the rows of all members."""

    def __init__(self, bundle: StagedTable, index: int) -> None:
        self.bundle, self._index = bundle, index
        self.tier, self.staged = bundle.tier, bundle.staged

    def pull(self, rows: Rows) -> Tensor:
        return self.bundle.pull(rows, self._index)

    def push(self, rows: Rows, values: Tensor) -> None:
        self.bundle.push(rows, values, self._index)

    def add(self, rows: Rows, values: Tensor) -> None:
        self.bundle.add(rows, values, self._index)

    def prefetch(self, *rows: Rows) -> None:
        self.bundle.prefetch(*rows)

    def data(self) -> Tensor:
        return self.bundle.data(self._index)

    def delivered(self, *rows: Rows) -> Tensor | None:
        return self.bundle.delivered(*rows, member=self._index)


@runtime_checkable
class BundlingStore(Protocol):
    """A store that can make bundles."""

    def tables(self, num_rows: int, widths: Sequence[int], dtype: torch.dtype, device: torch.device) -> list[Table]: ...


def tables_of(
    store: Store, num_rows: int, widths: Sequence[int], dtype: torch.dtype, device: torch.device
) -> list[Table]:
    """Tables of zeros that steps read and write at the same rows; a bundle where the store makes bundles."""
    if len(widths) > 1 and isinstance(store, BundlingStore):
        return store.tables(num_rows, widths, dtype, device)
    return [store.table(num_rows, width, dtype, device) for width in widths]


def members(bundle: StagedTable) -> list[Table]:
    """The tables of a bundle."""
    return [BundleMember(bundle, k) for k in range(len(bundle.host.packed))]


def staged_tables(tables: Iterable[Table | None]) -> list[StagedTable]:
    """The staged tables among ``tables``; a bundle counts once, whichever of its members are given."""
    found = (table.bundle if isinstance(table, BundleMember) else table for table in tables)
    return list(dict.fromkeys(table for table in found if isinstance(table, StagedTable)))
