"""Rows of a table that lie on the training device for a while, and the kernels that bring and take them.

A page-locked host table is read and written by the GPU itself, row by row over the bus: nothing on the host waits, and
no row numbers have to be known there. Every function is plain torch first, which is the reference and what runs on a
CPU; on a GPU one Triton kernel does the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmc.history.base import Rows

try:
    import triton
    import triton.language as tl
except ImportError:  # no GPU build of torch, no Triton
    triton = None

GRID = 48
"""Programs that read or write host memory: enough to fill the bus, few enough to leave the multiprocessors to the step
that runs beside."""
ROWS = 32
"""Rows a program serves at a time."""
WIDTH = 256
"""Numbers of a row it serves at a time."""


@dataclass(eq=False)
class Shelf:
    """``values[i]`` is row ``rows[i]`` of a table, for i < ``num``; ``place[r]`` says where row r stands, if it does.

    ``place`` is never cleared: row r is here if ``rows[place[r]] == r``.
    """

    rows: Tensor
    values: Tensor
    place: Tensor
    num: int = 0
    borrowed: bool = False
    """Whether ``rows`` is another's, and must not be written to."""

    def borrow(self, rows: Tensor) -> Tensor:
        """These are the rows from now on."""
        self.rows, self.borrowed = rows.to(self.values.device), True
        return self.rows

    def own(self) -> None:
        """Have ``rows`` to write to."""
        if self.borrowed:
            self.rows = torch.empty(self.values.shape[0], dtype=torch.int64, device=self.values.device)
            self.borrowed = False

    @property
    def filled(self) -> Tensor:
        """The values there are."""
        return self.values[: self.num]

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

    @triton.jit(do_not_specialize=["num", "skip_from", "skip_to", "a_num", "b_num"])
    def _gather(  # type: ignore[no-untyped-def]
        table_ptr, rows_ptr, out_ptr, place_ptr, num, d, skip_from, skip_to,
        a_rows, a_values, a_place, a_num, b_rows, b_values, b_place, b_num,
        A: tl.constexpr, B: tl.constexpr, PLACE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        for first in range(tl.program_id(0) * ROWS, num, tl.num_programs(0) * ROWS):
            i = first + tl.arange(0, ROWS)
            inside = i < num
            r = tl.load(rows_ptr + i, mask=inside, other=0).to(tl.int64)
            far = inside & ((r < skip_from) | (r >= skip_to))
            if A:
                a, in_a = _find(a_rows, a_place, a_num, r, inside)
                far = far & ~in_a
            if B:
                b, in_b = _find(b_rows, b_place, b_num, r, far)
                far = far & ~in_b
            if PLACE:
                tl.store(place_ptr + r, i, mask=inside)
            for start in range(0, d, WIDTH):
                k = start + tl.arange(0, WIDTH)
                column = (k < d)[None, :]
                x = tl.load(table_ptr + r[:, None] * d + k[None, :], mask=far[:, None] & column, other=0.0)
                if A:
                    mine = in_a[:, None] & column
                    x = tl.where(mine, tl.load(a_values + a[:, None] * d + k[None, :], mask=mine, other=0.0), x)
                if B:
                    mine = in_b[:, None] & column
                    x = tl.where(mine, tl.load(b_values + b[:, None] * d + k[None, :], mask=mine, other=0.0), x)
                tl.store(out_ptr + i.to(tl.int64)[:, None] * d + k[None, :], x, mask=inside[:, None] & column)

    @triton.jit(do_not_specialize=["a_num", "num"])
    def _overlay(  # type: ignore[no-untyped-def]
        out_ptr, rows_ptr, a_rows, a_values, a_place, a_num, num, d, ROWS: tl.constexpr, WIDTH: tl.constexpr
    ):
        i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        r = tl.load(rows_ptr + i, mask=i < num, other=0).to(tl.int64)
        a, in_a = _find(a_rows, a_place, a_num, r, i < num)
        for start in range(0, d, WIDTH):
            k = start + tl.arange(0, WIDTH)
            mine = in_a[:, None] & (k < d)[None, :]
            x = tl.load(a_values + a[:, None] * d + k[None, :], mask=mine, other=0.0)
            tl.store(out_ptr + i.to(tl.int64)[:, None] * d + k[None, :], x, mask=mine)

    @triton.jit(do_not_specialize=["first", "offset", "num"])
    def _put(  # type: ignore[no-untyped-def]
        values_ptr, rows_ptr, a_rows, a_values, a_place, first, offset, num, d,
        RUN: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        inside = i < num
        at = offset + i.to(tl.int64)
        r = first + i.to(tl.int64) if RUN else tl.load(rows_ptr + i, mask=inside, other=0).to(tl.int64)
        tl.store(a_rows + at, r, mask=inside)
        tl.store(a_place + r, at.to(tl.int32), mask=inside)
        for start in range(0, d, WIDTH):
            k = start + tl.arange(0, WIDTH)
            mine = inside[:, None] & (k < d)[None, :]
            x = tl.load(values_ptr + i.to(tl.int64)[:, None] * d + k[None, :], mask=mine, other=0.0)
            tl.store(a_values + at[:, None] * d + k[None, :], x, mask=mine)

    @triton.jit(do_not_specialize=["a_num", "num"])
    def _scatter(  # type: ignore[no-untyped-def]
        values_ptr, rows_ptr, table_ptr, a_rows, a_place, a_num, num, d,
        BUT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        for first in range(tl.program_id(0) * ROWS, num, tl.num_programs(0) * ROWS):
            i = first + tl.arange(0, ROWS)
            inside = i < num
            r = tl.load(rows_ptr + i, mask=inside, other=0).to(tl.int64)
            if BUT:
                _, in_a = _find(a_rows, a_place, a_num, r, inside)
                inside = inside & ~in_a
            for start in range(0, d, WIDTH):
                k = start + tl.arange(0, WIDTH)
                mine = inside[:, None] & (k < d)[None, :]
                x = tl.load(values_ptr + i.to(tl.int64)[:, None] * d + k[None, :], mask=mine, other=0.0)
                tl.store(table_ptr + r[:, None] * d + k[None, :], x, mask=mine)


def gather(
    table: Tensor,
    rows: Tensor,
    out: Tensor,
    shelves: tuple[Shelf, ...] = (),
    place: Tensor | None = None,
    skip: slice | None = None,
) -> None:
    """out[i] <- row rows[i]: from the first of at most two shelves that has it, else from the table.

    Args:
        place: place[rows[i]] <- i.
        skip: rows of the table that need not be read: what they become is not defined.
    """
    shelves = tuple(shelf for shelf in shelves if shelf.num)
    if triton is None or not out.is_cuda:
        out.copy_(table.index_select(0, rows))
        if skip is not None:
            out[(rows >= skip.start) & (rows < skip.stop)] = torch.nan
        for shelf in reversed(shelves):
            overlay(out, rows, shelf)
        if place is not None:
            place[rows] = torch.arange(rows.numel(), dtype=place.dtype, device=place.device)
        return
    if not rows.numel():
        return
    first, last = (0, 0) if skip is None else (skip.start, skip.stop)
    # shelves that are not there are not read: any pointer will do
    absent: list[Any] = [rows, out, rows, 0]
    args: list[Any] = []
    for k in range(2):
        args += [shelves[k].rows, shelves[k].values, shelves[k].place, shelves[k].num] if k < len(shelves) else absent
    _gather[(GRID,)](
        table, rows, out, rows if place is None else place, rows.numel(), out.shape[1], first, last, *args,
        A=len(shelves) > 0, B=len(shelves) > 1, PLACE=place is not None, ROWS=ROWS, WIDTH=WIDTH, num_warps=8,
    )  # fmt: skip


def overlay(out: Tensor, rows: Tensor, shelf: Shelf) -> None:
    """out[i] <- row rows[i], where the shelf has it."""
    if not shelf.num or not rows.numel():
        return
    if triton is None or not out.is_cuda:
        at, here = shelf.find(rows)
        out[here] = shelf.values[at[here]]
        return
    grid = (triton.cdiv(rows.numel(), ROWS),)
    of = (shelf.rows, shelf.values, shelf.place, shelf.num)
    _overlay[grid](out, rows, *of, rows.numel(), out.shape[1], ROWS=ROWS, WIDTH=WIDTH, num_warps=8)


def put(shelf: Shelf, rows: Rows, values: Tensor) -> None:
    """Add rows to a shelf, which has room for them; of a row that comes twice, the last counts."""
    num, offset = values.shape[0], shelf.num
    shelf.num += num
    if triton is None or not values.is_cuda:
        index = index_of(rows, values.device)
        mine = slice(offset, offset + num)
        shelf.rows[mine], shelf.values[mine] = index, values
        shelf.place[index] = torch.arange(offset, offset + num, dtype=shelf.place.dtype, device=values.device)
        return
    if not num:
        return
    first, index = (rows.start, shelf.rows) if isinstance(rows, slice) else (0, rows.to(values.device))
    args = (values.contiguous(), index, shelf.rows, shelf.values, shelf.place, first, offset, num, values.shape[1])
    _put[(triton.cdiv(num, ROWS),)](*args, RUN=isinstance(rows, slice), ROWS=ROWS, WIDTH=WIDTH, num_warps=8)


def scatter(values: Tensor, rows: Rows, table: Tensor, but: Shelf | None = None) -> None:
    """table[rows] <- values, except for rows that stand on the shelf ``but``.

    A run of rows without exception is one copy, which takes no multiprocessor.
    """
    if but is not None and not but.num:
        but = None
    if isinstance(rows, slice) and but is None:
        table[rows].copy_(values, non_blocking=True)
        return
    index = index_of(rows, values.device)
    if triton is None or not values.is_cuda:
        keep = slice(None) if but is None else ~but.find(index)[1]
        table.index_copy_(0, index[keep], values[keep])
    elif index.numel():
        values, shelf = values.to(table.dtype).contiguous(), (index, index, 0) if but is None else _of(but)
        args = (values, index, table, *shelf, index.numel(), values.shape[1])
        _scatter[(GRID,)](*args, BUT=but is not None, ROWS=ROWS, WIDTH=WIDTH, num_warps=8)


def _of(shelf: Shelf) -> tuple[Tensor, Tensor, int]:
    return shelf.rows, shelf.place, shelf.num


def reaches(table: Tensor, device: torch.device) -> bool:
    """Whether the kernels can read a page-locked table."""
    out = torch.empty(1, table.shape[1], dtype=table.dtype, device=device)
    try:
        gather(table, torch.zeros(1, dtype=torch.int64, device=device), out)
    except (RuntimeError, ValueError):  # a driver, or a Triton, that does not take host memory
        return False
    return True


def index_of(rows: Rows, device: torch.device) -> Tensor:
    """Row numbers as a tensor on ``device``."""
    return torch.arange(rows.start, rows.stop, device=device) if isinstance(rows, slice) else rows.to(device)
