"""safetensors files that are written and read a few rows at a time, for tables that do not fit in memory.

The writer of the safetensors package takes the bytes of all tensors at once, and its reader maps the whole file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from lmc.stores import Table

CHUNK = 2**24
"""Numbers of a table that are written at a time."""

_TYPES = {
    **{f"F{bits}": getattr(torch, f"float{bits}") for bits in (16, 32, 64)},
    **{f"I{bits}": getattr(torch, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{"BF16": torch.bfloat16, "U8": torch.uint8, "BOOL": torch.bool},
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


def write(file: BinaryIO, entries: Mapping[str, Tensor | Table], metadata: Mapping[str, str]) -> None:
    """Write tensors, and the rows of tables, as one safetensors file."""
    tensors = {name: (value if isinstance(value, Tensor) else value.data()) for name, value in entries.items()}
    # the largest dtypes first, so that all data are aligned
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name in order:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        for rows in _chunks(entries[name], tensors[name].shape):
            file.write(rows.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def _chunks(entry: Tensor | Table, shape: torch.Size) -> Iterator[Tensor]:
    if isinstance(entry, Tensor):
        yield entry
        return
    num_rows, width = shape
    step = max(1, CHUNK // width)
    for start in range(0, num_rows, step):
        yield entry.pull(slice(start, min(num_rows, start + step)))


@dataclass(frozen=True)
class FileMatrix:
    """A matrix in a file; ``matrix[start:stop]`` reads these rows."""

    path: Path
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def __getitem__(self, rows: slice) -> Tensor:
        start, stop, _ = rows.indices(self.shape[0])
        width = self.shape[1]
        buffer = bytearray((stop - start) * width * self.dtype.itemsize)
        with self.path.open("rb") as file:
            file.seek(self.offset + start * width * self.dtype.itemsize)
            file.readinto(buffer)
        return torch.frombuffer(buffer, dtype=self.dtype).view(stop - start, width)


def matrices_in(path: Path) -> dict[str, FileMatrix]:
    """The matrices of a file by name; nothing but the header is read."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {
        name: FileMatrix(path, 8 + size + entry["data_offsets"][0], _TYPES[entry["dtype"]], tuple(entry["shape"]))
        for name, entry in header.items()
    }
