"""What is under way between a step and a table on another tier (:mod:`lmc.stores.staged`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from lmc.stores.base import Rows
from lmc.stores.packed import Planes, count
from lmc.stores.row_cache import Shelf
from lmc.stores.streams import Ticket, mark


@dataclass(eq=False)
class Load:
    """Rows that were sent for: the very ``asked`` objects, one after the other on ``shelf``.

    ``view`` is what the step reads, once it was ``delivered``.
    """

    asked: tuple[Rows, ...]
    shelf: Shelf
    ticket: Ticket
    delivered: Ticket | None = None
    view: Planes | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """A name for these rows, as long as they live."""
        return tuple((rows.start, rows.stop) if isinstance(rows, slice) else id(rows) for rows in self.asked)

    def number(self) -> Tensor:
        """Write down on the shelf which rows these are; in the lane, since the training stream has a step to do."""
        if len(self.asked) == 1 and isinstance(self.asked[0], Tensor):
            return self.shelf.borrow(self.asked[0])
        self.shelf.own()
        start = 0
        for rows in self.asked:
            mine = self.shelf.rows[start : start + count(rows)]
            torch.arange(rows.start, rows.stop, out=mine) if isinstance(rows, slice) else mine.copy_(rows)
            start += count(rows)
        return self.shelf.rows[: self.shelf.num]

    def piece(self, rows: Rows) -> int | None:
        """Which of the asked rows these are."""
        return next((k for k, asked in enumerate(self.asked) if same(asked, rows)), None)

    def of(self, piece: int) -> Planes:
        """What was delivered of it."""
        assert self.view is not None
        start = sum(count(rows) for rows in self.asked[:piece])
        return self.view.rows(start, count(self.asked[piece]))


@dataclass(eq=False)
class Hall:
    """Memory at fixed places: a recorded step leaves its rows where it did in every epoch.

    Steps never run at the same time, and share it.
    """

    make: Callable[[int], Planes]
    rooms: dict[tuple[object, ...], tuple[tuple[Rows, ...], Planes]] = field(default_factory=dict)
    buffers: list[Planes] = field(default_factory=list)

    def room(self, load: Load, num: int) -> Planes:
        """The place of ``num`` rows for the step with this load."""
        if load.key not in self.rooms:
            if not self.buffers or self.buffers[-1].room < num:
                self.buffers.append(self.make(num))
            self.rooms[load.key] = load.asked, self.buffers[-1].rows(0, num)  # the key is theirs while they live
        return self.rooms[load.key][1]

    @property
    def size(self) -> int:
        """Bytes it takes."""
        return sum(buffer.nbytes for buffer in self.buffers)


@dataclass(eq=False)
class Write:
    """Rows that a step pushed into some ``planes``; ``piece`` of what it was sent, where they are one.

    ``in_place``: ``values`` is what was delivered, which the step worked in.
    """

    rows: Rows
    values: Planes
    piece: int | None
    in_place: bool
    planes: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Parcel:
    """What one step pushed, on its way to the host: ``ready`` on the device, and ``gone`` when it is there, ``but`` for
    rows that the next step pushes again."""

    shelf: Shelf
    contents: list[Rows] = field(default_factory=list)
    ready: Ticket = field(default_factory=Ticket)
    gone: Ticket | None = None
    but: Shelf | None = None


_ON_HOST = WeakTensorKeyDictionary()


_KNOWN = WeakTensorKeyDictionary()


def known(rows: Tensor) -> Ticket:
    """A ticket for row numbers that a GPU was told to compute, made when they are first asked for: where they are asked
    for again, nobody waits."""
    if rows not in _KNOWN:
        _KNOWN[rows] = mark(rows.device)
    found = _KNOWN[rows]
    assert isinstance(found, Ticket)
    if found.passed:
        _KNOWN[rows] = found = Ticket()
    return found


def on_host(rows: Rows) -> Rows:
    """Row numbers in host memory; fetched once for each tensor of a GPU, since fetching waits for it."""
    if isinstance(rows, slice) or rows.device.type == "cpu":
        return rows
    if rows not in _ON_HOST:
        _ON_HOST[rows] = rows.cpu()
    found = _ON_HOST[rows]
    assert isinstance(found, Tensor)
    return found


def same(asked: Rows, rows: Rows) -> bool:
    """Whether these are the very rows that were asked for."""
    return asked == rows if isinstance(asked, slice) and isinstance(rows, slice) else asked is rows
