"""Compressed sparse rows with int32 indices: the one sparse format of the library."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lmc.errors import GraphError
from lmc.kernels.pinned import allocate_pages, pin


@dataclass(frozen=True, eq=False)
class CSR:
    """A sparse matrix by rows; row ``i`` holds ``indices[indptr[i]:indptr[i + 1]]``.

    ``values`` is None for a bare pattern. ``symmetric`` is a promise of the maker: the matrix equals its
    transpose, so that backward products use the same arrays. Where ``on_host``, the entries stay on the host: blocks
    are cut out of it on the device of its row pointers, nothing else.
    """

    indptr: Tensor  # int32 [num_rows + 1]
    indices: Tensor  # int32 [nnz]
    values: Tensor | None  # [nnz]
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
        """The values, for a matrix that must have them."""
        if self.values is None:
            raise GraphError("expected a matrix with values (got a bare pattern): normalise it first")
        return self.values

    def degrees(self) -> Tensor:
        """Stored entries per row, int32 [num_rows]."""
        return self.indptr.diff()

    def row_index(self) -> Tensor:
        """The row of every stored entry, int64 [nnz]."""
        rows = torch.arange(self.num_rows, device=self.device)
        return rows.repeat_interleave(self.degrees().long(), output_size=self.nnz)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> CSR:
        """This matrix on ``device``, with values of ``dtype``; itself where nothing changes."""
        values = None if self.values is None else self.values.to(device=device, dtype=dtype)
        indices = self.indices.to(device)
        if indices is self.indices and values is self.values:
            return self
        return CSR(self.indptr.to(device), indices, values, self.num_cols, self.symmetric)

    def offload(self, device: torch.device) -> CSR:
        """This matrix, which is in host memory, with its entries left there and used on ``device``."""
        moved = self._offload(device)
        if not self.symmetric:
            moved._cache["t"] = self.t()._offload(device)
        return moved

    def _offload(self, device: torch.device) -> CSR:
        indices, values = self.indices, self.data
        if device.type == "cuda":
            indices, values = (allocate_pages(a.shape, a.dtype).copy_(a) for a in (indices, values))
        moved = CSR(self.indptr.to(device), indices, values, self.num_cols, self.symmetric, on_host=True)
        for array in (indices, values):
            pin(array, device, moved)
        return moved

    def as_torch(self, dtype: torch.dtype | None = None) -> Tensor:
        """As ``torch.sparse_csr_tensor`` sharing memory, with values of ``dtype``, by default their own; made once,
        since making it checks and copies headers."""
        key = f"torch {dtype or self.dtype}"
        if key not in self._cache:
            with warnings.catch_warnings():
                # that the format is young, and that its checks are off, is known and meant
                warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)")
                self._cache[key] = torch.sparse_csr_tensor(
                    self.indptr, self.indices, self.data.to(dtype), size=self.shape, check_invariants=False
                )
        tensor = self._cache[key]
        assert isinstance(tensor, Tensor)
        return tensor

    def t(self) -> CSR:
        """The transpose, by rows; made once. A symmetric matrix is its own."""
        if self.symmetric:  # and does not hold itself: its memory would wait for the collector of cycles
            return self
        if "t" not in self._cache:
            pattern, order = self.transposed_order()
            values = None if self.values is None else self.values[order]
            self._cache["t"] = CSR(pattern.indptr, pattern.indices, values, pattern.num_cols)
        transpose = self._cache["t"]
        assert isinstance(transpose, CSR)
        return transpose

    def transposed_order(self) -> tuple[CSR, Tensor]:
        """The transpose's pattern and, for each of its entries, where the entry stands here; made once."""
        if "order" not in self._cache:
            order = self.indices.sort(stable=True).indices  # stable: rows of the transpose stay sorted
            rows, cols = self.indices[order], self.row_index()[order]
            self._cache["order"] = (from_rows(rows, cols, None, (self.num_cols, self.num_rows)), order)
        found = self._cache["order"]
        assert isinstance(found, tuple)
        return found

    def off_diagonal(self) -> tuple[Tensor, Tensor]:
        """Row and column of every stored entry off the diagonal; made once, since counting them waits for a GPU."""
        if "off diagonal" not in self._cache:
            row = self.row_index()
            there = row != self.indices
            self._cache["off diagonal"] = (row[there], self.indices[there])
        found = self._cache["off diagonal"]
        assert isinstance(found, tuple)
        return found

    def select_rows(self, rows: Tensor | slice, total: int | None = None) -> CSR:
        """Rows ``rows``, every column kept; ``total`` of their entries, where it is known."""
        if isinstance(rows, slice):
            rows = torch.arange(*rows.indices(self.num_rows), device=self.device)
        entries, indptr = row_entries(self, rows, total)
        values = None if self.values is None else self.values[entries]
        return CSR(indptr, self.indices[entries], values, self.num_cols)

    def leading(self, rows: int) -> CSR:
        """The first ``rows`` rows, sharing memory; made once for each count."""
        if rows == self.num_rows:
            return self
        key = f"leading {rows}"
        if key not in self._cache:
            end = int(self.indptr[rows])
            values = None if self.values is None else self.values[:end]
            self._cache[key] = CSR(self.indptr[: rows + 1], self.indices[:end], values, self.num_cols)
        block = self._cache[key]
        assert isinstance(block, CSR)
        return block

    def columns(self, split: int) -> tuple[CSR, CSR]:
        """The columns before ``split`` and those from it on; made once."""
        key = f"columns {split}"
        if key not in self._cache:
            left = self.indices < split
            a, b = self.filtered(left), self.filtered(~left)
            self._cache[key] = (
                CSR(a.indptr, a.indices, a.values, split),
                CSR(b.indptr, b.indices - split, b.values, self.num_cols - split),
            )
        blocks = self._cache[key]
        assert isinstance(blocks, tuple)
        return blocks

    def extended(self, num_rows: int) -> CSR:
        """This matrix with empty rows below it."""
        tail = self.indptr[-1:].expand(num_rows - self.num_rows)
        return CSR(torch.cat([self.indptr, tail]), self.indices, self.values, self.num_cols)

    def filtered(self, keep: Tensor) -> CSR:
        """The entries where ``keep`` [nnz] holds."""
        return self.entries(keep.nonzero().squeeze(1), keep)

    def entries(self, at: Tensor, keep: Tensor) -> CSR:
        """The entries at ``at``, those where ``keep`` [nnz] holds: for a caller who has counted them already."""
        # entries kept before each row's first one: a running count read at the old row pointers
        indptr = pointers(keep)[self.indptr]
        values = None if self.values is None else self.values[at]
        return CSR(indptr, self.indices[at], values, self.num_cols)

    def to_dense(self) -> Tensor:
        """The dense matrix (for tests and small graphs)."""
        values = self.values if self.values is not None else torch.ones(self.nnz, device=self.device)
        dense = torch.zeros(self.shape, dtype=values.dtype, device=self.device)
        return dense.index_put_((self.row_index(), self.indices.long()), values, accumulate=True)


def pointers(counts: Tensor) -> Tensor:
    """Row pointers of rows holding ``counts`` entries, int32 [len + 1]."""
    indptr = torch.zeros(counts.numel() + 1, dtype=torch.int32, device=counts.device)
    torch.cumsum(counts, 0, dtype=torch.int32, out=indptr[1:])
    return indptr


def from_rows(rows: Tensor, cols: Tensor, values: Tensor | None, shape: tuple[int, int]) -> CSR:
    """A matrix from entries already sorted by row."""
    # the entries before each row; counting them instead would wait for a GPU
    each = torch.arange(shape[0] + 1, dtype=rows.dtype, device=rows.device)
    indptr = torch.searchsorted(rows.contiguous(), each, out_int32=True)
    return CSR(indptr, cols.to(torch.int32), values, shape[1])


def row_entries(matrix: CSR, rows: Tensor, total: int | None = None) -> tuple[Tensor, Tensor]:
    """Positions of the entries of ``rows`` in ``matrix.indices``, row after row, and the new row pointers. Counting
    them waits for a GPU, unless their ``total`` is known."""
    counts = matrix.degrees()[rows]
    indptr = pointers(counts)
    total = int(indptr[-1]) if total is None else total
    # entry k of row r stands at start_r + k; the running position minus the row's own offset is k
    shift = (matrix.indptr[rows] - indptr[:-1]).repeat_interleave(counts.long(), output_size=total)
    return shift + torch.arange(total, dtype=torch.int32, device=matrix.device), indptr


def row_chunks(P: CSR, limit: int) -> list[tuple[slice, slice]]:
    """Runs of rows of P, each with at most ``limit`` entries (a single row is never divided), and their entries."""
    if P.nnz <= limit:
        return [(slice(0, P.num_rows), slice(0, P.nnz))]
    entries, found, start = P.indptr.long().cpu(), [], 0
    while start < P.num_rows:
        stop = int(torch.searchsorted(entries, entries[start] + limit, right=True)) - 1
        rows = slice(start, max(stop, start + 1))
        found.append((rows, slice(int(entries[rows.start]), int(entries[rows.stop]))))
        start = rows.stop
    return found
