"""Checkpoints: one safetensors file holds everything that the next step depends on.

Tables may not fit in memory, so the file is written and read a few rows at a time. The writer of the safetensors
package takes the bytes of all tensors at once, and its reader maps the whole file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import safetensors
import torch
from torch import Tensor

from lmc.engine import Run
from lmc.errors import CheckpointError
from lmc.results import replacing
from lmc.stores import Table

FILE = "checkpoint.safetensors"
CHUNK = 2**24
"""Numbers of a table that are written at a time."""

_TYPES = {
    **{f"F{bits}": getattr(torch, f"float{bits}") for bits in (16, 32, 64)},
    **{f"I{bits}": getattr(torch, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{"BF16": torch.bfloat16, "U8": torch.uint8, "BOOL": torch.bool},
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


@dataclass
class Position:
    """The progress of training: ``step`` batches of ``epoch`` are done, and the sum of their losses is ``loss``.

    ``seconds`` is the time spent in training steps since the beginning of the run. ``extras`` is what else training
    continues from, by name: tensors, numbers, texts, and lists, tuples and dicts of these.
    """

    epoch: int = 0
    step: int = 0
    loss: float = 0.0
    seconds: float = 0.0
    extras: dict[str, Any] = field(default_factory=dict)


def save(run_dir: Path, run: Run, optimizer: torch.optim.Optimizer, position: Position) -> None:
    """Write parameters, buffers, optimiser, histories, partition and generators; the old file is replaced at once."""
    tensors = {f"model.{k}": v for k, v in run.problem.model.state_dict().items()}
    tensors |= {f"run.{k}": v for k, v in run.small_state().items()}
    values = {"position": vars(position), "optimizer": optimizer.state_dict()}
    metadata = {name: json.dumps(pack(value, name, tensors)) for name, value in values.items()}
    entries: dict[str, Tensor | Table] = {f"run.{k}": t for k, t in run.named_tables().items()}
    with replacing(run_dir / FILE) as file:
        write(file, entries | on_host(tensors), metadata)


def load(run_dir: Path, run: Run, optimizer: torch.optim.Optimizer) -> Position | None:
    """Restore what :func:`save` wrote; None where nothing was saved yet."""
    path = run_dir / FILE
    if not path.exists():
        return None
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tables = {f"run.{name}" for name in run.named_tables()}
            tensors = {key: file.get_tensor(key) for key in file.keys() if key not in tables}  # noqa: SIM118
            position, optimizer_state = (
                unpack(json.loads(file.metadata()[name]), tensors) for name in ("position", "optimizer")
            )
            position = Position(**position)
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"expected a checkpoint in {path} (got a damaged file: {error}): start again in another folder"
        ) from error
    model, saved = run.problem.model, _prefixed(tensors, "model.")
    if _signature(saved) != _signature(model.state_dict()):
        raise CheckpointError(f"expected the model that {path} was saved from (got parameters of other shape or type)")
    model.load_state_dict(saved)
    histories = {key: matrix for key, matrix in matrices_in(path).items() if key in tables}
    run.load_state_dict(_prefixed(tensors | histories, "run."))
    optimizer.load_state_dict(optimizer_state)
    return position


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """These tensors as safetensors writes them."""
    return {k: v.detach().cpu().contiguous() for k, v in tensors.items()}


def pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON; its tensors go to ``tensors``, named after their place in the value."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"dict": [[k, pack(v, f"{name}.{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [pack(v, f"{name}.{k}", tensors) for k, v in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(f"expected tensors and plain values in a checkpoint (got {type(value).__name__} as {name})")


def unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that :func:`pack` was given."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {k: unpack(v, tensors) for k, v in content}
    return {"list": list, "tuple": tuple}[kind](unpack(v, tensors) for v in content)


def _signature(state: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (value.shape, value.dtype) for name, value in state.items()}


def _prefixed(tensors: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


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
