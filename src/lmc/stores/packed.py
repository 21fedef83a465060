"""Several matrices with the same rows, one behind the other in memory: tables that a step reads and writes at the same
rows travel as one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from lmc.stores.base import Rows


@dataclass(frozen=True, eq=False)
class Planes:
    """Rows ``start`` .. ``start + num`` of matrices with ``room`` rows: plane k is [room, widths[k]].

    ``columns[k]``, on the training device, is the sum of the widths before plane k: where a kernel finds it.
    """

    flat: Tensor
    columns: Tensor
    widths: tuple[int, ...]
    room: int
    num: int
    start: int = 0

    @classmethod
    def over(cls, flat: Tensor, widths: Sequence[int], device: torch.device | None = None) -> Planes:
        """All of ``flat``; ``device`` is the training device, by default that of ``flat``."""
        columns = torch.tensor(list(accumulate(widths, initial=0)), device=device or flat.device)
        room = flat.numel() // max(1, sum(widths))
        return cls(flat, columns, tuple(widths), room, room)

    def holding(self, flat: Tensor) -> Planes:
        """Other rows of the same widths."""
        room = flat.numel() // max(1, sum(self.widths))
        return Planes(flat, self.columns, self.widths, room, room)

    def like(self, num: int, device: torch.device, pin: bool = False) -> Planes:
        """Room for other rows of the same widths."""
        size = sum(self.widths) * num
        return self.holding(torch.empty(size, dtype=self.flat.dtype, device=device, pin_memory=pin))

    def __len__(self) -> int:
        return len(self.widths)

    def __getitem__(self, k: int) -> Tensor:
        first, width = self.flat.storage_offset() + sum(self.widths[:k]) * self.room, self.widths[k]
        return self.flat.as_strided((self.num, width), (width, 1), first + self.start * width)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[k] for k in range(len(self)))

    def rows(self, start: int, num: int) -> Planes:
        """A run of the rows."""
        return Planes(self.flat, self.columns, self.widths, self.room, num, self.start + start)

    def copy_(self, others: Planes) -> Planes:
        for mine, other in zip(self, others, strict=True):
            mine.copy_(other, non_blocking=True)
        return self

    @property
    def align(self) -> int:
        """A power of two, 16 at most, that divides every width."""
        return math.gcd(16, *self.widths)

    @property
    def nbytes(self) -> int:
        return sum(self.widths) * self.num * self.flat.element_size()


def count(rows: Rows) -> int:
    """How many rows."""
    return rows.stop - rows.start if isinstance(rows, slice) else rows.numel()
