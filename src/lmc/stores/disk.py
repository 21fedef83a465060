"""Tables in files, mapped into memory: for tables that fit nowhere else."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from lmc.errors import ConfigError
from lmc.files import mapped_file
from lmc.kernels.packed import Packed, Rows, num_rows
from lmc.stores.host import HostRows
from lmc.stores.memory import free_memory

RESIDENT = 2**26
SHARE = 1 / 128
"""Bytes of files that may stay mapped: at least RESIDENT, and this share of the free memory. Files that fit in it
together stay mapped as a whole; all larger files together may map as much again. The system keeps unmapped pages cached
while memory is free."""
FAULT_AROUND = 2**16
"""Bytes that Linux maps around a page that is read, by default."""
_SMALL: weakref.WeakSet[FileRows] = weakref.WeakSet()
_LARGE: weakref.WeakSet[FileRows] = weakref.WeakSet()
_LOCK = threading.Lock()


class FileRows(HostRows):
    """Zeros in a file without a name in the folder ``path``: however the process ends, the file is removed with it.

    ``resident`` is the number of bytes of files that may stay mapped, for tests.
    """

    def __init__(
        self,
        num_rows: int,
        widths: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        path: str | Path | None = None,
        resident: int | None = None,
    ) -> None:
        numbers = num_rows * sum(widths)
        size = max(1, numbers) * dtype.itemsize
        self._map, self._process = mapped_file(size, path), os.getpid()
        self._touched = 0
        self._resident = resident or max(RESIDENT, int(SHARE * free_memory(torch.device("cpu"))))
        with _LOCK:
            self._fits = sum(len(other._map) for other in _SMALL) + size <= self._resident
            (_SMALL if self._fits else _LARGE).add(self)
        flat = torch.frombuffer(self._map, dtype=dtype, count=numbers) if numbers else torch.zeros(0, dtype=dtype)
        lockable = self._fits and device.type == "cuda"
        super().__init__(Packed.over(flat, widths, device), device, "read" if lockable else "none")

    @property
    def packed(self) -> Packed:
        """The rows; a process that was forked off later shares the file, and its changes would be seen here."""
        if os.getpid() != self._process:
            raise ConfigError(
                "expected tables on disk to be used by the process that made them (got one that was forked off it): "
                'bind the run in that process, or keep the tables with history="host"'
            )
        return self._packed

    @packed.setter
    def packed(self, rows: Packed) -> None:
        self._packed = rows

    def read(self, rows: Rows, member: int, into: Tensor | None = None) -> Tensor:
        if into is None:  # a view of mapped pages would map them later, without being counted
            shape = num_rows(rows), self.packed.widths[member]
            into = torch.empty(shape, dtype=self.packed.flat.dtype, pin_memory=self.device.type == "cuda")
        for some, mine in self._chunks(rows, into):
            super().read(some, member, mine)
        return into

    def write(self, rows: Rows, values: Tensor, member: int, adds: bool = False) -> None:
        for some, mine in self._chunks(rows, values):
            super().write(some, mine, member, adds)

    def _chunks(self, rows: Rows, values: Tensor) -> Iterator[tuple[Rows, Tensor]]:
        """The rows and their values, so few at a time that little is mapped; pages are unmapped in between."""
        if self._fits:
            yield rows, values
            return
        bytes_per_row = values.shape[1] * values.element_size()
        if not isinstance(rows, slice):  # pages that other rows share with these are mapped too
            bytes_per_row = max(bytes_per_row, FAULT_AROUND)
        num, step = values.shape[0], max(1, self._resident // 4 // bytes_per_row)
        for start in range(0, num, step):
            stop = min(num, start + step)
            some = slice(rows.start + start, rows.start + stop) if isinstance(rows, slice) else rows[start:stop]
            yield some, values[start:stop]
            self._unmap_after((stop - start) * bytes_per_row)

    def _unmap_after(self, touched: int) -> None:
        """Count bytes that were mapped, and unmap the pages of all large files once there are enough."""
        with _LOCK:
            self._touched += touched
            if sum(other._touched for other in _LARGE) > self._resident and hasattr(mmap, "MADV_DONTNEED"):
                for other in _LARGE:
                    other._map.madvise(mmap.MADV_DONTNEED)  # the mapping is shared: written pages keep their values
                    other._touched = 0
