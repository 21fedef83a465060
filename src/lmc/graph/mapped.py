"""Arrays in memory-mapped files: for edges that do not fit into memory."""

from __future__ import annotations

import math
import mmap
import weakref
from pathlib import Path

import torch
from torch import Tensor

from lmc.files import mapped_file


class MappedFiles:
    """Allocates arrays in files without a name, which are removed with the process, and unmaps their pages.

    Args:
        folder: the folder of the files; by default the system's folder for temporary files.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = folder
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        count = math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        file = mapped_file(count * dtype.itemsize, self.folder)
        self._maps.add(file)
        return torch.frombuffer(file, dtype=dtype, count=count).view(shape)

    def open(self, path: Path) -> Tensor:
        """The bytes of a file. What is written to them does not reach the file, and is lost when pages are unmapped."""
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._maps.add(mapped)
        return torch.frombuffer(mapped, dtype=torch.uint8)

    def release(self) -> None:
        """Unmap all pages: they count as resident memory as long as they are mapped. The page cache of the system holds
        them while memory is free, and pages that were written keep their values."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for file in list(self._maps):
                file.madvise(mmap.MADV_DONTNEED)
