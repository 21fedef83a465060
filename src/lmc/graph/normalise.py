"""The aggregation matrices P of a graph.

All of them store the pattern of A + I, also a diagonal of zeros, so that halos, degrees and blocks are the same for
every model.
"""

from __future__ import annotations

import torch

from lmc.errors import ConfigError
from lmc.graph.csr import CSR, row_chunks

NORMALISATIONS = ("gcn", "mean", "sum")
"""D^-1/2 (A + I) D^-1/2; D^-1 A with D the degrees of A; A + I. The second is not its own transpose."""

CHUNK = 2**22
"""Entries that are sorted and weighted at a time, which bounds the memory of the int64 and float64 temporaries."""


def with_self_loops(pattern: CSR) -> CSR:
    """The pattern of A + I, columns sorted; ``pattern`` has no self-loops."""
    n = pattern.num_rows
    loops = torch.arange(n, device=pattern.device)
    indptr = pattern.indptr + torch.arange(n + 1, dtype=torch.int32, device=pattern.device)
    indices = torch.empty(pattern.nnz + n, dtype=torch.int32, device=pattern.device)
    for rows, entries in row_chunks(pattern, CHUNK):
        nodes = loops[rows]
        row = nodes.repeat_interleave(pattern.degrees()[rows], output_size=entries.stop - entries.start)
        key = torch.cat([row * n + pattern.indices[entries], nodes * n + nodes]).sort().values
        indices[entries.start + rows.start : entries.stop + rows.stop] = key % n
    return CSR(indptr, indices, None, pattern.num_cols)


def gcn_norm(pattern: CSR, dtype: torch.dtype = torch.float32) -> CSR:
    """P = D^-1/2 (A + I) D^-1/2 with D the degrees of A + I; symmetric, as A is."""
    looped = with_self_loops(pattern)
    scale = looped.degrees().to(torch.float64).rsqrt()
    values = torch.empty(looped.nnz, dtype=dtype, device=looped.device)
    for rows, entries in row_chunks(looped, CHUNK):
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
    """Cluster-GCN: the normalisation of the subgraph whose pattern, with self-loops, is ``block``.

    The pattern must be symmetric. Of the values only the dtype is read.
    """
    row, col = block.row_index(), block.indices
    compute_dtype = torch.promote_types(block.dtype, torch.float32)  # rounded once, at the end
    if kind == "gcn":
        scale = block.degrees().to(compute_dtype).clamp(min=1).rsqrt()
        values = (scale[row] * scale[col]).to(block.dtype)
        return CSR(block.indptr, col, values, block.num_cols, symmetric=block.symmetric)
    if kind == "sum":
        return CSR(block.indptr, col, torch.ones_like(block.data), block.num_cols, symmetric=True)
    if kind != "mean":
        raise ConfigError(f"expected a normalisation in {NORMALISATIONS} (got {kind!r})")
    neighbour = row != col
    inverse = (block.degrees() - 1).clamp(min=1).to(compute_dtype).reciprocal().to(block.dtype)
    mean = CSR(block.indptr, col, inverse[row] * neighbour, block.num_cols)
    # the pattern is symmetric, so the transpose has the same arrays with the weights of the other end
    transpose = CSR(block.indptr, col, inverse[col] * neighbour, block.num_cols)
    mean._cache["t",], transpose._cache["t",] = transpose, mean
    return mean
