"""The aggregation matrices P built from a graph's structure.

All of them store the pattern of A + I, the diagonal too where it is zero, so that halos, degrees and blocks do not
depend on which of them a model reads.
"""

from __future__ import annotations

import torch

from lmc.errors import ConfigError
from lmc.graph.csr import CSR, row_chunks

NORMALISATIONS = ("gcn", "mean", "sum")
"""D^-1/2 (A + I) D^-1/2; D^-1 A with D the degrees of A; A + I. The second is not its own transpose."""


PIECE = 2**22
"""Entries that are sorted, and whose weights are computed, at a time: a large matrix is made beside itself, not beside
wide copies of it."""


def with_self_loops(pattern: CSR) -> CSR:
    """The pattern of A + I, columns sorted; ``pattern`` has no self-loops."""
    n = pattern.num_rows
    loops = torch.arange(n, device=pattern.device)
    indptr = pattern.indptr + torch.arange(n + 1, dtype=torch.int32, device=pattern.device)
    indices = torch.empty(pattern.nnz + n, dtype=torch.int32, device=pattern.device)
    for rows, entries in row_chunks(pattern, PIECE):
        mine = loops[rows]
        row = mine.repeat_interleave(pattern.degrees()[rows], output_size=entries.stop - entries.start)
        key = torch.cat([row * n + pattern.indices[entries], mine * n + mine]).sort().values
        indices[entries.start + rows.start : entries.stop + rows.stop] = key % n
    return CSR(indptr, indices, None, pattern.num_cols)


def gcn_norm(pattern: CSR, dtype: torch.dtype = torch.float32) -> CSR:
    """P = D^-1/2 (A + I) D^-1/2 with D the degrees of A + I; symmetric, as A is."""
    looped = with_self_loops(pattern)
    scale = looped.degrees().to(torch.float64).rsqrt()
    values = torch.empty(looped.nnz, dtype=dtype, device=looped.device)
    for rows, entries in row_chunks(looped, PIECE):
        each = scale[rows].repeat_interleave(looped.degrees()[rows], output_size=entries.stop - entries.start)
        values[entries] = each * scale[looped.indices[entries]]
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
