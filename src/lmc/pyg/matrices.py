"""The matrices that PyG convolutions aggregate with on a graph.

A convolution decides by itself which edges it sums over and with which weights (self-loops, symmetric normalisation,
means, ...). :func:`matrix_of` turns what arrives at its ``propagate`` into a matrix of this library.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmc.errors import ConfigError
from lmc.graph import CSR
from lmc.graph.normalise import with_self_loops


class LayerEdges(NamedTuple):
    """What one ``propagate`` sums over: ``edges`` [2, E] as [source, target], a ``weight`` per edge, "sum" or "mean"
    (None where the convolution is not linear)."""

    edges: Tensor
    weight: Tensor | None
    aggregation: str | None

    def entries(self, num_nodes: int, dtype: torch.dtype) -> Tensor:
        """The entry of every edge in the matrix of a sum or mean over weighted edges."""
        src, dst = self.edges
        w = torch.ones(src.numel(), dtype=dtype, device=src.device) if self.weight is None else self.weight.to(dtype)
        return w / torch.bincount(dst, minlength=num_nodes).to(dtype)[dst] if self.aggregation == "mean" else w


def aggregation_of(convolution: Any) -> str | None:
    """ "sum" or "mean"; None for any other aggregation."""
    name = convolution.aggr
    return {"add": "sum", "sum": "sum", "mean": "mean"}.get(name) if isinstance(name, str) else None


def matrix_of(adj: CSR, layer: LayerEdges, dtype: torch.dtype) -> CSR:
    """The matrix of one layer, on the pattern of A + I; the diagonal is zero where the layer has no self-loops."""
    n, pattern = adj.num_rows, with_self_loops(adj)
    src, dst = layer.edges
    keys = pattern.row_index() * n + pattern.indices
    wanted = dst * n + src
    position = torch.searchsorted(keys, wanted).clamp(max=keys.numel() - 1)
    if not bool((keys[position] == wanted).all()):
        raise ConfigError(
            "expected convolutions over the graph's edges (got others): they cannot be trained by batches"
        )
    entries = torch.zeros(keys.numel(), dtype=dtype, device=adj.device).index_add_(0, position, layer.entries(n, dtype))
    return CSR(pattern.indptr, pattern.indices, entries, n)


def marked_symmetric(P: CSR) -> CSR:
    """The same matrix, marked as symmetric if it is."""
    back = P.t()
    if all(torch.equal(a, b) for a, b in ((back.indptr, P.indptr), (back.indices, P.indices), (back.data, P.data))):
        return CSR(P.indptr, P.indices, P.data, P.num_cols, symmetric=True)
    return P


def without_loops(block: CSR) -> CSR:
    """The pattern of A, from that of A + I."""
    bare = block.filtered(block.row_index() != block.indices)
    return CSR(bare.indptr, bare.indices, None, bare.num_cols, symmetric=True)
