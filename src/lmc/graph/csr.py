"""Compressed sparse rows with int32 indices: the one sparse format of the library."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, cast

import torch
from torch import Tensor

from lmc.errors import GraphError
from lmc.kernels.pinned import allocate_pages, pin

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class CSR:
    """A sparse matrix by rows; row ``i`` has the columns ``indices[indptr[i]:indptr[i + 1]]``.

    Args:
        indptr: row pointers, int32 [num_rows + 1].
        indices: columns, int32 [nnz].
        values: [nnz]; None for a bare pattern.
        symmetric: whether the matrix equals its transpose, so that backward products use the same arrays. The caller
            guarantees it; it is not checked.
        on_host: whether the entries stay in host memory while the row pointers are on a device. Blocks can be cut out
            of such a matrix on that device, and nothing else can be done with it (:func:`offload`).
    """

    indptr: Tensor
    indices: Tensor
    values: Tensor | None
    num_cols: int
    symmetric: bool = False
    on_host: bool = False
    _cache: dict[str, object] = field(default_factory=dict, repr=False)

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

    def _once(self, key: str, make: Callable[[], Made]) -> Made:
        """The cached result of ``make``."""
        if key not in self._cache:
            self._cache[key] = make()
        return cast(Made, self._cache[key])

    def degrees(self) -> Tensor:
        """Stored entries per row, int32 [num_rows]."""
        return self.indptr.diff()

    def row_index(self) -> Tensor:
        """The row of every stored entry, int64 [nnz]."""
        rows = torch.arange(self.num_rows, device=self.device)
        return rows.repeat_interleave(self.degrees().long(), output_size=self.nnz)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> CSR:
        """This matrix on ``device``, with values of ``dtype``; the same object where nothing changes."""
        values = None if self.values is None else self.values.to(device=device, dtype=dtype)
        indices = self.indices.to(device)
        if indices is self.indices and values is self.values:
            return self
        return CSR(self.indptr.to(device), indices, values, self.num_cols, self.symmetric)

    def as_torch(self, dtype: torch.dtype | None = None) -> Tensor:
        """A ``torch.sparse_csr_tensor`` that shares memory, with values of ``dtype`` (by default their own).

        It is cached, since making it checks and copies headers.
        """

        def make() -> Tensor:
            with warnings.catch_warnings():
                # torch warns that the format is in beta and that its checks are off; both are intended
                warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)")
                return torch.sparse_csr_tensor(
                    self.indptr, self.indices, self.data.to(dtype), size=self.shape, check_invariants=False
                )

        return self._once(f"torch {dtype or self.dtype}", make)

    def t(self) -> CSR:
        """The transpose, by rows; cached. A symmetric matrix returns itself."""

        def make() -> CSR:
            pattern, order = self.transposed_order()
            values = None if self.values is None else self.values[order]
            return CSR(pattern.indptr, pattern.indices, values, pattern.num_cols)

        # a symmetric matrix is not cached in itself: the reference cycle would delay the release of its memory
        return self if self.symmetric else self._once("t", make)

    def transposed_order(self) -> tuple[CSR, Tensor]:
        """The transpose's pattern and, for each of its entries, the position of the entry here; cached."""

        def make() -> tuple[CSR, Tensor]:
            order = self.indices.sort(stable=True).indices  # stable: rows of the transpose stay sorted
            rows, cols = self.indices[order], self.row_index()[order]
            return from_rows(rows, cols, None, (self.num_cols, self.num_rows)), order

        return self._once("order", make)

    def off_diagonal(self) -> tuple[Tensor, Tensor]:
        """Row and column of every stored entry off the diagonal; cached, since counting them waits for the GPU."""

        def make() -> tuple[Tensor, Tensor]:
            row = self.row_index()
            off = row != self.indices
            return row[off], self.indices[off]

        return self._once("off diagonal", make)

    def select_rows(self, rows: Tensor | slice, total: int | None = None) -> CSR:
        """Rows ``rows`` with every column; ``total`` is the number of their entries, where it is known."""
        if isinstance(rows, slice):
            rows = torch.arange(*rows.indices(self.num_rows), device=self.device)
        entries, indptr = row_entries(self, rows, total)
        values = None if self.values is None else self.values[entries]
        return CSR(indptr, self.indices[entries], values, self.num_cols)

    def leading(self, rows: int) -> CSR:
        """The first ``rows`` rows, sharing memory; cached."""

        def make() -> CSR:
            end = int(self.indptr[rows])
            values = None if self.values is None else self.values[:end]
            return CSR(self.indptr[: rows + 1], self.indices[:end], values, self.num_cols)

        return self if rows == self.num_rows else self._once(f"leading {rows}", make)

    def columns(self, split: int) -> tuple[CSR, CSR]:
        """The columns before ``split``, and the columns from ``split`` on; cached."""

        def make() -> tuple[CSR, CSR]:
            left = self.indices < split
            a, b = self.filtered(left), self.filtered(~left)
            return (
                CSR(a.indptr, a.indices, a.values, split),
                CSR(b.indptr, b.indices - split, b.values, self.num_cols - split),
            )

        return self._once(f"columns {split}", make)

    def extended(self, num_rows: int) -> CSR:
        """This matrix with empty rows added at the end, ``num_rows`` rows in all."""
        tail = self.indptr[-1:].expand(num_rows - self.num_rows)
        return CSR(torch.cat([self.indptr, tail]), self.indices, self.values, self.num_cols)

    def filtered(self, keep: Tensor, at: Tensor | None = None) -> CSR:
        """The entries where ``keep`` [nnz] holds; ``at`` are their positions, where the caller knows them."""
        at = keep.nonzero().squeeze(1) if at is None else at
        # the number of kept entries before each row: a running count, read at the old row pointers
        indptr = pointers(keep)[self.indptr]
        values = None if self.values is None else self.values[at]
        return CSR(indptr, self.indices[at], values, self.num_cols)

    def to_dense(self) -> Tensor:
        """The dense matrix (for tests and small graphs)."""
        values = self.values if self.values is not None else torch.ones(self.nnz, device=self.device)
        dense = torch.zeros(self.shape, dtype=values.dtype, device=self.device)
        return dense.index_put_((self.row_index(), self.indices.long()), values, accumulate=True)


def offload(matrix: CSR, device: torch.device) -> CSR:
    """A matrix in host memory for use on ``device``: the row pointers move there, the entries stay in host memory.

    For a GPU the entries are copied to pinned memory, which the GPU reads over the bus.
    """
    moved = _offload(matrix, device)
    if not matrix.symmetric:
        moved._cache["t"] = _offload(matrix.t(), device)
    return moved


def _offload(matrix: CSR, device: torch.device) -> CSR:
    indices, values = matrix.indices, matrix.data
    if device.type == "cuda":
        indices, values = (allocate_pages(a.shape, a.dtype).copy_(a) for a in (indices, values))
    moved = CSR(matrix.indptr.to(device), indices, values, matrix.num_cols, matrix.symmetric, on_host=True)
    for array in (indices, values):
        pin(array, device, moved)
    return moved


def pointers(counts: Tensor) -> Tensor:
    """Row pointers of rows with ``counts`` entries, int32 [len + 1]."""
    indptr = torch.zeros(counts.numel() + 1, dtype=torch.int32, device=counts.device)
    torch.cumsum(counts, 0, dtype=torch.int32, out=indptr[1:])
    return indptr


def from_rows(rows: Tensor, cols: Tensor, values: Tensor | None, shape: tuple[int, int]) -> CSR:
    """A matrix from entries that are sorted by row."""
    # a search for the first entry of each row; counting the entries of each row would wait for the GPU
    each = torch.arange(shape[0] + 1, dtype=rows.dtype, device=rows.device)
    indptr = torch.searchsorted(rows.contiguous(), each, out_int32=True)
    return CSR(indptr, cols.to(torch.int32), values, shape[1])


def row_entries(matrix: CSR, rows: Tensor, total: int | None = None) -> tuple[Tensor, Tensor]:
    """Positions of the entries of ``rows`` in ``matrix.indices``, row after row, and the new row pointers.

    Counting the entries waits for the GPU, unless their ``total`` is known.
    """
    counts = matrix.degrees()[rows]
    indptr = pointers(counts)
    total = int(indptr[-1]) if total is None else total
    # entry k of row r is at start_r + k; the running position minus the row's own offset is k
    shift = (matrix.indptr[rows] - indptr[:-1]).repeat_interleave(counts.long(), output_size=total)
    return shift + torch.arange(total, dtype=torch.int32, device=matrix.device), indptr


def row_chunks(P: CSR, limit: int) -> list[tuple[slice, slice]]:
    """Consecutive rows of P with at most ``limit`` entries each (a single row is never divided), and their entries."""
    if P.nnz <= limit:
        return [(slice(0, P.num_rows), slice(0, P.nnz))]
    entries, found, start = P.indptr.long().cpu(), [], 0
    while start < P.num_rows:
        stop = int(torch.searchsorted(entries, entries[start] + limit, right=True)) - 1
        rows = slice(start, max(stop, start + 1))
        found.append((rows, slice(int(entries[rows.start]), int(entries[rows.stop]))))
        start = rows.stop
    return found
