"""The aggregation matrices P built from a graph's structure.

All of them store the pattern of A + I, the diagonal too where it is zero, so that halos, degrees and blocks do not
depend on which of them a model reads.
"""

from __future__ import annotations

import torch

from lmc.errors import ConfigError
from lmc.graph.csr import CSR, from_rows

NORMALISATIONS = ("gcn", "mean", "sum")
"""D^-1/2 (A + I) D^-1/2; D^-1 A with D the degrees of A; A + I. The second is not its own transpose."""


def with_self_loops(pattern: CSR) -> CSR:
    """The pattern of A + I, columns sorted; ``pattern`` has no self-loops."""
    n = pattern.num_rows
    loops = torch.arange(n, device=pattern.device)
    key = torch.cat([pattern.row_index() * n + pattern.indices, loops * n + loops]).sort().values
    return from_rows(key // n, key % n, None, pattern.shape)


def gcn_norm(pattern: CSR, dtype: torch.dtype = torch.float32) -> CSR:
    """P = D^-1/2 (A + I) D^-1/2 with D the degrees of A + I; symmetric, as A is."""
    looped = with_self_loops(pattern)
    scale = looped.degrees().to(torch.float64).rsqrt()
    values = scale[looped.row_index()] * scale[looped.indices]
    return CSR(looped.indptr, looped.indices, values.to(dtype), looped.num_cols, symmetric=True)


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
