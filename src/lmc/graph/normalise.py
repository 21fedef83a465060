"""The aggregation matrices P built from a graph's structure."""

from __future__ import annotations

import torch

from lmc.graph.csr import CSR, from_rows


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


def renormalise(block: CSR) -> CSR:
    """Cluster-GCN: the GCN normalisation of the subgraph that ``block`` is the pattern of, self-loops included."""
    scale = block.degrees().to(block.dtype).clamp(min=1).rsqrt()
    values = scale[block.row_index()] * scale[block.indices]
    return CSR(block.indptr, block.indices, values, block.num_cols, symmetric=block.symmetric)
