"""Safetensors files with a digest, which are written and read a few rows at a time.

Tables may not fit in memory. The writer of the safetensors package takes the bytes of all tensors at once, and its
reader maps the whole file. The header contains the SHA-256 digest of the file; a file with another one is damaged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import safetensors
import torch
from torch import Tensor

from lmc.errors import CheckpointError
from lmc.files import parse_json, replacing
from lmc.stores import Table

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, SupportsWrite

CHUNK = 2**24
"""Numbers of a table that are written at a time."""
_BLANK = b"0" * 64
"""The bytes in the place of the digest while it is computed."""
_DIGEST_AT = 8 + len('{"__metadata__": {"digest": "')
_TYPES = {
    **{f"F{bits}": getattr(torch, f"float{bits}") for bits in (16, 32, 64)},
    **{f"I{bits}": getattr(torch, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{"BF16": torch.bfloat16, "U8": torch.uint8, "BOOL": torch.bool},
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


class Damaged(CheckpointError):
    """A file is not as it was written."""


def write_sealed(
    path: Path, entries: Mapping[str, Tensor | Table], metadata: Mapping[str, str], previous: Path | None = None
) -> str:
    """Write a safetensors file with its digest, which is returned, atomically; the old file is kept as ``previous``."""
    with replacing(path, previous) as file:
        hashing = _Hashing(file)
        write(hashing, entries, {"digest": _BLANK.decode(), **metadata})
        file.seek(_DIGEST_AT)
        file.write(hashing.digest.hexdigest().encode())
    return hashing.digest.hexdigest()


class _Hashing:
    """A file that is hashed as it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def write(self, data: ReadableBuffer) -> None:
        self.digest.update(data)
        self._file.write(data)


def read_sealed(path: Path, but: Collection[str] = ()) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors, except those named ``but``, and the metadata of a file that :func:`write_sealed` wrote.

    Raises:
        Damaged: a byte of the file has changed, or it cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_DIGEST_AT + len(_BLANK))
            digest = hashlib.sha256(head[:_DIGEST_AT] + _BLANK)
            buffer = memoryview(bytearray(2**20))
            while size := file.readinto(buffer):
                digest.update(buffer[:size])
        if head[_DIGEST_AT:] != digest.hexdigest().encode():
            raise Damaged(f"{path} is damaged (its digest is another one)")
        with safetensors.safe_open(path, framework="pt") as opened:
            tensors = {key: opened.get_tensor(key) for key in opened.keys() if key not in but}  # noqa: SIM118
            return tensors, opened.metadata()
    except (OSError, safetensors.SafetensorError) as error:
        raise Damaged(f"{path} cannot be read ({error})") from error


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """These tensors as safetensors writes them."""
    return {k: v.detach().cpu().contiguous() for k, v in tensors.items()}


def write(
    file: SupportsWrite[ReadableBuffer], entries: Mapping[str, Tensor | Table], metadata: Mapping[str, str]
) -> None:
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
    """The matrices of a file by name; nothing but the header is read.

    Raises:
        Damaged: the header is not one of a safetensors file.
    """
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            header = parse_json(file.read(size))
        header.pop("__metadata__", None)
        return {
            name: FileMatrix(path, 8 + size + entry["data_offsets"][0], _TYPES[entry["dtype"]], tuple(entry["shape"]))
            for name, entry in header.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path} cannot be read ({error})") from error
