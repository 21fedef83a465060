"""Rows of a table that lie on the training device for a while, and the kernels that bring and take them.

A page-locked host table is read and written by the GPU itself, row by row over the bus: nothing on the host waits, and
no row numbers have to be known there. Every function is plain torch first, which is the reference and what runs on a
CPU; on a GPU one Triton kernel does the same.

Tables that travel together are planes (:mod:`lmc.stores.packed`), here as on the host: one kernel serves all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmc.stores.base import Rows
from lmc.stores.packed import Planes

try:
    import triton
    import triton.language as tl
except ImportError:  # no GPU build of torch, no Triton
    triton = None

GRID = 48
"""Programs that read or write host memory: enough to fill the bus, few enough to leave the multiprocessors to the step
that runs beside."""
ROWS = 32
"""Rows that such a program serves at a time."""
NEAR_ROWS = 8
"""Rows that a program serves which stays on the device: many small programs hide what each waits for."""
WIDTH = 256
"""Numbers of a row it serves at a time."""


@dataclass(eq=False)
class Shelf:
    """Row i of ``values`` is row ``rows[i]`` of a table, for i < ``num``; ``place[r]`` says where row r is, if it is.

    ``place`` is never cleared: row r is here if ``rows[place[r]] == r``.
    """

    rows: Tensor
    values: Planes
    place: Tensor
    num: int = 0
    borrowed: bool = False
    """Whether ``rows`` is another's, and must not be written to."""

    def borrow(self, rows: Tensor) -> Tensor:
        """These are the rows from now on."""
        self.rows, self.borrowed = rows.to(self.place.device), True
        return self.rows

    def own(self) -> None:
        """Have ``rows`` to write to."""
        if self.borrowed:
            self.rows = torch.empty(self.room, dtype=torch.int64, device=self.place.device)
            self.borrowed = False

    @property
    def room(self) -> int:
        """Rows there is room for."""
        return self.values.room

    @property
    def filled(self) -> Planes:
        """The values there are."""
        return self.values.rows(0, self.num)

    def find(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Where ``rows`` stand here, and whether they do."""
        at = self.place[rows].clamp(max=self.num - 1)
        return at, self.rows[at] == rows


if triton is not None:
    # what differs from batch to batch is not compiled in (do_not_specialize)

    @triton.jit
    def _find(rows_ptr, place_ptr, num, r, inside):  # type: ignore[no-untyped-def]
        at = tl.load(place_ptr + r, mask=inside, other=0).to(tl.int64)
        inside = inside & (at < num)
        return at, inside & (tl.load(rows_ptr + at, mask=inside, other=-1) == r)

    # and plane k of a tensor begins ``room * columns[k]`` numbers behind its beginning

    @triton.jit
    def _at(room, i, before, d, k):  # type: ignore[no-untyped-def]
        return room.to(tl.int64) * before + i.to(tl.int64)[:, None] * d + k[None, :]

    @triton.jit
    def _copy(  # type: ignore[no-untyped-def]
        from_ptr,
        from_room,
        i,
        to_ptr,
        to_room,
        j,
        chosen,
        columns_ptr,
        planes,
        ALIGN: tl.constexpr,
        WIDTH: tl.constexpr,
    ):
        for plane in range(0, planes):
            c = tl.multiple_of(tl.load(columns_ptr + plane), ALIGN)
            d = tl.multiple_of(tl.load(columns_ptr + plane + 1) - c, ALIGN)
            for begin in range(0, d, WIDTH):
                k = begin + tl.arange(0, WIDTH)
                mine = chosen[:, None] & (k < d)[None, :]
                x = tl.load(from_ptr + _at(from_room, i, c, d, k), mask=mine, other=0.0)
                tl.store(to_ptr + _at(to_room, j, c, d, k), x, mask=mine)

    @triton.jit(
        do_not_specialize=["far", "num", "skip_from", "skip_to", "room", "start", "a_num", "a_room", "b_num", "b_room"]
    )
    def _gather(  # type: ignore[no-untyped-def]
        table_ptr, far, rows_ptr, out_ptr, room, start, place_ptr, num, skip_from, skip_to,
        a_rows, a_values, a_place, a_num, a_room, b_rows, b_values, b_place, b_num, b_room, columns_ptr, planes,
        A: tl.constexpr, B: tl.constexpr, PLACE: tl.constexpr,
        ALIGN: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        for first in range(tl.program_id(0) * ROWS, num, tl.num_programs(0) * ROWS):
            i = first + tl.arange(0, ROWS)
            inside = i < num
            r = tl.load(rows_ptr + i, mask=inside, other=0).to(tl.int64)
            from_far = inside & ((r < skip_from) | (r >= skip_to))
            if A:
                a, in_a = _find(a_rows, a_place, a_num, r, inside)
                from_far = from_far & ~in_a
            if B:
                b, in_b = _find(b_rows, b_place, b_num, r, from_far)
                from_far = from_far & ~in_b
            if PLACE:
                tl.store(place_ptr + r, i, mask=inside)
            for plane in range(0, planes):
                c = tl.multiple_of(tl.load(columns_ptr + plane), ALIGN)
                d = tl.multiple_of(tl.load(columns_ptr + plane + 1) - c, ALIGN)
                for begin in range(0, d, WIDTH):
                    k = begin + tl.arange(0, WIDTH)
                    column = (k < d)[None, :]
                    x = tl.load(table_ptr + _at(far, r, c, d, k), mask=from_far[:, None] & column, other=0.0)
                    if A:
                        mine = in_a[:, None] & column
                        x = tl.where(mine, tl.load(a_values + _at(a_room, a, c, d, k), mask=mine, other=0.0), x)
                    if B:
                        mine = in_b[:, None] & column
                        x = tl.where(mine, tl.load(b_values + _at(b_room, b, c, d, k), mask=mine, other=0.0), x)
                    tl.store(out_ptr + _at(room, start + i, c, d, k), x, mask=inside[:, None] & column)

    @triton.jit(do_not_specialize=["room", "start", "a_num", "a_room", "num"])
    def _overlay(  # type: ignore[no-untyped-def]
        out_ptr, room, start, rows_ptr, a_rows, a_values, a_place, a_num, a_room, num,
        columns_ptr, planes, ALIGN: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        r = tl.load(rows_ptr + i, mask=i < num, other=0).to(tl.int64)
        a, in_a = _find(a_rows, a_place, a_num, r, i < num)
        _copy(a_values, a_room, a, out_ptr, room, start + i, in_a, columns_ptr, planes, ALIGN, WIDTH)

    @triton.jit(do_not_specialize=["room", "start", "a_room", "first", "offset", "num"])
    def _put(  # type: ignore[no-untyped-def]
        values_ptr, room, start, rows_ptr, a_rows, a_values, a_place, a_room, first, offset, num,
        columns_ptr, planes, RUN: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        inside = i < num
        at = offset + i.to(tl.int64)
        r = first + i.to(tl.int64) if RUN else tl.load(rows_ptr + i, mask=inside, other=0).to(tl.int64)
        tl.store(a_rows + at, r, mask=inside)
        tl.store(a_place + r, at.to(tl.int32), mask=inside)
        _copy(values_ptr, room, start + i, a_values, a_room, at, inside, columns_ptr, planes, ALIGN, WIDTH)

    @triton.jit(do_not_specialize=["room", "start", "far", "a_num", "num"])
    def _scatter(  # type: ignore[no-untyped-def]
        values_ptr, room, start, rows_ptr, table_ptr, far, a_rows, a_place, a_num, num,
        columns_ptr, planes, BUT: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        for first in range(tl.program_id(0) * ROWS, num, tl.num_programs(0) * ROWS):
            i = first + tl.arange(0, ROWS)
            inside = i < num
            r = tl.load(rows_ptr + i, mask=inside, other=0).to(tl.int64)
            if BUT:
                _, in_a = _find(a_rows, a_place, a_num, r, inside)
                inside = inside & ~in_a
            _copy(values_ptr, room, start + i, table_ptr, far, r, inside, columns_ptr, planes, ALIGN, WIDTH)


def gather(
    table: Planes,
    rows: Tensor,
    out: Planes,
    shelves: tuple[Shelf, ...] = (),
    place: Tensor | None = None,
    skip: slice | None = None,
) -> None:
    """Row i of out <- row rows[i]: from the first of at most two shelves that has it, else from the table.

    Args:
        place: place[rows[i]] <- i.
        skip: rows of the table that need not be read: what they become is not defined.
    """
    shelves = tuple(shelf for shelf in shelves if shelf.num)
    if triton is None or not out.flat.is_cuda:
        for mine, others in zip(out, table, strict=True):
            torch.index_select(others, 0, rows, out=mine)
            if skip is not None:
                mine[(rows >= skip.start) & (rows < skip.stop)] = torch.nan
        for shelf in reversed(shelves):
            overlay(out, rows, shelf)
        if place is not None:
            place[rows] = torch.arange(rows.numel(), dtype=place.dtype, device=place.device)
        return
    if not rows.numel():
        return
    first, last = (0, 0) if skip is None else (skip.start, skip.stop)
    # shelves that are not there are not read: any pointer will do
    absent: list[Any] = [rows, out.flat, rows, 0, 0]
    args: list[Any] = []
    for k in range(2):
        args += _whole(shelves[k]) if k < len(shelves) else absent
    _gather[(GRID,)](
        table.flat, table.room, rows, *_where(out), rows if place is None else place, rows.numel(), first, last,
        *args, out.columns, len(out),
        A=len(shelves) > 0, B=len(shelves) > 1, PLACE=place is not None, **_sizes(out),
    )  # fmt: skip


def overlay(out: Planes, rows: Tensor, shelf: Shelf) -> None:
    """Row i of out <- row rows[i], where the shelf has it."""
    if not shelf.num or not rows.numel():
        return
    if triton is None or not out.flat.is_cuda:
        at, here = shelf.find(rows)
        for mine, others in zip(out, shelf.values, strict=True):
            mine[here] = others[at[here]]
        return
    args = (*_where(out), rows, *_whole(shelf), rows.numel(), out.columns, len(out))
    _overlay[(triton.cdiv(rows.numel(), NEAR_ROWS),)](*args, **_sizes(out, NEAR_ROWS))


def put(shelf: Shelf, rows: Rows, values: Planes) -> None:
    """Add rows to a shelf, which has room for them; of a row that comes twice, the last counts."""
    num, offset = values.num, shelf.num
    shelf.num += num
    if triton is None or not values.flat.is_cuda:
        index = index_of(rows, shelf.place.device)
        shelf.rows[offset : offset + num] = index
        shelf.values.rows(offset, num).copy_(values)
        shelf.place[index] = torch.arange(offset, offset + num, dtype=shelf.place.dtype, device=index.device)
        return
    if not num:
        return
    first, index = (rows.start, shelf.rows) if isinstance(rows, slice) else (0, rows.to(shelf.place.device))
    on = (shelf.rows, shelf.values.flat, shelf.place, shelf.room)
    args = (*_where(values), index, *on, first, offset, num, values.columns, len(values))
    _put[(triton.cdiv(num, NEAR_ROWS),)](*args, RUN=isinstance(rows, slice), **_sizes(values, NEAR_ROWS))


def scatter(values: Planes, rows: Rows, table: Planes, but: Shelf | None = None) -> None:
    """The table's rows <- values, except for rows that stand on the shelf ``but``.

    A run of rows without exception is one copy a plane, which takes no multiprocessor.
    """
    if but is not None and not but.num:
        but = None
    if isinstance(rows, slice) and but is None:
        table.rows(rows.start, values.num).copy_(values)
        return
    index = index_of(rows, values.flat.device)
    if triton is None or not values.flat.is_cuda:
        keep = slice(None) if but is None else ~but.find(index)[1]
        for mine, others in zip(table, values, strict=True):
            mine.index_copy_(0, index[keep], others[keep])
    elif index.numel():
        shelf = (index, index, 0) if but is None else (but.rows, but.place, but.num)
        to = (index, table.flat, table.room)
        args = (*_where(values), *to, *shelf, index.numel(), values.columns, len(values))
        _scatter[(GRID,)](*args, BUT=but is not None, **_sizes(values))


def _where(planes: Planes) -> tuple[Tensor, int, int]:
    return planes.flat, planes.room, planes.start


def _whole(shelf: Shelf) -> list[Any]:
    return [shelf.rows, shelf.values.flat, shelf.place, shelf.num, shelf.room]


def _sizes(planes: Planes, rows: int = ROWS) -> dict[str, int]:
    return {"ALIGN": planes.align, "ROWS": rows, "WIDTH": WIDTH, "num_warps": rows // 4}


def reaches(table: Planes, device: torch.device) -> bool:
    """Whether the kernels can read a page-locked table."""
    try:
        gather(table, torch.zeros(1, dtype=torch.int64, device=device), table.like(1, device))
    except (RuntimeError, ValueError):  # a driver, or a Triton, that does not take host memory
        return False
    return True


def index_of(rows: Rows, device: torch.device) -> Tensor:
    """Row numbers as a tensor on ``device``."""
    return torch.arange(rows.start, rows.stop, device=device) if isinstance(rows, slice) else rows.to(device)
