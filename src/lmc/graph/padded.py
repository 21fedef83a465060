"""Blocks with room for more rows and entries than they have, so that all blocks of a kind have the same size.

The number n, which is that of no node, marks a row of padding: the matrix has an empty row n. The entries that a block
does not need are zeros in column 0, and belong to its rows of padding, over which they are spread evenly, since one
long row would be slow. No entry reads a row of padding.

On a GPU nothing here needs a number on the host, so that a sequence of cuts can be recorded as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from lmc.graph.csr import CSR, cached
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

    def of_halo(self) -> int:
        """The halo rows."""
        return self.halo

    def of(self, rows: int, columns: int) -> int:
        """The entries of a block of this many rows and columns."""
        # without a halo, all rows are core rows
        kinds = {self.core + self.halo: ("core", "halo"), self.halo: ("halo",), self.core: ("core",)}
        return sum(self.entries[a, b] for a in kinds[rows] for b in kinds[columns])


class Counted:
    """Exactly the room that a batch needs, as an earlier cut of the same batch has counted it: such a batch has no
    padding, and is cut without waiting for the GPU.

    Attributes:
        sizes: the number of halo rows, then the entries of every block, in the order in which they are asked for.
    """

    def __init__(self) -> None:
        self.sizes: Iterator[int] = iter(())

    def of_halo(self) -> int:
        return next(self.sizes)

    def of(self, rows: int, columns: int) -> int:
        return next(self.sizes)


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
        sizes: a list that receives, for everything that is cut, the number of its halo rows or entries and the limit.
    """

    def __init__(self, P: CSR, room: Room | Counted, sizes: list[tuple[Tensor, int]]) -> None:
        super().__init__(P)
        self._room, self.sizes = room, sizes

    @cached_property
    def transposed(self) -> PaddedExtractor:
        P = self.P.t()
        return self if P is self.P else PaddedExtractor(P, self._room, self.sizes)

    def _listed(self, mark: Tensor) -> Tensor:
        room = self._room.of_halo()
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
    made = replace(P, indptr=torch.cat([P.indptr, P.indptr[-1:]]))
    if P.t() is not P:
        made._cache["t",] = replace(P.t(), indptr=torch.cat([P.t().indptr, P.t().indptr[-1:]]))
    return made


def _pad(block: CSR, padding: Tensor, room: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What :func:`lmc.kernels.blocks.cut` gives, from a block without padding; ``padding`` are the rows of padding."""
    before = torch.cat([padding.new_zeros(1, dtype=torch.int64), padding.cumsum(0)])
    shift = before * max(room - block.nnz, 0) // before[-1].clamp(min=1)
    indptr = (block.indptr + shift).clamp(max=room)
    each = shift[:-1].repeat_interleave(block.degrees().long(), output_size=block.nnz)
    to = torch.arange(block.nnz, device=block.device) + each
    indices, values = block.indices.new_zeros(room), block.data.new_zeros(room)
    fits = to < room
    indices[to[fits]], values[to[fits]] = block.indices[fits], block.data[fits]
    return indptr.to(torch.int32), indices, values, torch.tensor(block.nnz)
