"""Several matrices with the same rows in one tensor, so that one kernel serves all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

Rows = Tensor | slice
"""Row numbers, or a contiguous range of rows (then reading or writing them is one copy)."""


@dataclass(frozen=True, eq=False)
class Packed:
    """Rows ``start`` to ``start + num`` of matrices that lie one behind the other: member k is [capacity, widths[k]].

    ``offsets[k]``, on the training device, is the sum of the widths before member k; the kernels read it.
    """

    flat: Tensor
    offsets: Tensor
    widths: tuple[int, ...]
    capacity: int
    num: int
    start: int = 0

    @classmethod
    def over(cls, flat: Tensor, widths: Sequence[int], device: torch.device | None = None) -> Packed:
        """All rows of ``flat``; ``device`` is the training device, by default that of ``flat``."""
        offsets = torch.tensor(list(accumulate(widths, initial=0)), device=device or flat.device)
        capacity = flat.numel() // max(1, sum(widths))
        return cls(flat, offsets, tuple(widths), capacity, capacity)

    def with_values(self, flat: Tensor) -> Packed:
        """All rows of another tensor, with members of the same widths."""
        capacity = flat.numel() // max(1, sum(self.widths))
        return Packed(flat, self.offsets, self.widths, capacity, capacity)

    def empty(self, num: int, device: torch.device) -> Packed:
        """``num`` uninitialised rows on ``device``, with members of the same widths."""
        return self.with_values(torch.empty(sum(self.widths) * num, dtype=self.flat.dtype, device=device))

    def __len__(self) -> int:
        return len(self.widths)

    def __getitem__(self, k: int) -> Tensor:
        first, width = self.flat.storage_offset() + sum(self.widths[:k]) * self.capacity, self.widths[k]
        return self.flat.as_strided((self.num, width), (width, 1), first + self.start * width)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[k] for k in range(len(self)))

    def rows(self, start: int, num: int) -> Packed:
        """A contiguous range of the rows, as a view."""
        return Packed(self.flat, self.offsets, self.widths, self.capacity, num, self.start + start)

    def copy_(self, others: Packed) -> Packed:
        for mine, other in zip(self, others, strict=True):
            mine.copy_(other, non_blocking=True)
        return self

    @property
    def align(self) -> int:
        """The largest power of two, at most 16, that divides every width."""
        return math.gcd(16, *self.widths)

    @property
    def nbytes(self) -> int:
        return sum(self.widths) * self.num * self.flat.element_size()


def num_rows(rows: Rows) -> int:
    """The number of rows."""
    return rows.stop - rows.start if isinstance(rows, slice) else rows.numel()


def in_pieces(chunks: Iterable[Rows], most: int) -> Iterator[Rows]:
    """The rows of chunks, at most ``most`` at a time."""
    for rows in chunks:
        if num_rows(rows) <= most:
            yield rows
        elif isinstance(rows, slice):
            yield from (slice(i, min(i + most, rows.stop)) for i in range(rows.start, rows.stop, most))
        else:
            yield from rows.split(most)


def laid_out(pieces: Sequence[Rows]) -> list[tuple[Rows, int, int]]:
    """Each piece, where it starts when all lie one after the other, and its number of rows."""
    nums = [num_rows(rows) for rows in pieces]
    return list(zip(pieces, accumulate(nums, initial=0), nums, strict=False))


def as_indices(rows: Rows, device: torch.device) -> Tensor:
    """The row numbers as a tensor on ``device``."""
    return torch.arange(rows.start, rows.stop, device=device) if isinstance(rows, slice) else rows.to(device)
