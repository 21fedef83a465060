"""The matrices that PyG convolutions aggregate with, as they build them themselves from a graph's edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmc.errors import ConfigError
from lmc.graph import CSR
from lmc.graph.normalise import with_self_loops
from lmc.pyg.propagate_hook import Crossing, Deferred, taken_over

Call = Callable[[nn.Module, Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Recording:
    """Edges and weights that arrive at each ``propagate`` of a network given a graph; nothing is aggregated."""

    calls: list[tuple[Tensor, Tensor | None]]
    aggregations: list[str | None]

    @classmethod
    def of(
        cls,
        network: nn.Module,
        call: Call,
        crossings: tuple[Crossing, ...],
        adj: CSR,
        in_width: int,
        dtype: torch.dtype,
    ) -> Recording:
        """Run ``network`` once on the edges of ``adj``, with zeros for features and sums."""
        n, found = adj.num_rows, cls([], [])

        def propagate(convolution: Any, edge_index: Tensor, size: Any, kwargs: dict[str, Any]) -> Tensor:
            crossing = crossings[len(found.calls)]
            weight = None if crossing.weight is None else kwargs[crossing.weight]
            found.calls.append((edge_index, None if weight is None else weight.flatten()))
            found.aggregations.append(aggregation(convolution) if crossing.linear else None)
            return torch.zeros(n, *crossing.shape, dtype=dtype, device=adj.device)

        training = network.training
        network.eval()
        x = torch.zeros(1, in_width, dtype=dtype, device=adj.device).expand(n, -1)
        with torch.no_grad(), taken_over(network, propagate, lambda c, e, s, kwargs: Deferred(kwargs)):
            call(network, x, torch.stack([adj.indices.long(), adj.row_index()]))
        network.train(training)
        return found


def aggregation(convolution: Any) -> str | None:
    """ "sum" or "mean", or None for anything else."""
    name = convolution.aggr
    return {"add": "sum", "sum": "sum", "mean": "mean"}.get(name) if isinstance(name, str) else None


def matrix_of(adj: CSR, edges: Tensor, weight: Tensor | None, how: str | None, dtype: torch.dtype) -> CSR:
    """The matrix of a convolution's edges [source, target] on the pattern of A + I; zero on a diagonal it has not."""
    n, pattern = adj.num_rows, with_self_loops(adj)
    values = torch.ones(edges.shape[1], dtype=dtype, device=adj.device) if weight is None else weight.to(dtype)
    if how == "mean":
        values = values / torch.bincount(edges[1], minlength=n).to(dtype)[edges[1]]
    keys = pattern.row_index() * n + pattern.indices
    wanted = edges[1] * n + edges[0]
    position = torch.searchsorted(keys, wanted).clamp(max=keys.numel() - 1)
    if not bool((keys[position] == wanted).all()):
        raise ConfigError(
            "expected convolutions over the graph's edges (got others): they cannot be trained by batches"
        )
    entries = torch.zeros(keys.numel(), dtype=dtype, device=adj.device).index_add_(0, position, values)
    return CSR(pattern.indptr, pattern.indices, entries, n)


def symmetric(P: CSR) -> CSR:
    """The same matrix, said to be symmetric where it is."""
    if torch.equal(P.t().data, P.data):
        return CSR(P.indptr, P.indices, P.data, P.num_cols, symmetric=True)
    return P


def without_loops(block: CSR) -> CSR:
    """The pattern of A, from that of A + I."""
    bare = block.filtered(block.row_index() != block.indices)
    return CSR(bare.indptr, bare.indices, None, bare.num_cols, symmetric=True)
