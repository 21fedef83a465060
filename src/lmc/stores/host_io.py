"""Transfers by the host, for tables that the kernels cannot reach: two threads copy rows through page-locked memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lmc.kernels.packed import Packed, Rows, as_indices
from lmc.kernels.row_transfers import RowCache, overlay
from lmc.stores.host_rows import HostRows
from lmc.stores.streams import record_event
from lmc.stores.transfers import Fetch, laid_out

HOST = torch.device("cpu")


class HostIO:
    """The work of the two threads; each has a buffer of its own."""

    def __init__(self, host: HostRows) -> None:
        self._host, self._device = host, host.device
        self._fetches = 0
        self._present_at = torch.zeros(host.packed.capacity, dtype=torch.int32)
        """For each row, the last of the fetches for which it was on the device."""
        self._read_buffer = self._write_buffer = torch.empty(0, dtype=host.packed.flat.dtype)
        self._copied = torch.cuda.Event() if host.device.type == "cuda" else None

    def fetch(self, fetch: Fetch, caches: Sequence[RowCache], rows: Sequence[Rows], present: Sequence[Rows]) -> None:
        """Fill the cache of a fetch; the numbers of its ``rows`` and of those ``present`` on the device, which are not
        read from the host table, are on the host. The first of ``caches`` that has a row counts."""
        cache, index = fetch.cache, fetch.write_numbers()
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

    def write_back(self, cache: RowCache, contents: Sequence[Rows]) -> None:
        """Write a cache into the host table: one member while the next is being copied."""
        self._write_buffer, staged = self._view(self._write_buffer, cache.num)
        copied = []
        for mine, target in zip(cache.filled, staged, strict=True):
            target.copy_(mine, non_blocking=True)
            copied.append(record_event(self._device))
        for member, (event, values) in enumerate(zip(copied, staged, strict=True)):
            event.synchronize()
            for rows, start, num in laid_out(contents):
                self._host.write(rows, values[start : start + num], member)

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
        if buffer.numel() < size:
            buffer = torch.empty(size + size // 8, dtype=buffer.dtype, pin_memory=self._copied is not None)
        return buffer, self._host.packed.with_values(buffer[:size])
