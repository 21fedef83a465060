"""What the host does for a table that the GPU cannot reach: rows are gathered into page-locked memory, and written from
there, by two threads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lmc.stores.base import Rows
from lmc.stores.packed import Planes, count
from lmc.stores.row_cache import Shelf, index_of, overlay
from lmc.stores.streams import mark
from lmc.stores.transfers import Load

Take = Callable[[Rows, int, Tensor], Tensor]
"""Reads rows of a plane into a tensor."""

Change = Callable[[Rows, Tensor, int, bool], None]
"""Writes rows of a plane."""

HOST = torch.device("cpu")


class Hands:
    """The memory that the two threads work in; each uses its own."""

    def __init__(self, rows: Planes, device: torch.device) -> None:
        self._rows, self._device = rows, device
        self._seen = torch.zeros(rows.room, dtype=torch.int32)
        self._fetches = 0
        self._coming = self._going = torch.empty(0, dtype=rows.flat.dtype)
        self._copied = torch.cuda.Event() if device.type == "cuda" else None

    def fetch(self, take: Take, load: Load, shelves: tuple[Shelf, ...], asked: list[Rows], here: list[Rows]) -> None:
        """Bring a load, given the row numbers on the host: of those asked for, and of those on the device."""
        shelf, index = load.shelf, load.number()
        shelf.place[index] = torch.arange(shelf.num, dtype=shelf.place.dtype, device=self._device)
        at, rows = self._missing(asked, here)
        cuda = self._copied is not None
        there = (at.pin_memory() if cuda else at).to(self._device, non_blocking=cuda)
        if self._copied is not None:
            self._copied.synchronize()  # the copies that read this memory last
        self._coming, staging = self._room(self._coming, at.numel())
        for plane, (mine, passing) in enumerate(zip(shelf.filled, staging, strict=True)):
            take(rows, plane, passing)
            mine.index_copy_(0, there, passing.to(self._device, non_blocking=cuda))
        if self._copied is not None:
            self._copied.record()
        for on in reversed(shelves):
            overlay(shelf.filled, index, on)

    def _missing(self, asked: list[Rows], here: list[Rows]) -> tuple[Tensor, Tensor]:
        """Which of the rows asked for, one after the other, are not here, and their numbers."""
        self._fetches += 1
        for r in here:
            if isinstance(r, slice):
                self._seen[r] = self._fetches
            else:
                self._seen.index_fill_(0, r, self._fetches)
        rows = (
            asked[0]
            if len(asked) == 1 and isinstance(asked[0], Tensor)
            else torch.cat([index_of(r, HOST) for r in asked])
        )
        at = (self._seen.index_select(0, rows) != self._fetches).nonzero().squeeze(1)
        return at, rows.index_select(0, at)

    def bring(self, change: Change, shelf: Shelf, contents: list[Rows]) -> None:
        """Write what is on a shelf into the table: one plane while the next is still coming."""
        self._going, staging = self._room(self._going, shelf.num)
        arrived = []
        for mine, passing in zip(shelf.filled, staging, strict=True):
            passing.copy_(mine, non_blocking=True)
            arrived.append(mark(self._device))
        for plane, (ticket, passing) in enumerate(zip(arrived, staging, strict=True)):
            ticket.finish()
            start = 0
            for rows in contents:
                change(rows, passing[start : start + count(rows)], plane, False)
                start += count(rows)

    def _room(self, memory: Tensor, num: int) -> tuple[Tensor, Planes]:
        """Memory for so many rows on the host, larger than before where it has to be."""
        size = num * sum(self._rows.widths)
        if memory.numel() < size:
            memory = torch.empty(size + size // 8, dtype=memory.dtype, pin_memory=self._copied is not None)
        return memory, self._rows.holding(memory[:size])
