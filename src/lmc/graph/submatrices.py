"""Matrices that are cut out of a matrix, or that have its rows and columns in another order."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from lmc.graph.csr import CHUNK, CSR, empty_entries, pointer_dtype, pointers, row_entries, rows_in_chunks
from lmc.graph.equal_rows import for_equal_rows, spans
from lmc.graph.mapped import MappedFiles
from lmc.kernels import blocks
from lmc.kernels.availability import triton_available
from lmc.kernels.pinned import take


def induced(matrix: CSR, nodes: Tensor, local: Tensor) -> CSR:
    """The square matrix on ``nodes``; ``local`` are their numbers in it, and -1 for all other nodes."""
    return replace(selected(matrix, nodes, local, nodes.numel()), symmetric=matrix.symmetric)


def selected(matrix: CSR, rows: Tensor, local: Tensor, num_cols: int) -> CSR:
    """The block of ``rows`` and of the columns that have a number in ``local`` instead of -1, which is their number in
    the block. Entries are read in chunks, whose temporary values stay in the cache of a CPU."""
    if not rows.numel():
        return replace(matrix.select_rows(rows), num_cols=num_cols, symmetric=False)
    kept = []
    for _, piece in rows_in_chunks(matrix, rows):
        columns = local[piece.indices]
        kept.append(replace(piece, indices=columns.to(torch.int32)).filtered(columns >= 0))
    if len(kept) == 1:
        return replace(kept[0], num_cols=num_cols)
    indptr = pointers(torch.cat([piece.degrees() for piece in kept]), torch.int64)
    given = zip(*((piece.values, piece.edge_data) for piece in kept), strict=True)
    values, data = (None if each[0] is None else torch.cat(each) for each in given)
    indices = torch.cat([piece.indices for piece in kept])
    return CSR(indptr.to(pointer_dtype(indices.numel())), indices, values, num_cols, edge_data=data)


def permuted(matrix: CSR, order: Tensor, files: MappedFiles | None = None) -> CSR:
    """The square matrix with row and column ``order[i]`` as number ``i``; with ``files`` its entries lie there."""
    position = torch.empty(order.numel(), dtype=torch.int32, device=order.device)
    position[order] = torch.arange(order.numel(), dtype=torch.int32, device=order.device)
    indptr = pointers(matrix.degrees()[order], matrix.indptr.dtype)
    home = replace(matrix, files=files)
    indices = empty_entries(home, matrix.indices)
    values, data = (None if a is None else empty_entries(home, a) for a in (matrix.values, matrix.edge_data))
    moved = CSR(indptr, indices, values, matrix.num_cols, matrix.symmetric, edge_data=data, files=files)
    if matrix.device.type == "cpu" and matrix.files is None and files is None:
        _move_rows(matrix, moved, order, position)
    else:
        _move_chunks(matrix, moved, order, position)
    return moved


def _move_chunks(matrix: CSR, moved: CSR, order: Tensor, position: Tensor) -> None:
    """What :func:`_move_rows` does, for matrices on a device or in files: a chunk of entries at a time."""
    for rows, piece in rows_in_chunks(matrix, order):
        entries = slice(int(moved.indptr[rows.start]), int(moved.indptr[rows.stop]))
        moved.indices[entries] = position[piece.indices]
        for target, source in ((moved.values, piece.values), (moved.edge_data, piece.edge_data)):
            if target is not None and source is not None:
                target[entries] = source
        moved.release()


def _move_rows(matrix: CSR, moved: CSR, order: Tensor, position: Tensor) -> None:
    """Copy row ``order[i]`` of a matrix in memory to row ``i`` of ``moved``, with the columns at ``position``."""
    old, new, column = matrix.indptr[order].numpy(), moved.indptr.numpy(), position.numpy()
    given = [(matrix.values, moved.values), (matrix.edge_data, moved.edge_data)]

    def move(length: int, rows: np.ndarray) -> None:
        if length == 0:
            return
        columns = spans(matrix.indices, length)[old[rows]]
        spans(moved.indices, length)[new[rows]] = column.take(columns, mode="clip")  # "raise" checks every column first
        for source, target in given:
            if source is not None and target is not None:
                spans(target, length)[new[rows]] = spans(source, length)[old[rows]]

    for_equal_rows(moved.degrees(), move)


class Extractor:
    """Cuts blocks out of one matrix.

    It stores one int32 per node, the node's row in the current block, so that the cost of a block depends on the
    entries it reads and not on the size of the graph.
    """

    def __init__(self, P: CSR) -> None:
        self.P = P
        self._row = torch.full((P.num_rows,), -1, dtype=torch.int32, device=P.device)

    @cached_property
    def transposed(self) -> Extractor:
        """Cuts blocks out of the transpose."""
        return self if self.P.t() is self.P else Extractor(self.P.t())

    def halo(self, core: Tensor, both: bool = False) -> Tensor:
        """N(V_B) \\ V_B: the nodes that ``core`` reads and that are not in it, ascending; with ``both`` also those that
        read it."""
        mark = self._beside(core)
        return self._listed(mark.logical_or_(self.transposed._beside(core)) if both else mark)

    def _beside(self, core: Tensor) -> Tensor:
        """Whether a node is read by ``core`` and not in it, for every node."""
        mark = torch.zeros(self.P.num_rows, dtype=torch.bool, device=self.P.device)
        if triton_available(self.P.indices):
            blocks.mark(self.P.indptr, self.P.indices, core, mark)
        else:
            mark[take(self.P.indices, row_entries(self.P, core)[0])] = True
        self.P.release()
        return mark.index_fill_(0, core, False)

    def _listed(self, mark: Tensor) -> Tensor:
        return mark.nonzero().squeeze(1)

    def block(self, rows: Tensor, cols: Tensor) -> CSR:
        """P[rows, cols], with rows and columns in the given order."""
        if triton_available(self.P.indices) and self.P.edge_data is None and rows.numel() and cols.numel():
            return CSR(*blocks.cut(self.P.indptr, self.P.indices, self.P.data, rows, cols, self._row)[:3], cols.numel())
        total = int(self.P.degrees(rows).sum())
        self._row[cols] = torch.arange(cols.numel(), dtype=torch.int32, device=cols.device)
        if total > CHUNK and self.P.device.type == "cpu" and not self.P.on_host:
            block = selected(self.P, rows, self._row, cols.numel())
            self._row[cols] = -1
            return block
        entries, indptr = row_entries(self.P, rows, total)
        local = self._row[take(self.P.indices, entries)]
        self._row[cols] = -1
        data = None if self.P.edge_data is None else take(self.P.edge_data, entries)
        block = CSR(indptr, local, take(self.P.data, entries), cols.numel(), edge_data=data)
        self.P.release()
        inside = local >= 0
        at = inside.nonzero().squeeze(1)  # the host waits for the GPU here, and only here
        return block if at.numel() == local.numel() else block.filtered(inside, at)

    def induced(self, nodes: Tensor) -> CSR:
        """P[nodes, nodes], symmetric as P is."""
        block = self.block(nodes, nodes)
        return replace(block, symmetric=self.P.symmetric)
