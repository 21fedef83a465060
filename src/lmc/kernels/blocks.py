"""Blocks of a CSR matrix, cut on a GPU in a few launches.

In plain torch (:class:`lmc.graph.Extractor`, which is the reference) a block takes some thirty small launches, and
batches that are redrawn are bound by the time they take to launch. Here a program reads the entries of one row.

A block with ``room`` for more entries than it has (:mod:`lmc.graph.padded`) is cut without a number on the host, so
that the cut can be recorded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.kernels.availability import tl, triton

BLOCK = 64
"""Entries of a row that are read at a time."""
LONG = 1024
"""The same for rows with more entries than this. One warp reads a row, so that the longest row decides how long a cut
takes; with few entries at a time it would wait for memory a hundred times."""
NODES = 1024
"""Nodes that a program numbers."""

if triton is not None:

    @triton.jit(do_not_specialize=["num"])
    def _number(row_ptr, nodes_ptr, num, CLEAR: tl.constexpr, NODES: tl.constexpr):  # type: ignore[no-untyped-def]
        i = tl.program_id(0) * NODES + tl.arange(0, NODES)
        node = tl.load(nodes_ptr + i, mask=i < num, other=0)
        tl.store(row_ptr + node, tl.where(i >= 0, -1, i) if CLEAR else i, mask=i < num)

    @triton.jit
    def _mark_some(indices_ptr, mark_ptr, start, end, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = start + tl.arange(0, BLOCK)
        tl.store(mark_ptr + tl.load(indices_ptr + at, mask=at < end, other=0), 1, mask=at < end)

    @triton.jit
    def _mark(  # type: ignore[no-untyped-def]
        indptr_ptr, indices_ptr, rows_ptr, mark_ptr, BLOCK: tl.constexpr, LONG: tl.constexpr
    ):
        row = tl.load(rows_ptr + tl.program_id(0))
        first, end = tl.load(indptr_ptr + row), tl.load(indptr_ptr + row + 1)
        if end - first > LONG:
            for start in range(first, end, LONG):
                _mark_some(indices_ptr, mark_ptr, start, end, LONG)
        else:
            for start in range(first, end, BLOCK):
                _mark_some(indices_ptr, mark_ptr, start, end, BLOCK)

    @triton.jit(do_not_specialize=["num", "room"])
    def _list(mark_ptr, position_ptr, nodes_ptr, num, room, NODES: tl.constexpr):  # type: ignore[no-untyped-def]
        i = tl.program_id(0) * NODES + tl.arange(0, NODES)
        to = tl.load(position_ptr + i, mask=i < num, other=0) - 1
        marked = tl.load(mark_ptr + i, mask=i < num, other=0) != 0
        tl.store(nodes_ptr + to, i.to(tl.int64), mask=marked & (to < room))

    @triton.jit
    def _local(indices_ptr, row_ptr, at, end):  # type: ignore[no-untyped-def]
        column = tl.load(indices_ptr + at, mask=at < end, other=0)
        return tl.load(row_ptr + column, mask=at < end, other=-1)  # -1: not in the block

    @triton.jit(do_not_specialize=["n"])
    def _count(  # type: ignore[no-untyped-def]
        indptr_ptr, indices_ptr, rows_ptr, row_ptr, counts_ptr, n, BLOCK: tl.constexpr, LONG: tl.constexpr
    ):
        row, kept = tl.load(rows_ptr + tl.program_id(0)), tl.zeros((), tl.int32)
        first, end = tl.load(indptr_ptr + row), tl.load(indptr_ptr + row + 1)
        if end - first > LONG:
            for start in range(first, end, LONG):
                local = _local(indices_ptr, row_ptr, start + tl.arange(0, LONG), end)
                kept += tl.sum((local >= 0).to(tl.int32))
        else:
            for start in range(first, end, BLOCK):
                local = _local(indices_ptr, row_ptr, start + tl.arange(0, BLOCK), end)
                kept += tl.sum((local >= 0).to(tl.int32))
        # rows of padding are counted in the upper half
        tl.store(counts_ptr + tl.program_id(0), kept.to(tl.int64) + ((row == n).to(tl.int64) << 32))

    @triton.jit(do_not_specialize=["num", "room"])
    def _starts(counted_ptr, starts_ptr, num, room, NODES: tl.constexpr):  # type: ignore[no-untyped-def]
        i = tl.program_id(0) * NODES + tl.arange(0, NODES)
        counted, last = tl.load(counted_ptr + i, mask=i < num, other=0), tl.load(counted_ptr + num - 1)
        free, rows = tl.maximum(room - (last & 0xFFFFFFFF), 0), tl.maximum(last >> 32, 1)
        start = (counted & 0xFFFFFFFF) + (counted >> 32) * free // rows
        tl.store(starts_ptr + i, tl.minimum(start, room).to(tl.int32), mask=i < num)

    @triton.jit
    def _keep_some(  # type: ignore[no-untyped-def]
        indices_ptr, values_ptr, row_ptr, out_indices_ptr, out_values_ptr, start, end, to, room, BLOCK: tl.constexpr
    ):
        at = start + tl.arange(0, BLOCK)
        local = _local(indices_ptr, row_ptr, at, end)
        rank = tl.cumsum((local >= 0).to(tl.int32), 0)
        inside = (local >= 0) & (to + rank <= room)
        tl.store(out_indices_ptr + to + rank - 1, local, mask=inside)
        tl.store(out_values_ptr + to + rank - 1, tl.load(values_ptr + at, mask=inside, other=0.0), mask=inside)
        return to + tl.sum((local >= 0).to(tl.int32))

    @triton.jit(do_not_specialize=["room"])
    def _keep(  # type: ignore[no-untyped-def]
        indptr_ptr, indices_ptr, values_ptr, rows_ptr, row_ptr, starts_ptr, out_indices_ptr, out_values_ptr, room,
        BLOCK: tl.constexpr, LONG: tl.constexpr,
    ):  # fmt: skip
        row, to = tl.load(rows_ptr + tl.program_id(0)), tl.load(starts_ptr + tl.program_id(0))
        first, end = tl.load(indptr_ptr + row), tl.load(indptr_ptr + row + 1)
        if end - first > LONG:
            for start in range(first, end, LONG):
                to = _keep_some(
                    indices_ptr, values_ptr, row_ptr, out_indices_ptr, out_values_ptr, start, end, to, room, LONG
                )
        else:
            for start in range(first, end, BLOCK):
                to = _keep_some(
                    indices_ptr, values_ptr, row_ptr, out_indices_ptr, out_values_ptr, start, end, to, room, BLOCK
                )


def mark(indptr: Tensor, indices: Tensor, rows: Tensor, marks: Tensor) -> None:
    """marks[column] = True for every entry of ``rows``."""
    if rows.numel():
        _mark[(rows.numel(),)](indptr, indices, rows, marks.view(torch.uint8), BLOCK=BLOCK, LONG=LONG, num_warps=1)


def listed(marks: Tensor, room: int) -> tuple[Tensor, Tensor]:
    """The nodes that are marked, ascending, in a list of ``room`` that is filled up with the number of the last node,
    which is no node; and how many they are."""
    position, n = marks.cumsum(0, dtype=torch.int32), marks.numel()
    nodes = torch.full((room,), n - 1, dtype=torch.int64, device=marks.device)
    _list[(triton.cdiv(n, NODES),)](marks.view(torch.uint8), position, nodes, n, room, NODES=NODES)
    return nodes, position[-1]


def cut(
    indptr: Tensor, indices: Tensor, values: Tensor, rows: Tensor, columns: Tensor, row: Tensor, room: int | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Row pointers, columns and values of the block [rows, columns], and the number of its entries.

    Args:
        row: scratch memory with one number per node, -1 before and after the call.
        room: the entries that there is room for. Those that are not needed are zeros, which belong to the rows of
            padding, whose number is that of the last node; None: no more than are needed.
    """
    num, n = rows.numel(), row.numel() - 1 if room is not None else -1
    nodes = (triton.cdiv(columns.numel(), NODES),)
    _number[nodes](row, columns, columns.numel(), CLEAR=False, NODES=NODES)
    counted = torch.zeros(num + 1, dtype=torch.int64, device=rows.device)
    _count[(num,)](indptr, indices, rows, row, counted[1:], n, BLOCK=BLOCK, LONG=LONG, num_warps=1)
    torch.cumsum(counted, 0, out=counted)
    total = counted[-1] & 0xFFFFFFFF
    if room is None:
        room = int(total)  # the host waits for the GPU here, and only here
    starts = torch.empty(num + 1, dtype=torch.int32, device=rows.device)
    _starts[(triton.cdiv(num + 1, NODES),)](counted, starts, num + 1, room, NODES=NODES)
    found = indices.new_zeros(room), values.new_zeros(room)
    _keep[(num,)](indptr, indices, values, rows, row, starts, *found, room, BLOCK=BLOCK, LONG=LONG, num_warps=1)
    _number[nodes](row, columns, columns.numel(), CLEAR=True, NODES=NODES)
    return starts, *found, total
