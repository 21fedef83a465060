"""The aggregation matrices P built from a graph's structure.

All of them store the pattern of A + I, the diagonal too where it is zero, so that halos, degrees and blocks do not
depend on which of them a model reads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.errors import ConfigError
from lmc.graph.csr import CSR

NORMALISATIONS = ("gcn", "mean", "sum")
"""D^-1/2 (A + I) D^-1/2; D^-1 A with D the degrees of A; A + I. The second is not its own transpose."""


PIECE = 2**22
"""Entries whose weights are computed at a time: a large matrix is made beside itself, not beside wide copies of it."""


def with_self_loops(pattern: CSR) -> CSR:
    """The pattern of A + I; ``pattern`` has sorted columns and no self-loops."""
    indptr = pattern.indptr + torch.arange(pattern.num_rows + 1, dtype=torch.int32, device=pattern.device)
    # a row's loop stands behind its smaller columns; all else keeps its order
    smaller = (pattern.indices < _rows(pattern)).cumsum(0, dtype=torch.int32)
    counts = torch.cat([smaller.new_zeros(1), smaller])
    places = (indptr[:-1] + counts[pattern.indptr[1:]] - counts[pattern.indptr[:-1]]).long()
    del smaller, counts
    others = torch.ones(pattern.nnz + pattern.num_rows, dtype=torch.bool, device=pattern.device)
    others[places] = False
    indices = torch.empty(others.shape, dtype=torch.int32, device=pattern.device)
    indices.masked_scatter_(others, pattern.indices)
    indices[places] = torch.arange(pattern.num_rows, dtype=torch.int32, device=pattern.device)
    return CSR(indptr, indices, None, pattern.num_cols)


def _rows(pattern: CSR) -> Tensor:
    """The row of every entry, in half the bytes of ``row_index``."""
    each = torch.arange(pattern.num_rows, dtype=torch.int32, device=pattern.device)
    return each.repeat_interleave(pattern.degrees(), output_size=pattern.nnz)


def gcn_norm(pattern: CSR, dtype: torch.dtype = torch.float32) -> CSR:
    """P = D^-1/2 (A + I) D^-1/2 with D the degrees of A + I; symmetric, as A is."""
    looped = with_self_loops(pattern)
    scale = looped.degrees().to(torch.float64).rsqrt()
    rows, values = _rows(looped), torch.empty(looped.nnz, dtype=dtype, device=looped.device)
    for start in range(0, looped.nnz, PIECE):
        piece = slice(start, start + PIECE)
        values[piece] = scale[rows[piece]] * scale[looped.indices[piece]]
    return CSR(looped.indptr, looped.indices, values, looped.num_cols, symmetric=True)


def normalise(pattern: CSR, kind: str, dtype: torch.dtype = torch.float32) -> CSR:
    """The aggregation matrix of this kind, one of :data:`NORMALISATIONS`."""
    if kind == "gcn":
        return gcn_norm(pattern, dtype)
    looped = with_self_loops(pattern)
    return renormalise(CSR(looped.indptr, looped.indices, looped.indices.to(dtype), looped.num_cols, True), kind)


def renormalise(block: CSR, kind: str = "gcn") -> CSR:
    """Cluster-GCN: the normalisation of the subgraph that ``block`` is the pattern of, self-loops included.

    The pattern is symmetric; only its dtype is read beside it.
    """
    row, col = block.row_index(), block.indices
    wide = torch.promote_types(block.dtype, torch.float32)  # rounded once, at the end
    if kind == "gcn":
        scale = block.degrees().to(wide).clamp(min=1).rsqrt()
        values = (scale[row] * scale[col]).to(block.dtype)
        return CSR(block.indptr, col, values, block.num_cols, symmetric=block.symmetric)
    if kind == "sum":
        return CSR(block.indptr, col, torch.ones_like(block.data), block.num_cols, symmetric=True)
    if kind != "mean":
        raise ConfigError(f"expected a normalisation in {NORMALISATIONS} (got {kind!r})")
    neighbour = row != col
    inverse = (block.degrees() - 1).clamp(min=1).to(wide).reciprocal().to(block.dtype)
    mean = CSR(block.indptr, col, inverse[row] * neighbour, block.num_cols)
    # the pattern is symmetric, so the transpose has the same arrays with the weights of the other end
    transpose = CSR(block.indptr, col, inverse[col] * neighbour, block.num_cols)
    mean._cache["t"], transpose._cache["t"] = transpose, mean
    return mean
