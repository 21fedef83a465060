"""Kernels that move rows between a page-locked host table and caches on the GPU.

The GPU reads and writes the host table itself, row by row over the bus: the host neither waits nor has to know the row
numbers. Every function is plain torch first, which is the reference and runs on a CPU; on a GPU one Triton kernel does
the same for all members of a :class:`Packed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmc.kernels.availability import tl, triton, triton_available
from lmc.kernels.packed import Packed, Rows, as_indices

READERS = 48
"""Programs that read host memory: enough to fill the bus, few enough to leave the multiprocessors to the step that runs
at the same time."""
WRITERS = 12
"""Programs that write host memory: requests to read wait on the bus behind what more of them would write."""
MOST_CACHES = 4
"""Caches in which a gather looks for a row at most."""
MOST_LEFT_OUT = 2
"""Caches whose rows a scatter leaves out at most."""
ROWS = 32
"""Rows that such a program processes at a time."""
DEVICE_ROWS = 8
"""Rows per program for a kernel that stays on the device: many small programs hide the latency of each."""
WIDTH = 256
"""Numbers of a row that a program processes at a time."""


@dataclass(eq=False)
class RowCache:
    """Some rows of a table in device memory, with an index.

    For i < ``num``, row i of ``values`` is row ``rows[i]`` of the table. ``slots`` has an entry for every row of the
    table and is never cleared: row r is in the cache if ``slots[r] < num`` and ``rows[slots[r]] == r``.
    """

    rows: Tensor
    values: Packed
    slots: Tensor
    num: int = 0
    shares_rows: bool = False
    """Whether ``rows`` belongs to the caller and must not be written to."""

    def share_rows(self, rows: Tensor) -> Tensor:
        """Use the caller's tensor as ``rows``, without a copy."""
        self.rows, self.shares_rows = rows.to(self.slots.device), True
        return self.rows

    def own_rows(self) -> None:
        """Make ``rows`` a tensor that may be written to."""
        if self.shares_rows:
            self.rows = torch.empty(self.capacity, dtype=torch.int64, device=self.slots.device)
            self.shares_rows = False

    @property
    def capacity(self) -> int:
        return self.values.capacity

    @property
    def filled(self) -> Packed:
        """The values of the ``num`` rows in the cache."""
        return self.values.rows(0, self.num)

    def find(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The slots of ``rows``, and whether each row is in the cache."""
        slots = self.slots[rows].clamp(max=self.num - 1)
        return slots, self.rows[slots] == rows

    def newest(self) -> Tensor:
        """For every row of the cache whether it holds the last values that were added."""
        return self.slots[self.rows[: self.num]] == torch.arange(self.num, device=self.slots.device)


def absent(rows: Tensor, caches: tuple[RowCache, ...]) -> Tensor:
    """For every row whether it is in none of the caches."""
    found = torch.zeros_like(rows, dtype=torch.bool)
    for cache in caches:
        if cache.num:
            found |= cache.find(rows)[1]
    return ~found


if triton is not None:
    # Sizes that differ from batch to batch are not compiled in (do_not_specialize).

    @triton.jit
    def _find(rows_ptr, slots_ptr, num, r, inside):  # type: ignore[no-untyped-def]
        slot = tl.load(slots_ptr + r, mask=inside, other=0).to(tl.int64)
        inside = inside & (slot < num)
        return slot, inside & (tl.load(rows_ptr + slot, mask=inside, other=-1) == r)

    @triton.jit
    def _at(capacity, i, offset, d, k):  # type: ignore[no-untyped-def]
        # A member begins capacity * offset numbers behind the first one.
        return capacity.to(tl.int64) * offset + i.to(tl.int64)[:, None] * d + k[None, :]

    @triton.jit
    def _copy(  # type: ignore[no-untyped-def]
        from_ptr, from_capacity, i, to_ptr, to_capacity, j, chosen, offsets_ptr, members,
        ALIGN: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        for member in range(0, members):
            c = tl.multiple_of(tl.load(offsets_ptr + member), ALIGN)
            d = tl.multiple_of(tl.load(offsets_ptr + member + 1) - c, ALIGN)
            for begin in range(0, d, WIDTH):
                k = begin + tl.arange(0, WIDTH)
                mine = chosen[:, None] & (k < d)[None, :]
                x = tl.load(from_ptr + _at(from_capacity, i, c, d, k), mask=mine, other=0.0)
                tl.store(to_ptr + _at(to_capacity, j, c, d, k), x, mask=mine)

    @triton.jit
    def _find_next(rows_ptr, slots_ptr, num, r, missing, USED: tl.constexpr):  # type: ignore[no-untyped-def]
        # The slots of rows that no cache before had, whether they are in this one, and which are still missing.
        slot, found = r, missing & (r < 0)
        if USED:
            slot, found = _find(rows_ptr, slots_ptr, num, r, missing)
        return slot, found, missing & ~found

    @triton.jit
    def _load_found(  # type: ignore[no-untyped-def]
        x, values_ptr, capacity, slot, found, offset, d, k, USED: tl.constexpr
    ):  # fmt: skip
        if USED:
            mine = found[:, None] & (k < d)[None, :]
            x = tl.where(mine, tl.load(values_ptr + _at(capacity, slot, offset, d, k), mask=mine, other=0.0), x)
        return x

    @triton.jit(
        do_not_specialize=[
            "table_capacity", "num", "skip_from", "skip_to", "capacity", "start", "a_num", "a_capacity", "b_num",
            "b_capacity", "c_num", "c_capacity", "d_num", "d_capacity",
        ]
    )  # fmt: skip
    def _gather(  # type: ignore[no-untyped-def]
        table_ptr, table_capacity, rows_ptr, out_ptr, capacity, start, slots_ptr, num, skip_from, skip_to,
        a_rows, a_values, a_slots, a_num, a_capacity, b_rows, b_values, b_slots, b_num, b_capacity,
        c_rows, c_values, c_slots, c_num, c_capacity, d_rows, d_values, d_slots, d_num, d_capacity,
        offsets_ptr, members, CACHES: tl.constexpr, SLOTS: tl.constexpr,
        ALIGN: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        for first in range(tl.program_id(0) * ROWS, num, tl.num_programs(0) * ROWS):
            i = first + tl.arange(0, ROWS)
            inside = i < num
            r = tl.load(rows_ptr + i, mask=inside, other=0).to(tl.int64)
            a, in_a, missing = _find_next(a_rows, a_slots, a_num, r, inside, CACHES > 0)
            b, in_b, missing = _find_next(b_rows, b_slots, b_num, r, missing, CACHES > 1)
            c, in_c, missing = _find_next(c_rows, c_slots, c_num, r, missing, CACHES > 2)
            d, in_d, missing = _find_next(d_rows, d_slots, d_num, r, missing, CACHES > 3)
            missing = missing & ((r < skip_from) | (r >= skip_to))
            if SLOTS:
                tl.store(slots_ptr + r, i, mask=inside)
            for member in range(0, members):
                o = tl.multiple_of(tl.load(offsets_ptr + member), ALIGN)
                width = tl.multiple_of(tl.load(offsets_ptr + member + 1) - o, ALIGN)
                for begin in range(0, width, WIDTH):
                    k = begin + tl.arange(0, WIDTH)
                    column = (k < width)[None, :]
                    at = _at(table_capacity, r, o, width, k)
                    x = tl.load(table_ptr + at, mask=missing[:, None] & column, other=0.0)
                    x = _load_found(x, a_values, a_capacity, a, in_a, o, width, k, CACHES > 0)
                    x = _load_found(x, b_values, b_capacity, b, in_b, o, width, k, CACHES > 1)
                    x = _load_found(x, c_values, c_capacity, c, in_c, o, width, k, CACHES > 2)
                    x = _load_found(x, d_values, d_capacity, d, in_d, o, width, k, CACHES > 3)
                    tl.store(out_ptr + _at(capacity, start + i, o, width, k), x, mask=inside[:, None] & column)

    @triton.jit(do_not_specialize=["capacity", "start", "a_num", "a_capacity", "num"])
    def _overlay(  # type: ignore[no-untyped-def]
        out_ptr, capacity, start, rows_ptr, a_rows, a_values, a_slots, a_num, a_capacity, num,
        offsets_ptr, members, ALIGN: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        r = tl.load(rows_ptr + i, mask=i < num, other=0).to(tl.int64)
        a, in_a = _find(a_rows, a_slots, a_num, r, i < num)
        _copy(a_values, a_capacity, a, out_ptr, capacity, start + i, in_a, offsets_ptr, members, ALIGN, WIDTH)

    @triton.jit(do_not_specialize=["capacity", "start", "a_capacity", "first", "offset", "num"])
    def _append(  # type: ignore[no-untyped-def]
        values_ptr, capacity, start, rows_ptr, a_rows, a_values, a_slots, a_capacity, first, offset, num,
        offsets_ptr, members, RANGE: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        inside = i < num
        slot = offset + i.to(tl.int64)
        r = first + i.to(tl.int64) if RANGE else tl.load(rows_ptr + i, mask=inside, other=0).to(tl.int64)
        tl.store(a_rows + slot, r, mask=inside)
        tl.store(a_slots + r, slot.to(tl.int32), mask=inside)
        _copy(values_ptr, capacity, start + i, a_values, a_capacity, slot, inside, offsets_ptr, members, ALIGN, WIDTH)

    @triton.jit(do_not_specialize=["capacity", "start", "table_capacity", "a_num", "b_num", "num"])
    def _scatter(  # type: ignore[no-untyped-def]
        values_ptr, capacity, start, rows_ptr, table_ptr, table_capacity, a_rows, a_slots, a_num,
        b_rows, b_slots, b_num, num, offsets_ptr, members,
        CACHES: tl.constexpr, ALIGN: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        for first in range(tl.program_id(0) * ROWS, num, tl.num_programs(0) * ROWS):
            i = first + tl.arange(0, ROWS)
            inside = i < num
            r = tl.load(rows_ptr + i, mask=inside, other=0).to(tl.int64)
            _, _, written = _find_next(a_rows, a_slots, a_num, r, inside, CACHES > 0)
            _, _, written = _find_next(b_rows, b_slots, b_num, r, written, CACHES > 1)
            _copy(
                values_ptr, capacity, start + i, table_ptr, table_capacity, r, written,
                offsets_ptr, members, ALIGN, WIDTH,
            )  # fmt: skip

    @triton.jit(do_not_specialize=["capacity", "start", "out_capacity", "num"])
    def _pack(  # type: ignore[no-untyped-def]
        values_ptr, capacity, start, rows_ptr, chosen_ptr, position_ptr, out_ptr, out_capacity, numbers_ptr, num,
        offsets_ptr, members, ALIGN: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        for first in range(tl.program_id(0) * ROWS, num, tl.num_programs(0) * ROWS):
            i = first + tl.arange(0, ROWS)
            inside = i < num
            chosen = tl.load(chosen_ptr + i, mask=inside, other=0) != 0
            to = tl.load(position_ptr + i, mask=inside, other=0) - 1
            tl.store(numbers_ptr + to, tl.load(rows_ptr + i, mask=chosen, other=0).to(tl.int64), mask=chosen)
            _copy(
                values_ptr, capacity, start + i, out_ptr, out_capacity, to, chosen, offsets_ptr, members, ALIGN, WIDTH
            )


def gather(
    table: Packed,
    rows: Tensor,
    out: Packed,
    caches: tuple[RowCache, ...] = (),
    slots: Tensor | None = None,
    skip: slice | None = None,
) -> None:
    """Row i of out <- row rows[i]: from the first of at most MOST_CACHES that has it, else from the table.

    Args:
        slots: set so that slots[rows[i]] = i.
        skip: rows that are not read from the table; their values in ``out`` are undefined unless a cache has them.
    """
    caches = tuple(cache for cache in caches if cache.num)
    if not triton_available(out.flat):
        _plain_gather(table, rows, out, caches, slots, skip)
        return
    if not rows.numel():
        return
    first, last = (0, 0) if skip is None else (skip.start, skip.stop)
    unread: list[Any] = [rows, out.flat, rows, 0, 0]
    args = [arg for k in range(MOST_CACHES) for arg in (_cache_args(caches[k]) if k < len(caches) else unread)]
    _gather[(READERS,)](
        table.flat, table.capacity, rows, *_packed_args(out), rows if slots is None else slots, rows.numel(),
        first, last, *args, out.offsets, len(out),
        CACHES=len(caches), SLOTS=slots is not None, **_sizes(out),
    )  # fmt: skip


def _plain_gather(
    table: Packed, rows: Tensor, out: Packed, caches: tuple[RowCache, ...], slots: Tensor | None, skip: slice | None
) -> None:
    for mine, others in zip(out, table, strict=True):
        torch.index_select(others, 0, rows, out=mine)
        if skip is not None:
            mine[(rows >= skip.start) & (rows < skip.stop)] = torch.nan
    for cache in reversed(caches):
        overlay(out, rows, cache)
    if slots is not None:
        slots[rows] = torch.arange(rows.numel(), dtype=slots.dtype, device=slots.device)


def overlay(out: Packed, rows: Tensor, cache: RowCache) -> None:
    """Row i of out <- row rows[i], where the cache has it."""
    if not cache.num or not rows.numel():
        return
    if not triton_available(out.flat):
        slots, found = cache.find(rows)
        for mine, others in zip(out, cache.values, strict=True):
            mine[found] = others[slots[found]]
        return
    args = (*_packed_args(out), rows, *_cache_args(cache), rows.numel(), out.offsets, len(out))
    _overlay[(triton.cdiv(rows.numel(), DEVICE_ROWS),)](*args, **_sizes(out, DEVICE_ROWS))


def append(cache: RowCache, rows: Rows, values: Packed) -> None:
    """Add rows to a cache that has capacity for them; of a row that is added twice, the last values count."""
    num, offset = values.num, cache.num
    cache.num += num
    if not triton_available(values.flat):
        index = as_indices(rows, cache.slots.device)
        cache.rows[offset : offset + num] = index
        cache.values.rows(offset, num).copy_(values)
        cache.slots[index] = torch.arange(offset, offset + num, dtype=cache.slots.dtype, device=index.device)
        return
    if not num:
        return
    first, index = (rows.start, cache.rows) if isinstance(rows, slice) else (0, rows.to(cache.slots.device))
    to = (cache.rows, cache.values.flat, cache.slots, cache.capacity)
    args = (*_packed_args(values), index, *to, first, offset, num, values.offsets, len(values))
    _append[(triton.cdiv(num, DEVICE_ROWS),)](*args, RANGE=isinstance(rows, slice), **_sizes(values, DEVICE_ROWS))


def scatter(values: Packed, rows: Rows, table: Packed, left_out: tuple[RowCache, ...] = ()) -> None:
    """The table's rows <- values, except for rows that are in one of at most MOST_LEFT_OUT caches.

    A contiguous range without exceptions is one copy per member, which occupies no multiprocessor.
    """
    left_out = tuple(cache for cache in left_out if cache.num)
    if isinstance(rows, slice) and not left_out:
        table.rows(rows.start, values.num).copy_(values)
        return
    index = as_indices(rows, values.flat.device)
    if not triton_available(values.flat):
        written = absent(index, left_out)
        for mine, others in zip(table, values, strict=True):
            mine.index_copy_(0, index[written], others[written])
    elif index.numel():
        unread = [index, index, 0]
        caches = [[cache.rows, cache.slots, cache.num] for cache in left_out]
        caches += [unread] * (MOST_LEFT_OUT - len(caches))
        to = (index, table.flat, table.capacity)
        args = (*_packed_args(values), *to, *caches[0], *caches[1], index.numel(), values.offsets, len(values))
        _scatter[(WRITERS,)](*args, CACHES=len(left_out), **_sizes(values))


def pack(values: Packed, rows: Tensor, chosen: Tensor, out: Packed, numbers: Tensor, by_kernel: bool) -> None:
    """The chosen rows, one after the other, into page-locked host memory, without a number on the host.

    Args:
        rows: the numbers of the rows of ``values``, at least one.
        chosen: whether a row is written.
        numbers: one entry more than there are rows. It receives the numbers of the rows that are written, and in its
            last entry how many they are.
        by_kernel: whether a kernel writes; otherwise the host waits for the number of rows.
    """
    if not by_kernel:
        at = chosen.nonzero().squeeze(1)
        for mine, others in zip(out.rows(0, at.numel()), values, strict=True):
            mine.copy_(others[at])
        numbers[: at.numel()], numbers[-1] = rows[at], at.numel()
        return
    position = chosen.cumsum(0, dtype=torch.int32)
    to = (chosen.view(torch.uint8), position, out.flat, out.capacity, numbers)
    args = (*_packed_args(values), rows, *to, rows.numel(), values.offsets, len(values))
    _pack[(WRITERS,)](*args, **_sizes(values))
    numbers[-1:].copy_(position[-1:], non_blocking=True)


def kernels_read(table: Packed, device: torch.device) -> bool:
    """Whether the kernels can read a page-locked table."""
    try:
        gather(table, torch.zeros(1, dtype=torch.int64, device=device), table.empty(1, device))
    except (RuntimeError, ValueError):  # a driver, or a Triton, that does not accept host memory
        return False
    return True


def _packed_args(packed: Packed) -> tuple[Tensor, int, int]:
    return packed.flat, packed.capacity, packed.start


def _cache_args(cache: RowCache) -> list[Any]:
    return [cache.rows, cache.values.flat, cache.slots, cache.num, cache.capacity]


def _sizes(packed: Packed, rows: int = ROWS) -> dict[str, int]:
    return {"ALIGN": packed.align, "ROWS": rows, "WIDTH": WIDTH, "num_warps": rows // 4}
