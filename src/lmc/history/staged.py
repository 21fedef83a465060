"""Rows that lie outside the training device's memory, read ahead of a step and written back behind it.

On a GPU, with steps k and k + 1 of a training loop:

    host     step k is launched | the rows of step k + 1 are sent for | step k + 1 is launched
    device   .... step k runs, reads what was delivered to it ....    | step k + 1 ...
    lanes    .... rows for k + 1 arrive, what k - 1 pushed leaves ....

What a step pushes is a PARCEL: it stays on the device for two more steps while it leaves. Rows for step k + 1 are taken
from the parcel of step k - 1 where that has them, else from the rows that step k was sent, else from the host table,
which is up to date with step k - 2; the parcel of step k, not there yet, is laid over them on delivery. So nothing is
read stale, nothing travels that is here, and reading and writing never wait for one another.

The kernels reach page-locked host memory themselves (:mod:`lmc.history.shelf`). Pages of a file cannot be locked: there
two threads of the host gather and write the rows.

Where the training device is the CPU there is nothing to overlap, and every verb acts at once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from lmc.graph import lock
from lmc.history.base import Rows
from lmc.history.cargo import Hall, Load, Parcel, Write, count, known, on_host
from lmc.history.device import write
from lmc.history.lanes import Lane, Ticket, mark, shared
from lmc.history.shelf import Shelf, gather, index_of, overlay, put, reaches, scatter


class StagedTable:
    """A table over ``rows``, a contiguous tensor on the host (plain, page-locked or mapped from a file).

    A training step is bracketed by :meth:`arrive` and :meth:`leave`; outside of them a push acts at once.

    Args:
        behind: read ahead and write back as above; by default where the training device is a GPU.
    """

    def __init__(self, rows: Tensor, device: torch.device, behind: bool | None = None, tier: str = "host") -> None:
        self.tier = tier
        self._rows = rows
        self._device = device
        self._cuda = device.type == "cuda"
        self.stages = self._cuda if behind is None else behind
        self._reach = tier != "disk" and (not self._cuda or (lock(rows, device, self) and reaches(rows, device)))
        self._reading, self._writing = self._lanes()
        self._here = torch.zeros(0 if self._reach or not self.stages else rows.shape[0], dtype=torch.bool)
        self.strays = False
        """Whether a step read or wrote in an order for which it had to wait; it cannot be recorded then."""
        self._inside = False
        self._load: Load | None = None
        self._spare: list[Shelf] = []
        self.log: list[Write] = []
        """What the step under way has pushed; a recording puts its own here when it is replayed."""
        self._parcels: list[Parcel] = []
        self._last = self._behind = Ticket()
        self._fixed = False
        self._in_place = False
        self._front = Hall(self._empty)
        self._counters: list[Hall] = []

    def _lanes(self) -> tuple[Lane, Lane]:
        if not self._reach:
            return Lane(self._device, hand="reads"), Lane(self._device, hand="writes", late=True)
        if not self._cuda:
            return Lane(self._device), Lane(self._device, late=True)
        return shared(self._device, "reads"), shared(self._device, "writes")

    # ---- the five verbs

    def pull(self, rows: Rows) -> Tensor:
        load = self._load
        piece = None if load is None else load.piece(rows)
        if load is not None and piece is not None and self._untouched(piece):
            self._deliver(load)
            return load.of(piece)
        self._settle()
        if not self._reach:
            return self._gather(on_host(rows)).to(self._device, non_blocking=self._cuda)
        if not self._cuda:
            return self._gather(rows)
        index = index_of(rows, self._device)
        found = torch.empty(index.numel(), self._rows.shape[1], dtype=self._rows.dtype, device=self._device)
        gather(self._rows, index, found)
        return found

    def push(self, rows: Rows, values: Tensor) -> None:
        self._write(rows, values.detach(), adds=False)

    def add(self, rows: Rows, values: Tensor) -> None:
        self._write(rows, values.detach(), adds=True)

    def prefetch(self, *rows: Rows) -> None:
        if not self.stages:
            return
        before, older = self._load, self._parcels[0] if len(self._parcels) == 2 else None
        near = before if before is not None and before.delivered is not None else None
        if before is not None and near is None and not self._reach:
            before.ticket.finish()  # nobody waited for it, and its shelf is about to be used again
        load = self._new_load(rows)
        after = [load.ticket, self._behind, *(known(r) for r in rows if isinstance(r, Tensor))]
        for parcel in self._parcels:
            if parcel.but is not None and parcel.gone is not None and parcel.but.place is load.shelf.place:
                after.append(parcel.gone)  # it is being left out what was on this shelf
        if near is not None and near.delivered is not None:
            after.append(near.delivered)  # later than the last call, and than what the step before pushed
        else:
            after += [self._last] if older is None else [self._last, older.ready]
        shelves = tuple(s for s in (older and older.shelf, near and near.shelf) if s)
        newest = self._parcels[-1].contents if self._parcels else []  # will be laid over them in any case
        if self._reach:
            skip = next((r for r in newest if isinstance(r, slice)), None)
            work = partial(self._fetch, load, shelves, skip)
        else:
            here = [*newest, *(older.contents if older else ()), *(near.asked if near else ())]
            work = partial(self._fetch_by_hand, load, shelves, [on_host(r) for r in rows], [on_host(r) for r in here])
        read = tuple(r for r in rows if isinstance(r, Tensor) and r.is_cuda)
        load.ticket = self._reading.do(work, tuple(after), read)
        self._load, self._last = load, mark(self._device)

    @property
    def sent(self) -> bool:
        """Whether rows were sent for, and not dropped since: who writes from outside of a step settles everything."""
        return self._load is not None or not self.stages

    def delivered(self, *rows: Rows) -> Tensor | None:
        """All that the step under way was sent, one after the other, where it is these rows and none was pushed yet.

        The step may work in it, if it pushes all it changes.
        """
        load = self._load
        if not self._inside or load is None or self.log or len(rows) != len(load.asked):
            return None
        return load.view if all(load.piece(r) == k for k, r in enumerate(rows)) else None

    def expect(self, *rows: Rows) -> None:
        """These row numbers, just computed on the current stream, will be asked for or pushed to."""
        for r in rows:
            if isinstance(r, Tensor):
                known(r)
                if not self._reach:
                    on_host(r)

    def data(self) -> Tensor:
        # the caller may write into it, behind the back of what was sent for
        self._settle()
        if self._cuda:
            torch.cuda.synchronize(self._device)
        return self._rows

    # ---- a step

    def arrive(self, fixed: bool) -> None:
        """A step begins: deliver what was sent for. With ``fixed`` it finds and leaves its rows at the same places in
        every epoch, so that it can be recorded."""
        if not self.stages:
            return
        self._inside, self._fixed = True, fixed
        if self._load is not None:
            self._deliver(self._load, fixed)

    def leave(self) -> None:
        """The step is launched: send off what it pushed."""
        if not self.stages:
            return
        log, self.log, self._inside = self.log, [], False
        if log or self._parcels:
            self._pack(log)

    def _deliver(self, load: Load, fixed: bool = False) -> None:
        shelf = load.shelf
        if load.delivered is None:
            load.ticket.wait()
            load.view = self._front.room(load, shelf.num).copy_(shelf.filled) if fixed else shelf.filled
            if self._parcels:
                overlay(load.view, shelf.rows[: shelf.num], self._parcels[-1].shelf)
            load.delivered = mark(self._device)
        elif fixed and load.view is not None and load.view.data_ptr() == shelf.values.data_ptr():
            load.view = self._front.room(load, shelf.num).copy_(load.view)

    def _pack(self, log: list[Write]) -> None:
        """Make a parcel of what a step pushed, and send off the one before."""
        load, pieces = self._load, {w.piece for w in log}
        # where all that came is pushed again, what the step before pushed of it need not be sent
        again = load is not None and self._reach and all(k in pieces for k in range(len(load.asked)))
        for before in self._parcels:
            self._send(before, load if again else None)
        parcel = self._parcels.pop(0) if len(self._parcels) == 2 else None
        if parcel is not None:
            assert parcel.gone is not None
            parcel.gone.wait()
            self._behind = parcel.gone
        if load is not None:
            load.ticket.wait()  # it may still be read from
        num = sum(count(w.rows) for w in log)
        if parcel is None or parcel.shelf.values.shape[0] < num:
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
        if self._reach:
            parcel.but = None if again is None else replace(again.shelf)
            work = partial(self._bring, parcel.shelf, parcel.contents, parcel.but)
        else:
            work = partial(self._bring_by_hand, parcel.shelf, [on_host(rows) for rows in parcel.contents])
        after = (parcel.ready,) if again is None else (parcel.ready, again.ticket)
        parcel.gone = self._writing.do(work, after, mine)

    def _bring(self, shelf: Shelf, contents: list[Rows], but: Shelf | None) -> None:
        start = 0
        for rows in contents:
            scatter(shelf.values[start : start + count(rows)], rows, self._rows, but)
            start += count(rows)

    def _bring_by_hand(self, shelf: Shelf, contents: list[Rows]) -> None:
        values = shelf.values[: shelf.num]
        if self._cuda:
            values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
            torch.cuda.current_stream(self._device).synchronize()
        start = 0
        for rows in contents:
            self._change(rows, values[start : start + count(rows)], adds=False)
            start += count(rows)

    def _fetch(self, load: Load, shelves: tuple[Shelf, ...], skip: slice | None) -> None:
        index = load.number()
        gather(self._rows, index, load.shelf.filled, shelves, load.shelf.place, skip)

    def _fetch_by_hand(self, load: Load, shelves: tuple[Shelf, ...], asked: list[Rows], here: list[Rows]) -> None:
        """The same with row numbers on the host, of those asked for and of those on the device."""
        shelf, index = load.shelf, load.number()
        shelf.place[index] = torch.arange(shelf.num, dtype=shelf.place.dtype, device=self._device)
        rows = torch.cat([index_of(r, torch.device("cpu")) for r in asked])
        for r in here:
            self._here[r] = True
        at = (~self._here[rows]).nonzero().squeeze(1)
        for r in here:
            self._here[r] = False
        found = self._gather(rows[at])
        if self._cuda:
            at, found = at.pin_memory(), found.to(self._device, non_blocking=True)
        shelf.filled.index_copy_(0, at.to(self._device, non_blocking=True), found)
        for on in reversed(shelves):
            overlay(shelf.filled, index, on)

    # ---- outside of a step, or in an order that a step has to wait for

    def _write(self, rows: Rows, values: Tensor, adds: bool) -> None:
        if self._inside and values.device.type == self._device.type:
            load = self._load
            piece = None if load is None else load.piece(rows)
            if not adds:
                self.log.append(Write(rows, self._kept(values), piece))
                return
            if load is not None and piece is not None and self._untouched(piece):
                self._deliver(load)
                self.log.append(Write(rows, self._kept(load.of(piece) + values), piece))
                return
        self._settle()
        if self._reach and self._cuda and values.is_cuda:
            if adds:
                index, old = index_of(rows, self._device), torch.empty_like(values, dtype=self._rows.dtype)
                gather(self._rows, index, old)
                values = old + values
            scatter(values.to(self._rows.dtype), rows, self._rows)
            self._last = mark(self._device)
            return
        if self._cuda:
            torch.cuda.synchronize(self._device)
        self._change(on_host(rows), values.cpu(), adds)

    def _kept(self, values: Tensor) -> Tensor:
        """A copy of what a step pushes, which may be written over before it is packed; what was delivered is not."""
        view = None if self._load is None else self._load.view
        if view is not None and values.untyped_storage().data_ptr() == view.untyped_storage().data_ptr():
            self._in_place = True
            return values
        if not self._fixed or self._load is None:
            return values.to(self._rows.dtype, copy=True)
        if len(self._counters) == len(self.log):
            self._counters.append(Hall(self._empty))
        return self._counters[len(self.log)].room(self._load, values.shape[0]).copy_(values)

    def _untouched(self, piece: int) -> bool:
        """Whether what was delivered of it is the newest there is: this step wrote other pieces alone."""
        return all(w.piece is not None and w.piece != piece for w in self.log)

    def _settle(self) -> None:
        """Bring the rows up to every write: the current stream sees them, and, where they go by hand, the host."""
        self.strays = self.strays or self._inside
        if self.log:
            log, self.log = self.log, []
            self._pack(log)
        for parcel in self._parcels:
            self._send(parcel)
            assert parcel.gone is not None
            parcel.gone.wait() if self._reach else parcel.gone.finish()
        if self._load is not None:
            self._load.ticket.wait()
        self._load, self._parcels = None, []
        self._last = mark(self._device)

    def _change(self, rows: Rows, values: Tensor, adds: bool) -> None:
        """Write into the rows themselves, on the host."""
        write(self._rows, rows, values, adds)

    def _gather(self, rows: Rows) -> Tensor:
        """The rows, on the host; for a GPU a page-locked copy, since the copy to the device reads it later."""
        if isinstance(rows, slice):
            found = self._rows[rows]
            return torch.empty_like(found, pin_memory=True).copy_(found) if self._cuda else found
        if not self._cuda:
            return self._rows.index_select(0, rows)
        staging = torch.empty(rows.numel(), self._rows.shape[1], dtype=self._rows.dtype, pin_memory=True)
        return torch.index_select(self._rows, 0, rows, out=staging)

    # ---- memory on the device

    @property
    def held(self) -> tuple[int, int]:
        """Bytes on the training device for rows on their way, and for knowing where they are."""
        shelves = [*self._spare, *(p.shelf for p in self._parcels), *([] if self._load is None else [self._load.shelf])]
        halls = sum(hall.size for hall in (self._front, *self._counters))
        return sum(s.rows.nbytes + s.values.nbytes for s in shelves) + halls, sum(s.place.nbytes for s in shelves)

    @property
    def standing(self) -> int:
        """Bytes more that steps at fixed places take: room for what they are sent, and for what they push, unless they
        push what they were sent."""
        sent = 0 if self._load is None else self._load.shelf.filled.nbytes
        return sent + (0 if self._in_place or not self._parcels else self._parcels[-1].shelf.filled.nbytes)

    def _new_load(self, rows: tuple[Rows, ...]) -> Load:
        """Room for these rows, where those of the step before the one under way were."""
        shelf = self._spare.pop() if self._spare else self._shelf(0)
        if self._load is not None:
            self._spare.append(self._load.shelf)
        num = sum(count(r) for r in rows)
        fresh = shelf.values.shape[0] < num
        if fresh:
            if self._load is not None:
                self._load.ticket.wait()  # it may still be read from
            shelf = self._shelf(num, shelf.place)
        shelf.num = num
        # memory that the training stream gave back is the lane's when that stream has come so far
        return Load(rows, shelf, mark(self._device) if fresh else Ticket())

    def _shelf(self, num: int, place: Tensor | None = None) -> Shelf:
        if place is None:
            place = torch.zeros(self._rows.shape[0], dtype=torch.int32, device=self._device)
        values = self._empty(num)
        return Shelf(torch.empty(values.shape[0], dtype=torch.int64, device=self._device), values, place)

    def _empty(self, num: int) -> Tensor:
        """Room for so many rows, and a few more: the next batch may be a little larger."""
        shape = num + num // 8, self._rows.shape[1]
        return torch.empty(shape, dtype=self._rows.dtype, device=self._device)
