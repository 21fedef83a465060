"""Blocks with room for more rows and entries than they have, so that all blocks of a kind have the same size.

The number n, which is that of no node, marks a row of padding: the matrix has an empty row n. The entries that a block
does not need are zeros in column 0, and belong to its rows of padding, over which they are spread evenly, since one
long row would be slow. No entry reads a row of padding.

On a GPU nothing here needs a number on the host, so that a sequence of cuts can be recorded as a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from lmc.graph.csr import CSR, cached, pointers
from lmc.graph.submatrices import Extractor
from lmc.kernels import blocks
from lmc.kernels.availability import triton_available


@dataclass(frozen=True)
class Room:
    """The size of batches with padding.

    Args:
        core: core rows; every batch has fewer.
        halo: halo rows.
        entries: the entries of a block between "core" and "halo" rows, in both directions.
    """

    core: int
    halo: int
    entries: dict[tuple[str, str], int]

    def of(self, rows: int, columns: int) -> int:
        """The entries of a block of this many rows and columns."""
        # without a halo, all rows are core rows
        kinds = {self.core + self.halo: ("core", "halo"), self.halo: ("halo",), self.core: ("core",)}
        return sum(self.entries[a, b] for a in kinds[rows] for b in kinds[columns])


@dataclass(frozen=True, eq=False, kw_only=True)
class PaddedBlock(CSR):
    """A block of fixed size. What is made of its entries is cut anew, since their number is not known on the host."""

    source: PaddedExtractor
    rows: Tensor
    cols: Tensor

    @cached
    def t(self) -> CSR:
        return self if self.symmetric else self.source.transposed.block(self.cols, self.rows)

    @cached
    def leading(self, rows: int) -> CSR:
        return self if rows == self.num_rows else self.source.block(self.rows[:rows], self.cols)

    @cached
    def columns(self, split: int) -> tuple[CSR, CSR]:
        left, right = self.cols[:split], self.cols[split:]
        return self.source.block(self.rows, left), self.source.block(self.rows, right)


class PaddedExtractor(Extractor):
    """Cuts blocks of fixed size out of one matrix.

    Args:
        P: a matrix with an empty row n (:func:`with_empty_row`).
        sizes: to which the number of halo rows, or of entries, of everything that is cut is added, with its limit.
    """

    def __init__(self, P: CSR, room: Room, sizes: list[tuple[Tensor, int]]) -> None:
        super().__init__(P)
        self._room, self.sizes = room, sizes

    @cached_property
    def transposed(self) -> PaddedExtractor:
        P = self.P.t()
        return self if P is self.P else PaddedExtractor(P, self._room, self.sizes)

    def _listed(self, mark: Tensor) -> Tensor:
        room = self._room.halo
        if triton_available(mark):
            nodes, number = blocks.listed(mark, room)
        else:
            nodes, found = torch.full((room,), mark.numel() - 1), super()._listed(mark)
            nodes[: found.numel()], number = found[:room], torch.tensor(found.numel())
        self.sizes.append((number, room))
        return nodes

    def block(self, rows: Tensor, cols: Tensor) -> PaddedBlock:
        """P[rows, cols], with rows and columns in the given order."""
        P, room = self.P, self._room.of(rows.numel(), cols.numel())
        if triton_available(P.indices):
            indptr, indices, values, total = blocks.cut(P.indptr, P.indices, P.data, rows, cols, self._row, room)
        else:
            indptr, indices, values, total = _pad(super().block(rows, cols), rows == P.num_rows - 1, room)
        self.sizes.append((total, room))
        return PaddedBlock(indptr, indices, values, cols.numel(), source=self, rows=rows, cols=cols)


def with_empty_row(P: CSR) -> CSR:
    """The matrix, and its transpose, with an empty row for rows of padding."""
    made = replace(P, indptr=torch.cat([P.indptr, P.indptr[-1:]]), _cache={})
    if P.t() is not P:
        made._cache["t",] = replace(P.t(), indptr=torch.cat([P.t().indptr, P.t().indptr[-1:]]), _cache={})
    return made


def with_padding(block: CSR, num_core: int, padding: Tensor, room: Room) -> CSR:
    """A square block on the rows of a batch, filled up to the size of ``room``.

    Args:
        num_core: where the halo rows of the block begin; those of the result begin at ``room.core``.
        padding: which rows of the result are padding, [room.core + room.halo].
    """
    size, moved = padding.numel(), room.core - num_core
    counts = torch.zeros(size, dtype=torch.int64, device=block.device)
    counts[:num_core], degrees = block.degrees()[:num_core], block.degrees()[num_core:]
    counts[room.core : room.core + degrees.numel()] = degrees
    indices = torch.where(block.indices >= num_core, block.indices + moved, block.indices)
    spaced = CSR(pointers(counts), indices, block.data, size)
    indptr, indices, values, _ = _pad(spaced, padding, room.of(size, size))
    return CSR(indptr, indices, values, size, block.symmetric)


def _pad(block: CSR, padding: Tensor, room: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What :func:`lmc.kernels.blocks.cut` gives, from a block without padding; ``padding`` are the rows of padding."""
    before = torch.cat([padding.new_zeros(1, dtype=torch.int64), padding.cumsum(0)])
    shift = before * max(room - block.nnz, 0) // before[-1]
    indptr = (block.indptr + shift).clamp(max=room)
    each = shift[:-1].repeat_interleave(block.degrees().long(), output_size=block.nnz)
    to = torch.arange(block.nnz, device=block.device) + each
    indices, values = block.indices.new_zeros(room), block.data.new_zeros(room)
    fits = to < room
    indices[to[fits]], values[to[fits]] = block.indices[fits], block.data[fits]
    return indptr.to(torch.int32), indices, values, torch.tensor(block.nnz)
