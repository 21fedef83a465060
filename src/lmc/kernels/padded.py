"""Rows and entries written into buffers with room for more, at fixed addresses.

Every function is plain torch first, which is the reference; on a GPU one Triton kernel does the same, since batches
that are redrawn are bound by the time that launches take.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.kernels.availability import tl, triton, triton_available

BLOCK = 1024

if triton is not None:

    @triton.jit(do_not_specialize=["c", "h", "core", "ext", "n"])
    def _rows(  # type: ignore[no-untyped-def]
        core_ptr, halo_ptr, train_ptr, ext_ptr, node_ptr, labelled_ptr, c, h, core, ext, n, BLOCK: tl.constexpr
    ):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        in_core, in_halo = i < c, (i >= core) & (i < core + h)
        row = tl.load(core_ptr + i, mask=in_core, other=n)
        row = tl.where(in_halo, tl.load(halo_ptr + i - core, mask=in_halo, other=0), row)
        node = tl.minimum(row, n - 1)
        tl.store(ext_ptr + i, row, mask=i < ext)
        tl.store(node_ptr + i, node, mask=i < ext)
        labelled = tl.load(train_ptr + node, mask=(i < ext) & (row < n), other=0)
        tl.store(labelled_ptr + i, labelled, mask=i < ext)

    @triton.jit(do_not_specialize=["c", "core", "used", "size", "nnz", "room"])
    def _starts(starts_ptr, out_ptr, c, core, used, size, nnz, room, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        there = tl.where(i <= c, i, tl.maximum(c, c + i - core))
        start = tl.load(starts_ptr + there, mask=i < used, other=0)
        spread = nnz + ((i - used + 1).to(tl.int64) * (room - nnz) // (size - used)).to(tl.int32)
        tl.store(out_ptr + i, tl.where(i < used, start, spread), mask=i < size)

    @triton.jit(do_not_specialize=["c", "shift", "nnz", "room"])
    def _entries(  # type: ignore[no-untyped-def]
        indices_ptr, values_ptr, out_indices_ptr, out_values_ptr, c, shift, nnz, room, BLOCK: tl.constexpr
    ):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        column = tl.load(indices_ptr + i, mask=i < nnz, other=0)
        tl.store(out_indices_ptr + i, tl.where(column >= c, column + shift, column), mask=i < room)
        tl.store(out_values_ptr + i, tl.load(values_ptr + i, mask=i < nnz, other=0.0), mask=i < room)


def pad_rows(core: Tensor, halo: Tensor, train: Tensor, room: int, ext: Tensor, labelled: Tensor) -> Tensor:
    """ext <- core in its first ``room`` rows, then halo, and the number n of no node elsewhere; labelled <- train[ext].

    Returns the rows with a node in the place of padding, for reading.
    """
    n, c, h = train.numel(), core.numel(), halo.numel()
    if triton_available(core):
        node = torch.empty_like(ext)
        flags = train.view(torch.uint8), ext, node, labelled.view(torch.uint8)
        _rows[_grid(ext)](core, halo, *flags, c, h, room, ext.numel(), n, BLOCK=BLOCK)
        return node
    ext.fill_(n)
    ext[:c], ext[room : room + h] = core, halo
    node = ext.clamp(max=n - 1)
    torch.logical_and(train[node], ext < n, out=labelled)
    return node


def pad_starts(starts: Tensor, out: Tensor, c: int, core: int, used: int, nnz: int, room: int) -> None:
    """Row pointers of a matrix whose rows from c on come ``core - c`` rows later.

    The ``room - nnz`` entries of padding belong to the rows from ``used - 1`` on, which are padding. They are spread
    evenly, since one long row would be slow.
    """
    if triton_available(starts):
        _starts[_grid(out)](starts, out, c, core, used, out.numel(), nnz, room, BLOCK=BLOCK)
        return
    i = torch.arange(used, device=out.device)
    out[:used] = starts[torch.where(i <= c, i, (c + i - core).clamp(min=c))]
    left = out.numel() - used
    out[used:] = nnz + torch.arange(1, left + 1, device=out.device) * (room - nnz) // left


def pad_entries(indices: Tensor, values: Tensor, out: tuple[Tensor, Tensor], c: int, shift: int) -> None:
    """Columns, those from c on moved by ``shift``, and values; entries of padding are zeros in column 0."""
    nnz = indices.numel()
    if triton_available(indices):
        _entries[_grid(out[0])](indices, values, *out, c, shift, nnz, out[0].numel(), BLOCK=BLOCK)
        return
    out[0][nnz:], out[1][nnz:] = 0, 0
    out[0][:nnz], out[1][:nnz] = indices + (indices >= c) * shift, values


def _grid(out: Tensor) -> tuple[int]:
    return (triton.cdiv(out.numel(), BLOCK),)
