"""Blocks of a CSR matrix, cut on a GPU in a few launches.

In plain torch (:class:`lmc.graph.Extractor`, which is the reference) a block takes some thirty small launches, and
batches that are redrawn are bound by the time they take to launch. Here a program reads the entries of one row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.kernels.availability import tl, triton

BLOCK = 32
"""Entries of a row that are read at a time."""
NODES = 1024
"""Nodes that a program numbers."""

if triton is not None:

    @triton.jit(do_not_specialize=["num"])
    def _number(row_ptr, nodes_ptr, num, CLEAR: tl.constexpr, NODES: tl.constexpr):  # type: ignore[no-untyped-def]
        i = tl.program_id(0) * NODES + tl.arange(0, NODES)
        node = tl.load(nodes_ptr + i, mask=i < num, other=0)
        tl.store(row_ptr + node, tl.where(i >= 0, -1, i) if CLEAR else i, mask=i < num)

    @triton.jit
    def _mark(indptr_ptr, indices_ptr, rows_ptr, mark_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.load(rows_ptr + tl.program_id(0))
        end = tl.load(indptr_ptr + row + 1)
        for start in range(tl.load(indptr_ptr + row), end, BLOCK):
            at = start + tl.arange(0, BLOCK)
            tl.store(mark_ptr + tl.load(indices_ptr + at, mask=at < end, other=0), 1, mask=at < end)

    @triton.jit
    def _count(  # type: ignore[no-untyped-def]
        indptr_ptr, indices_ptr, rows_ptr, row_ptr, counts_ptr, BLOCK: tl.constexpr
    ):
        row = tl.load(rows_ptr + tl.program_id(0))
        end, kept = tl.load(indptr_ptr + row + 1), 0
        for start in range(tl.load(indptr_ptr + row), end, BLOCK):
            at = start + tl.arange(0, BLOCK)
            column = tl.load(indices_ptr + at, mask=at < end, other=0)
            kept += tl.sum((tl.load(row_ptr + column, mask=at < end, other=-1) >= 0).to(tl.int32))
        tl.store(counts_ptr + tl.program_id(0), kept)

    @triton.jit
    def _keep(  # type: ignore[no-untyped-def]
        indptr_ptr, indices_ptr, values_ptr, rows_ptr, row_ptr, starts_ptr, out_indices_ptr, out_values_ptr,
        BLOCK: tl.constexpr,
    ):  # fmt: skip
        row, to = tl.load(rows_ptr + tl.program_id(0)), tl.load(starts_ptr + tl.program_id(0))
        end = tl.load(indptr_ptr + row + 1)
        for start in range(tl.load(indptr_ptr + row), end, BLOCK):
            at = start + tl.arange(0, BLOCK)
            column = tl.load(indices_ptr + at, mask=at < end, other=0)
            local = tl.load(row_ptr + column, mask=at < end, other=-1)
            inside = local >= 0
            rank = tl.cumsum(inside.to(tl.int32), 0)
            tl.store(out_indices_ptr + to + rank - 1, local, mask=inside)
            tl.store(out_values_ptr + to + rank - 1, tl.load(values_ptr + at, mask=inside, other=0.0), mask=inside)
            to += tl.sum(inside.to(tl.int32))


def mark(indptr: Tensor, indices: Tensor, rows: Tensor, marks: Tensor) -> None:
    """marks[column] = True for every entry of ``rows``."""
    if rows.numel():
        _mark[(rows.numel(),)](indptr, indices, rows, marks.view(torch.uint8), BLOCK=BLOCK, num_warps=1)


def cut(
    indptr: Tensor, indices: Tensor, values: Tensor, rows: Tensor, columns: Tensor, row: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Row pointers, columns and values of the block [rows, columns]; ``row`` is -1 for every node, and is used."""
    grid, nodes = (rows.numel(),), (triton.cdiv(columns.numel(), NODES),)
    _number[nodes](row, columns, columns.numel(), CLEAR=False, NODES=NODES)
    starts = torch.zeros(rows.numel() + 1, dtype=torch.int32, device=rows.device)
    _count[grid](indptr, indices, rows, row, starts[1:], BLOCK=BLOCK, num_warps=1)
    torch.cumsum(starts, 0, dtype=torch.int32, out=starts)
    total = int(starts[-1])  # the host waits for the GPU here, and only here
    found = indices.new_empty(total), values.new_empty(total)
    _keep[grid](indptr, indices, values, rows, row, starts, *found, BLOCK=BLOCK, num_warps=1)
    _number[nodes](row, columns, columns.numel(), CLEAR=True, NODES=NODES)
    return starts, *found
