"""safetensors files written and read piece by piece, for tables that must not be in memory at once.

The library's own writer wants every tensor's bytes together, and its reader maps the whole file.
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
"""Numbers written or read at a time."""

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}


def write(file: BinaryIO, entries: Mapping[str, Tensor | Table], metadata: Mapping[str, str]) -> None:
    """Tensors, and tables row by row, as one safetensors file."""
    known = {name: (value if isinstance(value, Tensor) else value.data()) for name, value in entries.items()}
    # wide types first: then everything is aligned
    order = sorted(known, key=lambda name: (-known[name].element_size(), name))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name in order:
        tensor = known[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        for piece in _pieces(entries[name], known[name]):
            file.write(piece.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def _pieces(entry: Tensor | Table, known: Tensor) -> Iterator[Tensor]:
    if isinstance(entry, Tensor):
        yield entry
        return
    step = max(1, CHUNK // known.shape[1])
    for start in range(0, known.shape[0], step):
        yield entry.pull(slice(start, min(known.shape[0], start + step)))


@dataclass(frozen=True)
class Saved:
    """A matrix in a file: its rows are read when asked for."""

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


def saved(path: Path) -> dict[str, Saved]:
    """What a file holds, by name, unread."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {
        name: Saved(path, 8 + size + about["data_offsets"][0], _TYPES[about["dtype"]], tuple(about["shape"]))
        for name, about in header.items()
    }
