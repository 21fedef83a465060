"""Subgraph sampling with unequal probabilities: nodes, edges or random walks, drawn on the device from the CSR.

Each sampler draws with replacement and returns the set of nodes it drew, ascending.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from lmc.graph import CSR
from lmc.sampling.importance import draw_from


class NodeSampler(Protocol):
    """Draws a set of nodes."""

    def __call__(self, generator: torch.Generator) -> Tensor: ...


class Nodes:
    """``size`` nodes in proportion to |P[:, v]|^2."""

    def __init__(self, P: CSR, size: int) -> None:
        norms = torch.zeros(P.num_cols, dtype=torch.float64, device=P.device)
        self._total = norms.index_add_(0, P.indices, P.data.double().square()).cumsum(0)
        self._size = size

    def __call__(self, generator: torch.Generator) -> Tensor:
        return _distinct(draw_from(self._total, self._size, generator), self._total.numel())


class Edges:
    """``size`` edges (u, v) in proportion to 1 / deg(u) + 1 / deg(v); their ends are the nodes."""

    def __init__(self, adj: CSR, size: int) -> None:
        self._adj, self._row, self._size = adj, adj.row_index(), size
        inverse = adj.degrees().double().reciprocal()
        self._total = (inverse[self._row] + inverse[adj.indices]).cumsum(0)

    def __call__(self, generator: torch.Generator) -> Tensor:
        drawn = draw_from(self._total, self._size, generator)
        return _distinct(torch.cat([self._row[drawn], self._adj.indices[drawn].long()]), self._adj.num_rows)


class Walks:
    """``size`` random walks of ``length`` steps from uniform roots; a walk stays at a node without neighbours."""

    def __init__(self, adj: CSR, size: int, length: int) -> None:
        self._adj, self._degrees, self._size, self._length = adj, adj.degrees().long(), size, length

    def __call__(self, generator: torch.Generator) -> Tensor:
        adj, device = self._adj, self._adj.device
        here = torch.randint(adj.num_rows, (self._size,), device=device, generator=generator)
        visited = [here]
        for _ in range(self._length):
            degree = self._degrees[here]
            uniform = torch.rand(self._size, dtype=torch.float64, device=device, generator=generator)
            step = torch.minimum((uniform * degree).long(), degree - 1).clamp_(min=0)
            entry = (adj.indptr[here] + step).clamp_(max=adj.nnz - 1)
            here = torch.where(degree > 0, adj.indices[entry].long(), here)
            visited.append(here)
        return _distinct(torch.cat(visited), adj.num_rows)


def _distinct(nodes: Tensor, num_nodes: int) -> Tensor:
    """The distinct nodes, ascending; a mask over all nodes is faster than sorting."""
    mask = torch.zeros(num_nodes, dtype=torch.bool, device=nodes.device)
    return mask.index_fill_(0, nodes, True).nonzero().squeeze(1)
