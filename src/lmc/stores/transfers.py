"""Records of rows between a step and a host table; :mod:`lmc.stores` says what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from lmc.kernels.packed import Packed, Rows, laid_out
from lmc.kernels.row_transfers import RowCache
from lmc.stores.host import HostRows
from lmc.stores.streams import Event


def same_rows(a: Rows, b: Rows) -> bool:
    """Whether these are equal ranges, or the same tensor object."""
    return a == b if isinstance(a, slice) and isinstance(b, slice) else a is b


@dataclass(eq=False)
class StepWrite:
    """Rows that the step under way pushed into some ``members`` of a bundle.

    ``piece`` is the index of the rows among the fetched ones, if they are one of them. ``in_place``: ``values`` are the
    delivered values themselves, which the step changed.
    """

    rows: Rows
    values: Packed
    piece: int | None
    in_place: bool
    members: set[int] = field(default_factory=set)


@dataclass(eq=False)
class PendingWrite:
    """What one step pushed: ``rows``, one after the other in ``cache``. With ``in_place``, ``cache`` is the beginning
    of the cache in which the rows were delivered to the step.

    ``packed`` completes when the cache holds the rows; ``written``, once they are sent, when the host table does,
    except for rows in the caches ``left_out``, which later steps pushed again. ``replaces``: the cache of the rows that
    were delivered to the step, if it pushed all of them, and the event after which they can be looked up there.
    """

    cache: RowCache
    rows: list[Rows]
    packed: Event
    in_place: bool
    replaces: tuple[RowCache, Event] | None
    written: Event | None = None
    left_out: tuple[RowCache, ...] = ()


@dataclass(eq=False)
class Fetch:
    """The rows of one step: the ``rows`` objects of the caller, one after the other in ``cache``.

    ``fetched`` completes when the cache holds the rows; ``delivered``, once there is one, when the newest pending write
    is laid over them and the step may read them. A write that is packed after ``newest`` outdates the fetch.
    """

    rows: tuple[Rows, ...]
    cache: RowCache
    newest: PendingWrite | None
    fetched: Event = field(default_factory=Event)
    delivered: Event | None = None

    def write_numbers(self) -> Tensor:
        """Write the row numbers into the cache; on the stream of the fetch, since the training stream is busy."""
        if len(self.rows) == 1 and isinstance(self.rows[0], Tensor):
            return self.cache.share_rows(self.rows[0])
        self.cache.own_rows()
        for rows, start, num in laid_out(self.rows):
            mine = self.cache.rows[start : start + num]
            torch.arange(rows.start, rows.stop, out=mine) if isinstance(rows, slice) else mine.copy_(rows)
        return self.cache.rows[: self.cache.num]

    def piece(self, rows: Rows) -> tuple[int, Packed] | None:
        """The index of ``rows`` among the fetched rows, and their values, if they are one of them."""
        places = enumerate(laid_out(self.rows))
        found = ((k, start, num) for k, (mine, start, num) in places if same_rows(mine, rows))
        return next(((k, self.cache.values.rows(start, num)) for k, start, num in found), None)


class StepLog:
    """Notes what a step pushes, and keeps the values until the step ends."""

    def __init__(self, host: HostRows) -> None:
        self._host = host
        self.writes: list[StepWrite] = []
        """A recording puts its own writes here when it is replayed."""
        self.fixed = False
        """Whether the step may be recorded: its values are then at an address that lasts."""
        self.in_place = False
        """Whether any step so far changed the delivered values in place."""
        self._static: list[Packed] = []
        """Memory for the values of the first write of a step, of the second, ...: all steps share it, since they never
        run at the same time. A recording that uses a buffer keeps it when a larger one replaces it."""

    @property
    def complete(self) -> bool:
        """Whether the step pushed the same rows into every member of the bundle."""
        return all(len(write.members) == len(self._host.packed) for write in self.writes)

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._static)

    def take(self) -> list[StepWrite]:
        """The writes; the log is empty afterwards."""
        writes, self.writes = self.writes, []
        return writes

    def unwritten(self, piece: int, member: int) -> bool:
        """Whether the delivered values of a piece are the newest: the step wrote other pieces of this member alone."""
        return all(w.piece is not None and w.piece != piece for w in self.writes if member in w.members)

    def note(self, rows: Rows, values: Tensor, member: int, adds: bool, fetch: Fetch | None) -> bool:
        """Note that the step, to which ``fetch`` was delivered, writes these rows; False if the write cannot wait until
        the step ends."""
        piece, delivered = (None if fetch is None else fetch.piece(rows)) or (None, None)
        if adds:
            if piece is None or delivered is None or not self.unwritten(piece, member):
                return False
            values = delivered[member] + values
        if delivered is not None and values.data_ptr() != delivered[member].data_ptr():
            delivered = None
        write = self._write_of(rows, values.shape[0], piece, delivered)
        if write.in_place and delivered is None:
            return False
        if not write.in_place:  # the caller may overwrite these values before the step ends
            write.values[member].copy_(values)
        self.in_place = self.in_place or write.in_place
        write.members.add(member)
        return True

    def _write_of(self, rows: Rows, num: int, piece: int | None, delivered: Packed | None) -> StepWrite:
        """The write of these rows: that of another member of the bundle, or a new one."""
        write = next((w for w in self.writes if same_rows(w.rows, rows)), None)
        if write is None:
            kept = self._buffer(num) if delivered is None else delivered
            write = StepWrite(rows, kept, piece, in_place=delivered is not None)
            self.writes.append(write)
        return write

    def _buffer(self, num: int) -> Packed:
        """Memory for the values of the next write."""
        if not self.fixed:
            return self._host.packed.empty(num, self._host.device)
        k = sum(not write.in_place for write in self.writes)
        if k == len(self._static):
            self._static.append(self._host.buffer(num))
        elif self._static[k].capacity < num:
            self._static[k] = self._host.buffer(num)
        return self._static[k].rows(0, num)
