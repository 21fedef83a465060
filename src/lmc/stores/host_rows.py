"""The rows of a table in host memory, and how the training device reads and writes them at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from lmc.kernels.packed import Packed, Rows, as_indices, num_rows
from lmc.kernels.pinned import allocate_pages, pin
from lmc.kernels.row_transfers import RowCache, gather, kernels_read, scatter
from lmc.stores.base import write_rows
from lmc.stores.streams import numbers_on_host

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
