"""A file on disk, mapped into memory: for tables that fit nowhere else."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from lmc.errors import ConfigError
from lmc.stores.base import Rows, Table
from lmc.stores.bundle import carried
from lmc.stores.memory import free_memory
from lmc.stores.packed import Planes, count
from lmc.stores.staged import StagedTable

RESIDENT = 2**26
SHARE = 1 / 128
"""Bytes of files that may stay mapped, at least, and as a share of the memory that is free. Files that are no larger
together stay mapped as a whole; of all others together so much does. Beyond, pages are handed back to the system, which
keeps them cached as long as nobody else wants the memory."""
AROUND = 2**16
"""Bytes that a fault maps at once, the default of Linux."""
_SMALL: weakref.WeakSet[DiskTable] = weakref.WeakSet()
_LARGE: weakref.WeakSet[DiskTable] = weakref.WeakSet()
_LOCK = threading.Lock()


class DiskTable(StagedTable):
    """Rows in a file of its own that has no name any more: however the process ends, the file goes with it."""

    def __init__(
        self,
        num_rows: int,
        width: int | Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        path: str | Path | None = None,
        behind: bool | None = None,
        resident: int | None = None,
    ) -> None:
        widths = [width] if isinstance(width, int) else width
        numbers = num_rows * sum(widths)
        size = max(1, numbers) * dtype.itemsize
        self._map = _mapped(size, path)
        self._touched = 0
        self._resident = resident or max(RESIDENT, int(SHARE * free_memory(torch.device("cpu"))))
        with _LOCK:
            self._fits = sum(len(table._map) for table in _SMALL) + size <= self._resident
            (_SMALL if self._fits else _LARGE).add(self)
        flat = torch.frombuffer(self._map, dtype=dtype, count=numbers) if numbers else torch.zeros(0, dtype=dtype)
        lockable: Literal["read", "none"] = "read" if self._fits and device.type == "cuda" else "none"
        super().__init__(Planes.over(flat, widths, device), device, behind, "disk", lockable)

    def _gather(self, rows: Rows, plane: int, into: Tensor | None = None) -> Tensor:
        if into is None:  # a view of mapped pages would fault in behind our count
            shape = count(rows), self._rows.widths[plane]
            into = torch.empty(shape, dtype=self._rows.flat.dtype, pin_memory=self._cuda)
        for some, mine in self._pieces(rows, into):
            super()._gather(some, plane, mine)
            self._count(mine)
        return into

    def _change(self, rows: Rows, values: Tensor, plane: int, adds: bool) -> None:
        for some, mine in self._pieces(rows, values):
            super()._change(some, mine, plane, adds)
            self._count(mine)

    def _pieces(self, rows: Rows, values: Tensor) -> Iterator[tuple[Rows, Tensor]]:
        """The rows, and what belongs to them, so few at a time that what they map stays small."""
        if self._fits:
            yield rows, values
            return
        num, step = values.shape[0], max(1, self._resident // 4 // self._touches(values))
        for start in range(0, num, step):
            stop = min(num, start + step)
            some = slice(rows.start + start, rows.start + stop) if isinstance(rows, slice) else rows[start:stop]
            yield some, values[start:stop]

    def _touches(self, values: Tensor) -> int:
        """Bytes that reading a row maps: Linux maps the pages around one that is cached, too."""
        return max(values.shape[1] * values.element_size(), AROUND)

    def _count(self, values: Tensor) -> None:
        """Hand pages back once enough of them were touched."""
        if self._fits:
            return
        with _LOCK:
            self._touched += values.shape[0] * self._touches(values)
            if sum(table._touched for table in _LARGE) > self._resident and hasattr(mmap, "MADV_DONTNEED"):
                for table in _LARGE:
                    table._map.madvise(mmap.MADV_DONTNEED)  # of a shared mapping: what was written stays written
                    table._touched = 0


@dataclass(frozen=True)
class Disk:
    """Rows in a file, mapped into memory, removed at the end.

    Args:
        path: the folder for it; by default the system's folder for temporary files. One on a fast local disk, with
            room for the tables, and not a file system in memory (where /tmp is one, name another).
    """

    path: str | Path | None = None
    name: str = "disk"

    def table(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Table:
        return DiskTable(num_rows, width, dtype, device, self.path)

    def tables(self, num_rows: int, widths: Sequence[int], dtype: torch.dtype, device: torch.device) -> list[Table]:
        return carried(DiskTable(num_rows, widths, dtype, device, self.path))


def _mapped(size: int, path: str | Path | None) -> mmap.mmap:
    folder = Path(tempfile.gettempdir() if path is None else path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a disk that fills up later would end the process
            else:
                file.truncate(size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise ConfigError(
            f"expected a folder with {size / 1e9:.2g} GB of room for a table (got {folder}: {error.strerror}): "
            "name another one, Disk(path=...), or $TMPDIR"
        ) from error
