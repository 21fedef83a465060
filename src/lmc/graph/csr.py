"""Compressed sparse rows: the one sparse format of the library. Blocks of it are in :mod:`lmc.graph.submatrices`.

Columns are int32. So are row pointers, except those of matrices with 2^31 entries or more. Blocks that are cut out of
such a matrix have int32 pointers again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from lmc.errors import GraphError
from lmc.graph.mapped import MappedFiles
from lmc.kernels.pinned import allocate_pages, pin

Made = TypeVar("Made", bound=Callable[..., Any])

CHUNK = 2**20
"""Entries that are read at a time where a whole matrix is made, which bounds the memory of int64 and float64
temporaries."""
INT32_ENTRIES = 2**31
"""Matrices with fewer entries have int32 row pointers, which cuSPARSE and MKL read; larger ones have int64."""


def pointer_dtype(entries: int) -> torch.dtype:
    """The dtype of the row pointers of a matrix with this many entries."""
    return torch.int32 if entries < INT32_ENTRIES else torch.int64


def cached(function: Made) -> Made:
    """Keep the results of a function of a matrix in the cache of the matrix, by the other arguments.

    A matrix is not kept in itself: the reference cycle would delay the release of its memory.
    """

    @wraps(function)
    def kept(matrix: CSR, *args: object) -> object:
        key = (function.__name__, *args)
        if key not in matrix._cache:
            made = function(matrix, *args)
            if made is matrix:
                return made
            matrix._cache[key] = made
        return matrix._cache[key]

    return cast(Made, kept)


@dataclass(frozen=True, eq=False)
class CSR:
    """A sparse matrix by rows; row ``i`` has the columns ``indices[indptr[i]:indptr[i + 1]]``.

    Args:
        indptr: row pointers [num_rows + 1] of the dtype :func:`pointer_dtype`.
        indices: columns, int32 [nnz].
        values: [nnz]; None for a bare pattern.
        symmetric: whether the matrix equals its transpose, so that backward products use the same arrays. The caller
            guarantees it; it is not checked.
        on_host: whether the entries stay in host memory while the row pointers are on a device. Blocks can be cut out
            of such a matrix on that device, and nothing else can be done with it (:func:`offload`).
        edge_data: constants of every stored entry, [nnz] or [nnz, k], that are cut out along with it: the weights and
            features that the graph's edges were given with. Products do not read them, and a transpose has none.
        files: where the entries lie in memory-mapped files; entries of matrices that are made of this one, and are as
            large, lie there too. None: in memory.
    """

    indptr: Tensor
    indices: Tensor
    values: Tensor | None
    num_cols: int
    symmetric: bool = False
    on_host: bool = False
    edge_data: Tensor | None = None
    files: MappedFiles | None = None
    _cache: dict[object, object] = field(default_factory=dict, init=False, repr=False)  # not passed on by replace

    @property
    def num_rows(self) -> int:
        return self.indptr.numel() - 1

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_rows, self.num_cols

    @property
    def nnz(self) -> int:
        return self.indices.numel()

    @property
    def device(self) -> torch.device:
        return self.indptr.device

    @property
    def dtype(self) -> torch.dtype:
        return self.data.dtype

    @property
    def data(self) -> Tensor:
        """The values of a matrix that must have them."""
        if self.values is None:
            raise GraphError("expected a matrix with values (got a bare pattern): normalise it first")
        return self.values

    def degrees(self, rows: Tensor | None = None) -> Tensor:
        """Stored entries of every row, or of each of ``rows``, in the dtype of the row pointers."""
        return self.indptr.diff() if rows is None else self.indptr[rows + 1] - self.indptr[rows]

    def row_index(self) -> Tensor:
        """The row of every stored entry, int64 [nnz]."""
        rows = torch.arange(self.num_rows, device=self.device)
        return rows.repeat_interleave(self.degrees().long(), output_size=self.nnz)

    def release(self) -> None:
        """Unmap the pages of the entries, where they lie in files."""
        if self.files is not None:
            self.files.release()

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> CSR:
        """This matrix on ``device``, with values of ``dtype``; the same object where nothing changes."""
        if self.files is not None and device is None and self.values is not None and dtype != self.dtype:
            return replace(self, values=empty_entries(self, dtype or self.dtype).copy_(self.values))
        values = None if self.values is None else self.values.to(device=device, dtype=dtype)
        indices, data = self.indices.to(device), None if self.edge_data is None else self.edge_data.to(device)
        if indices is self.indices and values is self.values and data is self.edge_data:
            return self
        return CSR(self.indptr.to(device), indices, values, self.num_cols, self.symmetric, edge_data=data)

    @cached
    def as_torch(self, dtype: torch.dtype | None = None) -> Tensor:
        """A ``torch.sparse_csr_tensor`` that shares memory, with values of ``dtype`` (by default their own).

        It is cached, since making it checks and copies headers.
        """
        with warnings.catch_warnings():
            # torch warns that the format is in beta and that its checks are off; both are intended
            warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)")
            values = self.data.to(dtype)
            return torch.sparse_csr_tensor(self.indptr, self.indices, values, size=self.shape, check_invariants=False)

    @cached
    def t(self) -> CSR:
        """The transpose, by rows; cached. A symmetric matrix returns itself."""
        if self.symmetric:
            return self
        if self.files is not None:
            return scattered(partial(_swapped, self), (self.num_cols, self.num_rows), self.files)
        pattern, order = self.transposed_order()
        values = None if self.values is None else self.values[order]
        return CSR(pattern.indptr, pattern.indices, values, pattern.num_cols)

    @cached
    def transposed_order(self) -> tuple[CSR, Tensor]:
        """The transpose's pattern and, for each of its entries, the position of the entry here; cached."""
        order = self.indices.sort(stable=True).indices  # stable: rows of the transpose stay sorted
        rows, cols = self.indices[order], self.row_index()[order]
        return from_rows(rows, cols, None, (self.num_cols, self.num_rows)), order

    def _at(self, entries: Tensor | slice, indptr: Tensor) -> CSR:
        """The matrix of these stored entries, with these row pointers."""
        values, data = (None if a is None else a[entries] for a in (self.values, self.edge_data))
        indices = self.indices[entries]
        return CSR(indptr.to(pointer_dtype(indices.numel())), indices, values, self.num_cols, edge_data=data)

    @cached
    def pieces(self) -> list[tuple[slice, CSR]]:
        """Ranges of rows that share memory with this matrix and have int32 row pointers; cached."""
        starts = self.indptr
        return [
            (rows, self._at(entries, starts[rows.start : rows.stop + 1] - entries.start))
            for rows, entries in row_chunks(self, INT32_ENTRIES - 1)
        ]

    def select_rows(self, rows: Tensor | slice, total: int | None = None) -> CSR:
        """Rows ``rows`` with every column, of which consecutive ones share the memory of their entries; ``total`` is
        the number of their entries, where it is known."""
        if isinstance(rows, slice):
            first, last, _ = rows.indices(self.num_rows)
            starts = self.indptr[first : last + 1]
            return self._at(slice(*starts[[0, -1]].tolist()), starts - starts[0])
        return self._at(*row_entries(self, rows, total))

    @cached
    def leading(self, rows: int) -> CSR:
        """The first ``rows`` rows, sharing memory; cached."""
        if rows == self.num_rows:
            return self
        return self._at(slice(0, int(self.indptr[rows])), self.indptr[: rows + 1])

    @cached
    def columns(self, split: int) -> tuple[CSR, CSR]:
        """The columns before ``split``, and the columns from ``split`` on; cached."""
        left = self.indices < split
        a, b = self.filtered(left), self.filtered(~left)
        moved = CSR(b.indptr, b.indices - split, b.values, self.num_cols - split)
        return CSR(a.indptr, a.indices, a.values, split), moved

    def filtered(self, keep: Tensor, at: Tensor | None = None) -> CSR:
        """The entries where ``keep`` [nnz] holds; ``at`` are their positions, where the caller knows them."""
        at = keep.nonzero().squeeze(1) if at is None else at
        # the number of kept entries before each row: a running count, read at the old row pointers
        return self._at(at, pointers(keep, pointer_dtype(keep.numel()))[self.indptr])

    def to_dense(self) -> Tensor:
        """The dense matrix (for tests and small graphs)."""
        values = self.values if self.values is not None else torch.ones(self.nnz, device=self.device)
        dense = torch.zeros(self.shape, dtype=values.dtype, device=self.device)
        return dense.index_put_((self.row_index(), self.indices.long()), values, accumulate=True)


def entry_ranges(matrix: CSR) -> Iterator[tuple[slice, slice]]:
    """Rows and their entries, at most :data:`CHUNK` entries at a time."""
    for each in row_chunks(matrix, CHUNK):
        yield each
        matrix.release()


def entry_chunks(matrix: CSR) -> Iterator[tuple[Tensor, slice]]:
    """The row of every entry and the entries, at most :data:`CHUNK` at a time."""
    for rows, entries in entry_ranges(matrix):
        each = torch.arange(rows.start, rows.stop, device=matrix.device)
        counts = matrix.indptr[rows.start : rows.stop + 1].diff()
        yield each.repeat_interleave(counts, output_size=entries.stop - entries.start), entries


def chosen_entries(matrix: CSR, choose: Callable[[slice, slice], Tensor]) -> CSR:
    """The entries for which ``choose(rows, entries)`` is true, without their edge data. They are read in chunks, whose
    temporary values stay in the cache of a CPU."""
    bare, pieces = replace(matrix, edge_data=None), list[CSR]()
    for rows, entries in entry_ranges(matrix):
        piece = bare._at(entries, bare.indptr[rows.start : rows.stop + 1] - entries.start)
        pieces.append(piece.filtered(choose(rows, entries)))
    indices, values = (torch.cat(each) for each in zip(*((p.indices, p.data) for p in pieces), strict=True))
    counts = torch.cat([piece.degrees() for piece in pieces])
    return CSR(pointers(counts, pointer_dtype(indices.numel())), indices, values, matrix.num_cols)


def rows_in_chunks(matrix: CSR, rows: Tensor) -> Iterator[tuple[slice, CSR]]:
    """Ranges of ``rows`` and the matrix of these rows, with at most :data:`CHUNK` entries each."""
    for some, _ in _pointer_chunks(pointers(matrix.degrees(rows), torch.int64), CHUNK):
        yield some, matrix.select_rows(rows[some])
        matrix.release()


def _swapped(matrix: CSR) -> Iterator[tuple[Tensor, ...]]:
    """(column, row) or (column, row, value) of the entries, in chunks."""
    for row, at in entry_chunks(matrix):
        yield (matrix.indices[at], row) if matrix.values is None else (matrix.indices[at], row, matrix.values[at])


def empty_entries(matrix: CSR, like: Tensor | torch.dtype, num: int | None = None) -> Tensor:
    """Room for one number, or for one row of ``like``, per entry (or for ``num``), where the entries lie."""
    width, dtype = ((), like) if isinstance(like, torch.dtype) else (like.shape[1:], like.dtype)
    shape = (matrix.nnz if num is None else num, *width)
    if matrix.files is not None:
        return matrix.files.empty(shape, dtype)
    return torch.empty(shape, dtype=dtype, device=matrix.indices.device)


def offload(matrix: CSR, device: torch.device) -> CSR:
    """A matrix in host memory for use on ``device``: the row pointers move there, the entries stay in host memory.

    For a GPU the entries are copied to pinned memory, which the GPU reads over the bus.
    """
    moved = _offload(matrix, device)
    if not matrix.symmetric:
        moved._cache["t",] = _offload(matrix.t(), device)
    return moved


def _offload(matrix: CSR, device: torch.device) -> CSR:
    if matrix.files is not None:
        return replace(matrix, indptr=matrix.indptr.to(device), on_host=True)
    arrays = [matrix.indices, matrix.data] + ([] if matrix.edge_data is None else [matrix.edge_data])
    if device.type == "cuda":
        arrays = [allocate_pages(a.shape, a.dtype).copy_(a) for a in arrays]
    indices, values, *rest = arrays
    starts, data = matrix.indptr.to(device), rest[0] if rest else None
    moved = CSR(starts, indices, values, matrix.num_cols, matrix.symmetric, on_host=True, edge_data=data)
    for array in arrays:
        pin(array, device, moved)
    return moved


def pointers(counts: Tensor, dtype: torch.dtype = torch.int32) -> Tensor:
    """Row pointers of rows with ``counts`` entries [len + 1]."""
    indptr = torch.zeros(counts.numel() + 1, dtype=dtype, device=counts.device)
    torch.cumsum(counts, 0, dtype=dtype, out=indptr[1:])
    return indptr


def from_rows(rows: Tensor, cols: Tensor, values: Tensor | None, shape: tuple[int, int]) -> CSR:
    """A matrix from entries that are sorted by row."""
    # a search for the first entry of each row; counting the entries of each row would wait for the GPU
    each = torch.arange(shape[0] + 1, dtype=rows.dtype, device=rows.device)
    narrow = pointer_dtype(rows.numel()) == torch.int32
    indptr = torch.searchsorted(rows.contiguous(), each, out_int32=narrow)
    return CSR(indptr, cols.to(torch.int32), values, shape[1])


def scattered(chunks: Callable[[], Iterable[tuple[Tensor, ...]]], shape: tuple[int, int], files: MappedFiles) -> CSR:
    """A matrix in files from entries in any order; the entries of a row keep the order in which they come.

    Args:
        chunks: makes an iterator over (rows, columns) or (rows, columns, values, edge data); it is called twice.
    """
    counts = torch.zeros(shape[0], dtype=torch.int64)
    for rows, *_ in chunks():
        counts += torch.bincount(rows, minlength=shape[0])
    indptr = pointers(counts, pointer_dtype(int(counts.sum())))
    free = indptr[:-1].to(torch.int64, copy=True)
    arrays: list[Tensor] = []
    for rows, cols, *given in chunks():
        rows, order = rows.sort(stable=True)
        at = free[rows] + (torch.arange(rows.numel()) - torch.searchsorted(rows, rows))
        given = [cols.to(torch.int32), *given]
        arrays = arrays or [files.empty((int(indptr[-1]), *a.shape[1:]), a.dtype) for a in given]
        for target, source in zip(arrays, given, strict=True):
            target[at] = source[order]
        free += torch.bincount(rows, minlength=shape[0])
        files.release()
    values, data = (*arrays[1:], None, None)[:2]
    return CSR(indptr, arrays[0], values, shape[1], edge_data=data, files=files)


def identity(n: int, device: torch.device | None = None) -> CSR:
    """The features of nodes that have none, [n, n]: node i has feature i alone."""
    every = torch.arange(n + 1, dtype=torch.int32, device=device)
    return CSR(every, every[:-1], torch.ones(n, device=device), n)


@cached
def rows_split(matrix: CSR, split: int) -> tuple[CSR, CSR]:
    """The rows before ``split``, and the rows from ``split`` on, sharing memory; cached."""
    return matrix.leading(split), matrix.select_rows(slice(split, None))


@cached
def is_one_hot(matrix: CSR) -> bool:
    """Whether every row has one entry, which is 1 and in a column of its own."""
    if matrix.nnz != matrix.num_rows or not bool((matrix.data == 1).all() & (matrix.degrees() == 1).all()):
        return False
    return matrix.indices.unique().numel() == matrix.num_rows


def with_empty_rows(matrix: CSR, num_rows: int) -> CSR:
    """The matrix with empty rows added at the end, ``num_rows`` rows in all."""
    tail = matrix.indptr[-1:].expand(num_rows - matrix.num_rows)
    return CSR(torch.cat([matrix.indptr, tail]), matrix.indices, matrix.values, matrix.num_cols)


def with_transpose(adj: CSR) -> CSR:
    """The pattern of A and A^T together: who is a neighbour of whom, in either direction."""
    if adj.symmetric:
        return adj
    row, col, n = adj.row_index(), adj.indices.long(), adj.num_rows
    key = torch.cat([row * n + col, col * n + row]).unique()
    both = from_rows(key // n, key % n, None, adj.shape)
    return CSR(both.indptr, both.indices, None, n, symmetric=True)


def row_entries(matrix: CSR, rows: Tensor, total: int | None = None) -> tuple[Tensor, Tensor]:
    """Positions of the entries of ``rows`` in ``matrix.indices``, row after row, and the new row pointers.

    Counting the entries waits for the GPU, unless their ``total`` is known.
    """
    counts = matrix.degrees(rows)
    indptr = pointers(counts, matrix.indptr.dtype)
    total = int(indptr[-1]) if total is None else total
    # entry k of row r is at start_r + k; the running position minus the row's own offset is k
    shift = (matrix.indptr[rows] - indptr[:-1]).repeat_interleave(counts.long(), output_size=total)
    positions = torch.arange(total, dtype=indptr.dtype, device=matrix.device)
    return shift + positions, indptr.to(pointer_dtype(total))


def row_chunks(P: CSR, limit: int) -> list[tuple[slice, slice]]:
    """Consecutive rows of P with at most ``limit`` entries each (a single row is never divided), and their entries."""
    if P.nnz <= limit:
        return [(slice(0, P.num_rows), slice(0, P.nnz))]
    return _pointer_chunks(P.indptr, limit)


def _pointer_chunks(indptr: Tensor, limit: int) -> list[tuple[slice, slice]]:
    """The chunks of :func:`row_chunks`, from row pointers alone."""
    entries, found, start = indptr.long().cpu(), [], 0
    while start < indptr.numel() - 1:
        stop = int(torch.searchsorted(entries, entries[start] + limit, right=True)) - 1
        rows = slice(start, max(stop, start + 1))
        found.append((rows, slice(int(entries[rows.start]), int(entries[rows.stop]))))
        start = rows.stop
    return found
