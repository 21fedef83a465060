"""Rows that lie outside the training device's memory, read ahead of a step and written back behind it.

On a GPU, with steps k and k + 1 of a training loop:

    host     step k is launched | the rows of step k + 1 are sent for | step k + 1 is launched
    device   .... step k runs, reads what was delivered to it ....    | step k + 1 ...
    lanes    .... rows for k + 1 arrive, what k - 1 pushed leaves ....

What a step pushes is a PARCEL: it stays on the device for two more steps while it leaves. Rows for step k + 1 are taken
from the parcel of step k - 1 where that has them, else from the rows that step k was sent, else from the host table,
which is up to date with step k - 2; the parcel of step k, not there yet, is laid over them on delivery. So nothing is
read stale, nothing travels that is here, and reading and writing never wait for one another.

The kernels reach page-locked host memory themselves (:mod:`lmc.stores.row_cache`). Pages of a file can be locked to be
read, if at all; where the kernels do not reach, two threads of the host gather and write (:mod:`lmc.stores.host_io`).

What is told to a GPU is told to it once for all PLANES, the tables that a step reads and writes at the same rows.

Where the training device is the CPU there is nothing to overlap, and every verb acts at once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from lmc.kernels.pinned import pin
from lmc.stores.base import Rows
from lmc.stores.device import write
from lmc.stores.host_io import Hands
from lmc.stores.packed import Planes, count
from lmc.stores.row_cache import Shelf, gather, index_of, overlay, put, reaches, scatter
from lmc.stores.streams import Lane, Ticket, mark, shared
from lmc.stores.transfers import Hall, Load, Parcel, Write, known, on_host, same


class StagedTable:
    """A table over ``rows``, a contiguous tensor on the host (plain, page-locked or mapped from a file).

    A training step is bracketed by :meth:`arrive` and :meth:`leave`; outside of them a push acts at once.

    Args:
        rows: one table, or the planes of several (:mod:`lmc.stores.bundle`), which travel together.
        behind: read ahead and write back as above; by default where the training device is a GPU.
        lockable: what may be locked: memory, or pages of a file ("read"), or none.
    """

    def __init__(
        self,
        rows: Tensor | Planes,
        device: torch.device,
        behind: bool | None = None,
        tier: str = "host",
        lockable: Literal["memory", "read", "none"] = "memory",
    ) -> None:
        self.tier = tier
        self._rows = rows = Planes.over(rows.view(-1), rows.shape[1:], device) if isinstance(rows, Tensor) else rows
        self._each = [Planes.over(mine.view(-1), mine.shape[1:], device) for mine in rows]
        self._device = device
        self._cuda = device.type == "cuda"
        self.stages = self._cuda if behind is None else behind
        locked = not self._cuda or (lockable != "none" and pin(self._rows.flat, device, self, lockable == "read"))
        self._reads = lockable != "none" and locked and (not self._cuda or reaches(self._rows, device))
        self._writes = self._reads and lockable == "memory"
        self._hands = Hands(self._rows, device) if self.stages and not self._writes else None
        self._reading, self._writing = self._lane("reads", self._reads), self._lane("writes", self._writes, late=True)
        self.strays = False
        """Whether a step read or wrote in an order for which it had to wait; it cannot be recorded then."""
        self._inside = False
        self._load: Load | None = None
        self._spare: list[Shelf] = []
        self._most = 0
        self.log: list[Write] = []
        """What the step under way has pushed; a recording puts its own here when it is replayed."""
        self._parcels: list[Parcel] = []
        self._behind = Ticket()
        self._fixed = False
        self._in_place = False
        self._counters: list[Hall] = []

    def _lane(self, name: str, reached: bool, late: bool = False) -> Lane:
        if reached and self._cuda:
            return shared(self._device, name)
        return Lane(self._device, hand=None if reached else name, late=late)

    @property
    def num_planes(self) -> int:
        return len(self._rows)

    # ---- the five verbs

    def pull(self, rows: Rows, plane: int = 0) -> Tensor:
        load = self._load
        piece = None if load is None else load.piece(rows)
        if load is not None and piece is not None and self._untouched(piece, plane):
            self._deliver(load)
            return load.of(piece)[plane]
        self._settle()
        if not self._reads:
            return self._gather(on_host(rows), plane).to(self._device, non_blocking=self._cuda)
        if not self._cuda:
            return self._gather(rows, plane)
        return self._reached(rows, plane)

    def push(self, rows: Rows, values: Tensor, plane: int = 0) -> None:
        self._write(rows, values.detach(), plane, adds=False)

    def add(self, rows: Rows, values: Tensor, plane: int = 0) -> None:
        self._write(rows, values.detach(), plane, adds=True)

    def prefetch(self, *rows: Rows) -> None:
        if not self.stages:
            return
        before, older = self._load, self._parcels[0] if len(self._parcels) == 2 else None
        near = before if before is not None and before.delivered is not None else None
        if before is not None and near is None and not self._reads:
            before.ticket.finish()  # nobody waited for it, and its shelf is about to be used again
        load = self._new_load(rows)
        after = [load.ticket, self._behind, *(known(r) for r in rows if isinstance(r, Tensor))]
        for parcel in self._parcels:
            if parcel.but is not None and parcel.gone is not None and parcel.but.place is load.shelf.place:
                after.append(parcel.gone)  # it is being left out what was on this shelf
        # later than the last call, and than what the step before pushed
        after.append(near.delivered if near is not None and near.delivered is not None else mark(self._device))
        shelves = tuple(s for s in (older and older.shelf, near and near.shelf) if s)
        newest = self._parcels[-1].contents if self._parcels else []  # will be laid over them in any case
        if self._reads or self._hands is None:
            skip = next((r for r in newest if isinstance(r, slice)), None)
            work = partial(self._fetch, load, shelves, skip)
        else:
            here = [*newest, *(older.contents if older else ()), *(near.asked if near else ())]
            numbers = [on_host(r) for r in rows], [on_host(r) for r in here]
            work = partial(self._hands.fetch, self._gather, load, shelves, *numbers)
        read = tuple(r for r in rows if isinstance(r, Tensor) and r.is_cuda)
        load.ticket = self._reading.do(work, tuple(after), read)
        self._load = load

    @property
    def sent(self) -> bool:
        """Whether rows were sent for, and not dropped since: who writes from outside of a step settles everything."""
        return self._load is not None or not self.stages

    def _reached(self, rows: Rows, plane: int) -> Tensor:
        """Rows that the GPU reads from the host's table."""
        table = self._each[plane]
        found = table.like(count(rows), self._device)
        gather(table, index_of(rows, self._device), found)
        return found[0]

    def delivered(self, *rows: Rows, plane: int = 0) -> Tensor | None:
        """All that the step under way was sent, one after the other, where it is these rows and none was pushed yet.

        The step may work in it, if it pushes all it changes.
        """
        load = self._load
        pushed = any(plane in w.planes for w in self.log)
        if not self._inside or load is None or load.view is None or pushed or len(rows) != len(load.asked):
            return None
        return load.view[plane] if all(load.piece(r) == k for k, r in enumerate(rows)) else None

    def expect(self, *rows: Rows) -> None:
        """These row numbers, just computed on the current stream, will be asked for or pushed to."""
        for r in rows:
            if isinstance(r, Tensor):
                known(r)
                if self._hands is not None:
                    on_host(r)

    def data(self, plane: int = 0) -> Tensor:
        # the caller may write into it, behind the back of what was sent for
        self._settle()
        if self._cuda:
            torch.cuda.synchronize(self._device)
        return self._rows[plane]

    # ---- a step

    def arrive(self, fixed: bool) -> None:
        """A step begins: deliver what was sent for. With ``fixed`` it leaves its rows at the same place in every epoch
        (and finds them at one of two, :attr:`place`), so that it can be recorded."""
        if not self.stages:
            return
        self._inside, self._fixed = True, fixed
        if self._load is not None:
            self._deliver(self._load)

    @property
    def place(self) -> tuple[int, int] | None:
        """Where the step under way finds its rows."""
        view = None if self._load is None else self._load.view
        return None if view is None else (view.flat.data_ptr(), view.room)

    def leave(self) -> None:
        """The step is launched: send off what it pushed."""
        if not self.stages:
            return
        if not self._whole:
            self._settle()
        log, self.log, self._inside = self.log, [], False
        if log or self._parcels:
            self._pack(log)

    @property
    def _whole(self) -> bool:
        """Whether the step pushed the same rows into every plane."""
        return all(len(w.planes) == self.num_planes for w in self.log)

    def _deliver(self, load: Load) -> None:
        if load.delivered is None:
            shelf = load.shelf
            load.ticket.wait()
            if self._parcels:
                overlay(shelf.filled, shelf.rows[: shelf.num], self._parcels[-1].shelf)
            load.view, load.delivered = shelf.filled, mark(self._device)

    def _pack(self, log: list[Write]) -> None:
        """Make a parcel of what a step pushed, and send off the one before."""
        load, pieces = self._load, {w.piece for w in log}
        # where all that came is pushed again, what the step before pushed of it need not be sent
        again = load is not None and self._writes and all(k in pieces for k in range(len(load.asked)))
        for before in self._parcels:
            self._send(before, load if again else None)
        parcel = self._parcels.pop(0) if len(self._parcels) == 2 else None
        if parcel is not None:
            assert parcel.gone is not None
            parcel.gone.wait()
            self._behind = parcel.gone
        if load is not None and load.delivered is None:
            load.ticket.wait()  # it may still be read from
        num = sum(count(w.rows) for w in log)
        if parcel is None or parcel.shelf.room < num:
            parcel = Parcel(self._shelf(num, None if parcel is None else parcel.shelf.place))
        parcel.shelf.num, parcel.gone, parcel.but = 0, None, None
        for w in log:
            put(parcel.shelf, w.rows, w.values)
        parcel.contents, parcel.ready = [w.rows for w in log], mark(self._device)
        self._parcels.append(parcel)

    def _send(self, parcel: Parcel, again: Load | None = None) -> None:
        """Send a parcel to the host, without what the load ``again`` will bring there in a newer state."""
        if parcel.gone is not None:
            return
        mine = tuple(rows for rows in parcel.contents if isinstance(rows, Tensor) and rows.is_cuda)
        if self._hands is None:
            parcel.but = None if again is None else replace(again.shelf)
            work = partial(self._bring, parcel.shelf, parcel.contents, parcel.but)
        else:
            work = partial(self._hands.bring, self._change, parcel.shelf, [on_host(rows) for rows in parcel.contents])
        after = (parcel.ready,) if again is None else (parcel.ready, again.ticket)
        parcel.gone = self._writing.do(work, after, mine)

    def _bring(self, shelf: Shelf, contents: list[Rows], but: Shelf | None) -> None:
        start = 0
        for rows in contents:
            scatter(shelf.values.rows(start, count(rows)), rows, self._rows, but)
            start += count(rows)

    def _fetch(self, load: Load, shelves: tuple[Shelf, ...], skip: slice | None) -> None:
        index = load.number()
        gather(self._rows, index, load.shelf.filled, shelves, load.shelf.place, skip)

    # ---- outside of a step, or in an order that a step has to wait for

    def _write(self, rows: Rows, values: Tensor, plane: int, adds: bool) -> None:
        if self._inside and values.device.type == self._device.type and self._note(rows, values, plane, adds):
            return
        self._settle()
        self._write_now(rows, values, plane, adds)

    def _note(self, rows: Rows, values: Tensor, plane: int, adds: bool) -> bool:
        """Write down what a step pushes, for :meth:`leave`; False where it cannot wait until then."""
        load = self._load
        piece = None if load is None else load.piece(rows)
        sent = None
        if load is not None and piece is not None:
            self._deliver(load)
            sent = load.of(piece)
        if adds:
            if sent is None or piece is None or not self._untouched(piece, plane):
                return False
            values = sent[plane] + values
        noted = next((w for w in self.log if same(w.rows, rows)), None)
        in_place = sent is not None and values.data_ptr() == sent[plane].data_ptr()
        in_place = in_place and (noted is None or noted.in_place)
        if noted is None:
            noted = Write(rows, sent if sent is not None and in_place else self._room(values.shape[0]), piece, in_place)
            self.log.append(noted)
        if noted.in_place != in_place:
            return False
        if not in_place:  # what is pushed may be written over before it is packed; what was delivered is not
            noted.values[plane].copy_(values)
        self._in_place = self._in_place or in_place
        noted.planes.add(plane)
        return True

    def _room(self, num: int) -> Planes:
        """Where a step leaves ``num`` rows until they are packed."""
        if not self._fixed or self._load is None:
            return self._rows.like(num, self._device)
        if len(self._counters) == len(self.log):
            self._counters.append(Hall(self._empty))
        return self._counters[len(self.log)].room(self._load, num)

    def _write_now(self, rows: Rows, values: Tensor, plane: int, adds: bool) -> None:
        if self._writes and self._cuda and values.is_cuda:
            values = self._reached(rows, plane) + values if adds else values
            table = self._each[plane]
            scatter(table.holding(values.to(table.flat.dtype).reshape(-1)), rows, table)
            return
        if self._cuda:
            torch.cuda.synchronize(self._device)
        self._change(on_host(rows), values.cpu(), plane, adds)

    def _untouched(self, piece: int, plane: int) -> bool:
        """Whether what was delivered of it is the newest there is: this step wrote other pieces alone."""
        return all(w.piece is not None and w.piece != piece for w in self.log if plane in w.planes)

    def _settle(self) -> None:
        """Bring the rows up to every write: the current stream sees them, and, where they go by hand, the host."""
        self.strays = self.strays or self._inside
        whole, log, self.log = self._whole, self.log, []
        if log and whole:
            self._pack(log)
        for parcel in self._parcels:
            self._send(parcel)
            assert parcel.gone is not None
            parcel.gone.wait() if self._writes else parcel.gone.finish()
        if self._load is not None:
            self._load.ticket.wait()
            self._spare.append(self._load.shelf)
        self._load, self._parcels = None, []
        for w in log if not whole else ():
            for plane in w.planes:
                self._write_now(w.rows, w.values[plane], plane, adds=False)

    def _change(self, rows: Rows, values: Tensor, plane: int, adds: bool) -> None:
        """Write into the rows themselves, on the host."""
        write(self._rows[plane], rows, values, adds)

    def _gather(self, rows: Rows, plane: int, into: Tensor | None = None) -> Tensor:
        """The rows, on the host; for a GPU a page-locked copy, since the copy to the device reads it later."""
        mine = self._rows[plane]
        if into is None and not self._cuda:
            return mine[rows] if isinstance(rows, slice) else mine.index_select(0, rows)
        if into is None:
            into = torch.empty(count(rows), mine.shape[1], dtype=mine.dtype, pin_memory=True)
        return into.copy_(mine[rows]) if isinstance(rows, slice) else torch.index_select(mine, 0, rows, out=into)

    # ---- memory on the device

    @property
    def held(self) -> tuple[int, int]:
        """Bytes on the training device for rows on their way, and for knowing where they are."""
        shelves = [*self._spare, *(p.shelf for p in self._parcels), *([] if self._load is None else [self._load.shelf])]
        halls = sum(hall.size for hall in self._counters)
        return sum(s.rows.nbytes + s.values.nbytes for s in shelves) + halls, sum(s.place.nbytes for s in shelves)

    @property
    def standing(self) -> int:
        """Bytes more that recorded steps take: where they leave what they push, unless they work in place."""
        return 0 if self._in_place or not self._parcels else self._parcels[-1].shelf.filled.nbytes

    def _new_load(self, rows: tuple[Rows, ...]) -> Load:
        """Room for these rows, where those of the step before the one under way were."""
        shelf = self._spare.pop() if self._spare else self._shelf(0)
        if self._load is not None:
            self._spare.append(self._load.shelf)
        num = sum(count(r) for r in rows)
        self._most = max(self._most, num)
        fresh = shelf.room < self._most  # both shelves soon stay where they are
        if fresh:
            if self._load is not None:
                self._load.ticket.wait()  # it may still be read from
            shelf = self._shelf(self._most, shelf.place)
        shelf.num = num
        # memory that the training stream gave back is the lane's when that stream has come so far
        return Load(rows, shelf, mark(self._device) if fresh else Ticket())

    def _shelf(self, num: int, place: Tensor | None = None) -> Shelf:
        if place is None:
            place = torch.zeros(self._rows.room, dtype=torch.int32, device=self._device)
        values = self._empty(num)
        return Shelf(torch.empty(values.room, dtype=torch.int64, device=self._device), values, place)

    def _empty(self, num: int) -> Planes:
        """Room for so many rows, and a few more: the next batch may be a little larger."""
        return self._rows.like(num + num // 8, self._device)
