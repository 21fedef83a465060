"""The rows of a table in host memory, and how kernels of the training device or threads of the host transfer them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from lmc.kernels.packed import Packed, Rows, as_indices, laid_out, num_rows
from lmc.kernels.pinned import allocate_pages, pin
from lmc.kernels.row_transfers import RowCache, absent, gather, kernels_read, overlay, pack, scatter
from lmc.stores.base import write_rows
from lmc.stores.streams import Event, Work, numbers_on_host, record_event

HOST = torch.device("cpu")
Lockable = Literal["memory", "read", "none"]


class HostRows:
    """The host table: rows of one table or of all members of a bundle, in plain memory or mapped from a file.

    ``lockable`` says what may be page-locked for the kernels: memory, pages of a file for reading alone, or nothing.
    """

    def __init__(self, packed: Packed, device: torch.device, lockable: Lockable = "memory") -> None:
        self.packed, self.device = packed, device
        self._members = [Packed.over(mine.view(-1), mine.shape[1:], device) for mine in packed]
        self._cuda = device.type == "cuda"
        locked = lockable != "none" and (not self._cuda or pin(packed.flat, device, self, lockable == "read"))
        self.kernels_read = locked and (not self._cuda or kernels_read(packed, device))
        """Whether the kernels read the rows; otherwise the host does."""
        self.kernels_write = self.kernels_read and lockable == "memory"

    @classmethod
    def of(cls, matrix: Tensor, device: torch.device) -> HostRows:
        """The rows of a contiguous matrix, without a copy."""
        return cls(Packed.over(matrix.view(-1), matrix.shape[1:], device), device)

    # ---- by the host

    def read(self, rows: Rows, member: int, into: Tensor | None = None) -> Tensor:
        """The rows in host memory; for a GPU a page-locked copy, since the copy to the device reads it later."""
        mine = self.packed[member]
        if into is None and not self._cuda:
            return mine[rows] if isinstance(rows, slice) else mine.index_select(0, rows)
        if into is None:
            into = torch.empty(num_rows(rows), mine.shape[1], dtype=mine.dtype, pin_memory=True)
        return into.copy_(mine[rows]) if isinstance(rows, slice) else torch.index_select(mine, 0, rows, out=into)

    def write(self, rows: Rows, values: Tensor, member: int, adds: bool = False) -> None:
        """Overwrite the rows, or add to them; rows and values are in host memory."""
        write_rows(self.packed[member], rows, values, adds)

    # ---- by the current stream of the training device

    def pull(self, rows: Rows, member: int) -> Tensor:
        """The rows on the training device."""
        if self.kernels_read:
            return self._gather(rows, member) if self._cuda else self.read(rows, member)
        return self.read(numbers_on_host(rows), member).to(self.device, non_blocking=self._cuda)

    def push(self, rows: Rows, values: Tensor, member: int, adds: bool) -> None:
        """Overwrite the rows, or add to them."""
        if self.kernels_write and self._cuda and values.is_cuda:
            values = self._gather(rows, member) + values if adds else values
            mine = self._members[member]
            scatter(mine.with_values(values.to(mine.flat.dtype).reshape(-1)), rows, mine)
            return
        self.synchronize()
        self.write(numbers_on_host(rows), values.cpu(), member, adds)

    def synchronize(self) -> None:
        """Wait until the training device has done all its work."""
        if self._cuda:
            torch.cuda.synchronize(self.device)

    def _gather(self, rows: Rows, member: int) -> Tensor:
        mine = self._members[member]
        out = mine.empty(num_rows(rows), self.device)
        gather(mine, as_indices(rows, self.device), out)
        return out[0]

    # ---- memory on the training device

    def buffer(self, num: int) -> Packed:
        """Memory for ``num`` rows and an eighth more: the next batch may be a little larger."""
        return self.packed.empty(num + num // 8, self.device)

    def cache(self, num: int, slots: Tensor | None = None) -> RowCache:
        """An empty cache for ``num`` rows and an eighth more; ``slots`` are those of a cache that it replaces."""
        if slots is None:
            slots = torch.zeros(self.packed.capacity, dtype=torch.int32, device=self.device)
        values = self.buffer(num)
        return RowCache(torch.empty(values.capacity, dtype=torch.int64, device=self.device), values, slots)


def host_zeros(num_rows: int, widths: Sequence[int], dtype: torch.dtype, device: torch.device) -> HostRows:
    """Zeros in host memory, for one table or for a bundle of several widths."""
    shape = (num_rows * sum(widths),)
    flat = allocate_pages(shape, dtype) if device.type == "cuda" else torch.zeros(shape, dtype=dtype)
    return HostRows(Packed.over(flat, widths, device), device)


class Stage:
    """Page-locked memory for rows on their way to the host table, and for their numbers."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.values, self.numbers = torch.empty(0, dtype=dtype), torch.empty(0, dtype=torch.int64)


class HostIO:
    """Transfers for tables that the kernels cannot reach: two threads copy rows through page-locked memory.

    The one that reads has one buffer. Writes take turns with two, so that one fills while the host empties the other.
    """

    def __init__(self, host: HostRows) -> None:
        self._host, self._device = host, host.device
        self._fetches = 0
        self._present_at = torch.zeros(host.packed.capacity, dtype=torch.int32)
        """For each row, the last of the fetches for which it was on the device."""
        dtype, self._cuda = host.packed.flat.dtype, host.device.type == "cuda"
        self._read_buffer = torch.empty(0, dtype=dtype)
        self._stages = [Stage(dtype), Stage(dtype)]
        self._copied = torch.cuda.Event() if self._cuda else None
        self._packs = self._cuda and kernels_read(self._view(self._read_buffer, 1)[1], self._device)
        """Whether the kernels write page-locked memory."""

    def fetch(
        self, cache: RowCache, index: Tensor, caches: Sequence[RowCache], rows: Sequence[Rows], present: Sequence[Rows]
    ) -> None:
        """Fill a cache with the rows ``index``: from the first of ``caches`` that has a row, else from the host table.
        ``rows`` are the same numbers on the host, ``present`` those of rows that are not read from the host table."""
        cache.slots[index] = torch.arange(cache.num, dtype=cache.slots.dtype, device=self._device)
        at, missing = self._missing(rows, present)
        cuda = self._copied is not None
        to = (at.pin_memory() if cuda else at).to(self._device, non_blocking=cuda)
        if self._copied is not None:
            self._copied.synchronize()  # the last copies that read the buffer
        self._read_buffer, staged = self._view(self._read_buffer, at.numel())
        for member, (mine, source) in enumerate(zip(cache.filled, staged, strict=True)):
            self._host.read(missing, member, source)
            mine.index_copy_(0, to, source.to(self._device, non_blocking=cuda))
        if self._copied is not None:
            self._copied.record()
        for other in reversed(caches):
            overlay(cache.filled, index, other)

    def next_stage(self) -> Stage:
        """The memory for the next write; the last but one, which used it, has to be done."""
        self._stages.reverse()
        return self._stages[0]

    def write_back(
        self, stage: Stage, cache: RowCache, contents: Sequence[Rows], left_out: tuple[RowCache, ...]
    ) -> Work:
        """Launch the copy of a cache to page-locked memory, without rows that are in one of ``left_out``. What is
        returned waits for it and writes the rows into the host table.

        Args:
            contents: the numbers of the rows of the cache, on the host; where rows are left out, those in the cache are
                read instead.
        """
        numbered = bool(left_out and cache.num)
        num = cache.num if numbered else sum(map(num_rows, contents))
        stage.values, staged = self._view(stage.values, num)
        stage.numbers = self._enlarged(stage.numbers, num + 1)
        numbers = stage.numbers[: num + 1]
        if numbered:
            index = cache.rows[:num]
            pack(cache.filled, index, cache.newest() & absent(index, left_out), staged, numbers, self._packs)
            copied = [record_event(self._device)] * len(staged)
        else:
            copied = [_copied(mine, other, self._device) for mine, other in zip(staged, cache.filled, strict=True)]

        def write() -> None:
            copied[0].synchronize()
            written = [numbers[: int(numbers[-1])]] if numbered else contents
            for member, (event, values) in enumerate(zip(copied, staged, strict=True)):
                event.synchronize()  # later members are copied meanwhile
                for rows, start, size in laid_out(written):
                    self._host.write(rows, values[start : start + size], member)

        return write

    def _missing(self, rows: Sequence[Rows], present: Sequence[Rows]) -> tuple[Tensor, Tensor]:
        """The positions and the numbers of those rows that are not present."""
        self._fetches += 1
        for r in present:
            if isinstance(r, slice):
                self._present_at[r] = self._fetches
            else:
                self._present_at.index_fill_(0, r, self._fetches)
        single = len(rows) == 1 and isinstance(rows[0], Tensor)
        numbers = as_indices(rows[0], HOST) if single else torch.cat([as_indices(r, HOST) for r in rows])
        at = (self._present_at.index_select(0, numbers) != self._fetches).nonzero().squeeze(1)
        return at, numbers.index_select(0, at)

    def _view(self, buffer: Tensor, num: int) -> tuple[Tensor, Packed]:
        """The buffer, enlarged if necessary, and its first ``num`` rows."""
        size = num * sum(self._host.packed.widths)
        buffer = self._enlarged(buffer, size)
        return buffer, self._host.packed.with_values(buffer[:size])

    def _enlarged(self, buffer: Tensor, size: int) -> Tensor:
        """The buffer, or one with room for ``size`` numbers and an eighth more."""
        if buffer.numel() >= size:
            return buffer
        return torch.empty(size + size // 8, dtype=buffer.dtype, pin_memory=self._cuda)


def _copied(to: Tensor, values: Tensor, device: torch.device) -> Event:
    """Launch the copy of ``values``; the event after it."""
    to.copy_(values, non_blocking=True)
    return record_event(device)
