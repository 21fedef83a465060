"""The matrices that PyG convolutions aggregate with on a graph.

A convolution decides by itself which edges it sums over and with which weights (self-loops, symmetric normalisation,
means, ...). :func:`matrix_of` turns what arrives at its ``propagate`` into a matrix of this library.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmc.errors import ConfigError
from lmc.graph import CSR
from lmc.graph.normalise import with_self_loops


class LayerEdges(NamedTuple):
    """What one ``propagate`` sums over: ``edges`` [2, E] as [source, target], a ``weight`` per edge, "sum" or "mean"
    (None where the convolution is not linear), and the edge ``features`` [E, k] that its messages read."""

    edges: Tensor
    weight: Tensor | None
    aggregation: str | None
    features: Tensor | None = None

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
    """The matrix of one layer, on the pattern of A + I; the diagonal is zero where the layer has no self-loops.

    Its edge data are the weights and features of the graph's edges, and the features that the layer gives to loops.
    """
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
    if layer.aggregation is None and layer.weight is not None and not bool((entries[position] != 0).all()):
        raise ConfigError(
            "expected edge weights other than 0 where messages are not summed (got 0): remove these edges, or use "
            "convolutions that sum"
        )
    features = pattern.edge_data
    if features is not None and layer.features is not None:
        features = features.to(dtype).index_copy(0, position, layer.features.to(dtype))
    data = [part for part in (pattern.values, features) if part is not None]
    joined = torch.cat([part.to(dtype).view(keys.numel(), -1) for part in data], 1) if len(data) == 2 else None
    return CSR(pattern.indptr, pattern.indices, entries, n, edge_data=data[0].to(dtype) if len(data) == 1 else joined)


def same_entries(a: CSR, b: CSR) -> bool:
    """Whether two matrices of one pattern have the same values and edge data."""
    if not torch.equal(a.data, b.data):
        return False
    return a.edge_data is b.edge_data is None or bool(torch.equal(a.edge_data, b.edge_data))  # type: ignore[arg-type]


def marked_symmetric(P: CSR) -> CSR:
    """The same matrix, marked as symmetric if it is."""
    back = P.t()
    if all(torch.equal(a, b) for a, b in ((back.indptr, P.indptr), (back.indices, P.indices), (back.data, P.data))):
        return replace(P, symmetric=True)
    return P


def without_loops(block: CSR) -> CSR:
    """The pattern of A, from that of A + I."""
    bare = block.filtered(block.row_index() != block.indices)
    return CSR(bare.indptr, bare.indices, None, bare.num_cols, symmetric=True)
