"""Where values that outlive a step are kept: one row a node, pulled, pushed and prefetched by row.

A store is a recipe (frozen, part of a method's settings); ``store.table(...)`` makes a table. A further tier has to
offer the same five verbs, and no method changes.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

Rows = Tensor | slice
"""Row numbers, or a contiguous run of rows (then a push or a pull is one copy)."""

CHUNK = 2**24
"""Numbers in a chunk of a table that is copied piece by piece."""


class Table(Protocol):
    """An [n, d] matrix on some tier of memory that speaks to the training device."""

    @property
    def tier(self) -> str:
        """The name of the tier it lies on."""

    @property
    def stages(self) -> bool:
        """Whether :meth:`prefetch` does anything."""

    def pull(self, rows: Rows) -> Tensor:
        """The rows, on the training device, to be read. A contiguous run may be a view: use it before the next
        push."""

    def push(self, rows: Rows, values: Tensor) -> None:
        """Overwrite the rows."""

    def add(self, rows: Rows, values: Tensor) -> None:
        """Add to the rows; each is named at most once."""

    def prefetch(self, *rows: Rows) -> None:
        """Say that these rows, these very objects and no others, are pulled next. What is pushed in between is seen by
        the pull. A step that is bracketed (:class:`lmc.stores.StagedTable`) names no row twice."""

    def data(self) -> Tensor:
        """The whole table, wherever it lives (for checkpoints and diagnostics)."""


class Store(Protocol):
    """The recipe of a tier."""

    @property
    def name(self) -> str: ...

    def table(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Table:
        """A table of zeros whose rows are used on ``device``."""


class Matrix(Protocol):
    """Anything whose rows can be read a run at a time."""

    def __getitem__(self, rows: slice) -> Tensor: ...


def overwrite(table: Table, source: Matrix | None = None) -> None:
    """Make a table ``source``, zeros by default, in place and piece by piece."""
    mine = table.data()
    step = max(1, CHUNK // mine.shape[1])
    for start in range(0, mine.shape[0], step):
        rows = slice(start, min(mine.shape[0], start + step))
        table.push(rows, mine.new_zeros(()).expand_as(mine[rows]) if source is None else source[rows])
