"""Tables and stores: their protocols, and tables in the memory of the training device.

A table keeps one row per node and outlives a step. A store describes a tier of memory; it is frozen, a part of a
method's settings, and ``store.table(...)`` makes a table. A new tier implements these two protocols; no method changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lmc.kernels.copies import copied
from lmc.kernels.packed import Rows

CHUNK = 2**24
"""Numbers that are copied at a time when a whole table is overwritten."""

PADDING_ROWS = 1
"""Rows behind those of the nodes, for the padding of batches."""


class Table(Protocol):
    """An [n, d] matrix on some tier of memory, whose rows are read and written on the training device."""

    @property
    def tier(self) -> str:
        """The name of the tier."""

    @property
    def staged(self) -> bool:
        """Whether :meth:`prefetch` does anything."""

    def pull(self, rows: Rows) -> Tensor:
        """The rows on the training device, for reading; a range may be a view: use it before the next push. A range on
        the tier "device" is the memory of the table: a caller that pushes it afterwards may write to it."""

    def push(self, rows: Rows, values: Tensor) -> None:
        """Overwrite the rows."""

    def add(self, rows: Rows, values: Tensor) -> None:
        """Add to the rows, which must be distinct."""

    def prefetch(self, *rows: Rows) -> None:
        """Announce that these row objects, and no others, are pulled next. The pull sees what is pushed in between. The
        rows of a step that :class:`lmc.stores.Staging` encloses must be distinct."""

    def data(self) -> Tensor:
        """The whole table on its tier, for checkpoints and diagnostics."""


class Store(Protocol):
    """A tier of memory."""

    @property
    def name(self) -> str: ...

    def table(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Table:
        """A table of zeros whose rows are used on ``device``."""


@runtime_checkable
class BundlingStore(Protocol):
    """A store that can also make bundles: tables that steps read and write at the same rows."""

    def tables(self, num_rows: int, widths: Sequence[int], dtype: torch.dtype, device: torch.device) -> list[Table]: ...


def tables_of(
    store: Store, num_rows: int, widths: Sequence[int], dtype: torch.dtype, device: torch.device
) -> list[Table]:
    """Tables of zeros that steps read and write at the same rows; a bundle where the store makes bundles."""
    if len(widths) > 1 and isinstance(store, BundlingStore):
        return store.tables(num_rows, widths, dtype, device)
    return [store.table(num_rows, width, dtype, device) for width in widths]


class Matrix(Protocol):
    """Anything whose rows can be read a range at a time."""

    def __getitem__(self, rows: slice) -> Tensor: ...


def overwrite(table: Table, source: Matrix | None = None) -> None:
    """Overwrite a table with ``source``, by default with zeros, in place and a chunk at a time."""
    mine = table.data()
    step = max(1, CHUNK // mine.shape[1])
    for start in range(0, mine.shape[0], step):
        rows = slice(start, min(mine.shape[0], start + step))
        table.push(rows, mine.new_zeros(()).expand_as(mine[rows]) if source is None else source[rows])


def write_rows(matrix: Tensor, rows: Rows, values: Tensor, adds: bool) -> None:
    """matrix[rows] = values, or += values; nothing is copied where ``values`` are these rows, changed in place."""
    values = values.detach().to(matrix.dtype)
    if isinstance(rows, slice):
        there = matrix[rows]
        if adds:
            there.add_(values)
        elif values.data_ptr() != there.data_ptr():
            copied(values.expand_as(there), out=there)
    else:
        matrix.index_add_(0, rows, values) if adds else matrix.index_copy_(0, rows, values)


class DeviceTable:
    """Rows in the memory of the training device."""

    tier, staged = "device", False

    def __init__(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._memory = torch.zeros(num_rows + PADDING_ROWS, width, dtype=dtype, device=device)
        self._num_rows = num_rows

    def pull(self, rows: Rows) -> Tensor:
        return self.data()[rows] if isinstance(rows, slice) else self._memory.index_select(0, rows)

    def push(self, rows: Rows, values: Tensor) -> None:
        write_rows(self.data() if isinstance(rows, slice) else self._memory, rows, values, adds=False)

    def add(self, rows: Rows, values: Tensor) -> None:
        write_rows(self.data() if isinstance(rows, slice) else self._memory, rows, values, adds=True)

    def prefetch(self, *rows: Rows) -> None:
        """Do nothing: the rows are on the device."""

    def data(self) -> Tensor:
        return self._memory[: self._num_rows]


class PassTable(DeviceTable):
    """Rows of one pass, which are written before they are read: a tensor of all rows is kept as it is pushed."""

    def __init__(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._memory, self._num_rows = torch.empty(num_rows, width, dtype=dtype, device=device), num_rows

    def push(self, rows: Rows, values: Tensor) -> None:
        if rows == slice(0, self._num_rows) and values.dtype == self._memory.dtype:
            self._memory = values
        else:
            super().push(rows, values)
