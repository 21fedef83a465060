"""Where values that outlive a step are kept: one row a node, pulled, pushed and prefetched by row.

A store is a recipe (frozen, part of a method's settings); ``store.table(...)`` makes a table. A further tier has to
offer the same five verbs, and no method changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lmc.errors import ConfigError

Rows = Tensor | slice
"""Row numbers, or a contiguous run of rows (then a push or a pull is one copy)."""


class Table(Protocol):
    """An [n, d] matrix on some tier of memory that speaks to the training device."""

    def pull(self, rows: Rows) -> Tensor:
        """The rows, on the training device. A contiguous run may be a view: use it before the next push."""

    def push(self, rows: Rows, values: Tensor) -> None:
        """Overwrite the rows."""

    def add(self, rows: Rows, values: Tensor) -> None:
        """Add to the rows; each is named at most once."""

    def prefetch(self, rows: Rows) -> None:
        """Say that these rows are pulled soon."""

    def data(self) -> Tensor:
        """The whole table, wherever it lives (for checkpoints and diagnostics)."""


class Store(Protocol):
    """The recipe of a tier."""

    @property
    def name(self) -> str: ...

    def table(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Table:
        """A table of zeros whose rows are used on ``device``."""


class DeviceTable:
    """Rows in the memory of the training device."""

    def __init__(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._rows = torch.zeros(num_rows, width, dtype=dtype, device=device)

    def pull(self, rows: Rows) -> Tensor:
        return self._rows[rows] if isinstance(rows, slice) else self._rows.index_select(0, rows)

    def push(self, rows: Rows, values: Tensor) -> None:
        if isinstance(rows, slice):
            self._rows[rows].copy_(values)
        else:
            self._rows.index_copy_(0, rows, values)

    def add(self, rows: Rows, values: Tensor) -> None:
        if isinstance(rows, slice):
            self._rows[rows].add_(values)
        else:
            self._rows.index_add_(0, rows, values)

    def prefetch(self, rows: Rows) -> None:
        """Nothing to do: the rows are here."""

    def data(self) -> Tensor:
        return self._rows


class HostTable:
    """Rows in host memory, page-locked when the training device is a GPU.

    ``prefetch`` gathers the rows and starts their copy on a side stream; the next ``pull`` of the same rows waits for
    that copy only. A push in between makes the prefetched rows stale, so it drops them.
    """

    def __init__(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._rows = torch.zeros(num_rows, width, dtype=dtype, pin_memory=self._cuda)
        self._stream = torch.cuda.Stream(device) if self._cuda else None
        self._ready: tuple[Rows, Tensor, torch.cuda.Event] | None = None

    def pull(self, rows: Rows) -> Tensor:
        if self._ready is not None and self._ready[0] is rows:
            _, values, event = self._ready
            self._ready = None
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(event)
            values.record_stream(stream)
            return values
        return self._gather(rows).to(self._device, non_blocking=self._cuda)

    def push(self, rows: Rows, values: Tensor) -> None:
        self._ready = None
        host = values.detach().to("cpu")
        if isinstance(rows, slice):
            self._rows[rows].copy_(host)
        else:
            self._rows.index_copy_(0, rows.cpu(), host)

    def add(self, rows: Rows, values: Tensor) -> None:
        self._ready = None
        host = values.detach().to("cpu")
        if isinstance(rows, slice):
            self._rows[rows].add_(host)
        else:
            self._rows.index_add_(0, rows.cpu(), host)

    def prefetch(self, rows: Rows) -> None:
        if self._stream is None:
            return
        with torch.cuda.stream(self._stream):
            values = self._gather(rows).to(self._device, non_blocking=True)
            event = torch.cuda.Event()
            event.record(self._stream)
        self._ready = rows, values, event

    def data(self) -> Tensor:
        return self._rows

    def _gather(self, rows: Rows) -> Tensor:
        picked = self._rows[rows] if isinstance(rows, slice) else self._rows.index_select(0, rows.cpu())
        return picked.pin_memory() if self._cuda and not isinstance(rows, slice) else picked


@dataclass(frozen=True)
class Device:
    """Histories in the memory of the training device: the fastest tier."""

    name: str = "device"

    def table(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Table:
        return DeviceTable(num_rows, width, dtype, device)


@dataclass(frozen=True)
class Pinned:
    """Histories in (page-locked) host memory: for graphs whose tables do not fit on the GPU."""

    name: str = "host"

    def table(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Table:
        return HostTable(num_rows, width, dtype, device)


def store(choice: str | Store) -> Store:
    """A store by name, ``"device"`` or ``"host"``; a store object passes through."""
    if not isinstance(choice, str):
        return choice
    named: dict[str, Store] = {"device": Device(), "host": Pinned()}
    if choice not in named:
        raise ConfigError(f"expected a history tier in {sorted(named)} (got {choice!r})")
    return named[choice]
