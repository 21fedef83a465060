"""Random draws of nodes and edges: importance sampling and its weights, GraphSAINT's samplers, removal of edges.

All of them draw on the device from the CSR.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lmc.errors import ConfigError
from lmc.graph import CSR

NodeSampler = Callable[[torch.Generator], Tensor]
"""Draws nodes with replacement; gives the distinct ones, ascending."""


def draw_from(total: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """``size`` numbers drawn with replacement; ``total`` is the running sum of their chances, in float64."""
    uniform = torch.rand(size, dtype=torch.float64, device=total.device, generator=generator)
    # right=True: the first number whose sum exceeds the draw, so that a chance of zero is never drawn
    return torch.searchsorted(total, uniform * total[-1], right=True).clamp_(max=total.numel() - 1)


def importance_weights(chances: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Weights w [len(chances)] with E[w_i] = 1 where the chance is positive; at most ``size`` of them are not zero.

    w_i = (times i was drawn) / (size * q_i) with q the normalised chances. If ``size`` is at least the number of
    positive chances, nothing is estimated and their weights are 1. The host does not wait for a GPU.
    """
    candidates = chances > 0
    if size >= chances.numel():
        return candidates.to(chances.dtype)
    drawn = draw_from(chances.cumsum(0, dtype=torch.float64), size, generator)
    times = chances.new_zeros(chances.numel()).index_add_(0, drawn, chances.new_ones(size))
    weights = times * (chances.sum() / size) / chances.where(candidates, 1)
    return torch.where(candidates.sum() <= size, candidates.to(chances.dtype), weights)


class ColumnNorms:
    """|P[rows, u]|^2 of every column u without the diagonal: the weight of a node for other nodes."""

    def __init__(self, P: CSR) -> None:
        self.P = P
        there = P.row_index() != P.indices
        self._squares = P.data.square().where(there, 0)
        self.sums = P.data.new_zeros(P.num_rows).index_add_(0, P.row_index(), P.data.where(there, 0))
        """The sum of every row of P without the diagonal."""

    def of(self, entries: Tensor | None = None) -> Tensor:
        """Over the given entries of P, by default over all."""
        columns, squares = self.P.indices, self._squares
        if entries is not None:
            columns, squares = columns[entries], squares[entries]
        return squares.new_zeros(self.P.num_cols).index_add_(0, columns, squares)


class Nodes:
    """``size`` nodes in proportion to |P[:, v]|^2; where that is 0, to the mean over the other nodes.

    The loss of a node counts also where no row of P reads the node, as in SAGE, whose P has a diagonal of zeros.
    """

    def __init__(self, P: CSR, size: int) -> None:
        norms = torch.zeros(P.num_cols, dtype=torch.float64, device=P.device)
        norms.index_add_(0, P.indices, P.data.double().square())
        mean = norms[norms > 0].mean().nan_to_num(1.0)
        self._total = norms.where(norms > 0, mean).cumsum(0)
        self._size = size

    def __call__(self, generator: torch.Generator) -> Tensor:
        return _distinct(draw_from(self._total, self._size, generator), self._total.numel())


class Edges:
    """``size`` edges (u, v) in proportion to |w_uv| (1 / deg(u) + 1 / deg(v)); their ends are the nodes.

    deg(u) sums the weights of the edges that leave u, and deg(v) those of the edges that reach v.
    """

    def __init__(self, adj: CSR, size: int) -> None:
        if not adj.nnz:
            raise ConfigError('expected edges between training nodes for sampler="edge" (got none): use sampler="node"')
        self._adj, self._row, self._size = adj, adj.row_index(), size
        n, weight = adj.num_rows, torch.ones_like(adj.indices) if adj.values is None else adj.values.abs()
        weight = weight.double()
        sums = weight.new_zeros(2, n)
        sums[0].index_add_(0, self._row, weight)
        sums[1].index_add_(0, adj.indices, weight)
        into, out = sums.reciprocal().where(sums > 0, 0)
        self._total = (weight * (into[self._row] + out[adj.indices])).cumsum(0)

    def __call__(self, generator: torch.Generator) -> Tensor:
        drawn = draw_from(self._total, self._size, generator)
        return _distinct(torch.cat([self._row[drawn], self._adj.indices[drawn].long()]), self._adj.num_rows)


class Walks:
    """``size`` random walks of ``length`` steps from uniform roots; a walk stays at a node without neighbours.

    A step goes to a node that sends a message here, all with the same probability, whatever the weights: the counts of
    what walks meet correct for it.
    """

    def __init__(self, adj: CSR, size: int, length: int) -> None:
        self._adj, self._degrees, self._size, self._length = adj, adj.degrees().long(), size, length

    def __call__(self, generator: torch.Generator) -> Tensor:
        adj, device = self._adj, self._adj.device
        here = torch.randint(adj.num_rows, (self._size,), device=device, generator=generator)
        visited = [here]
        for _ in range(self._length if adj.nnz else 0):
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


def uniform_of_pairs(a: Tensor, b: Tensor, seed: int) -> Tensor:
    """A number in [0, 1) for every pair of int64 numbers: a hash of the pair and the seed (SplitMix64)."""
    x = torch.full_like(a, seed)
    for part in (a, b):
        x = x + part * -0x61C8864680B583EB
        for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1)):
            # the mask makes the shift of a negative number a logical one
            x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return ((x >> 11) & (2**53 - 1)).double() / 2**53


class Thinner:
    """Removes edges of one graph, each with the same probability; both directions of an undirected edge are removed
    together.

    Args:
        ids: numbers of the nodes; where they are given, whether an edge stays is a hash of the numbers of its ends.
    """

    def __init__(self, adj: CSR, ids: Tensor | None = None) -> None:
        self.adj, self._pairs = adj, None
        if ids is not None:
            row, col = ids[adj.row_index()], ids[adj.indices.long()]
            self._pairs = (torch.minimum(row, col), torch.maximum(row, col)) if adj.symmetric else (row, col)
            return
        if not adj.symmetric:
            self._up = self._down = torch.arange(adj.nnz, device=adj.device)
            return
        n, row, col = adj.num_rows, adj.row_index(), adj.indices.long()
        up, down = (row < col).nonzero().squeeze(1), (row > col).nonzero().squeeze(1)
        # the entries _up[k] and _down[k] are the two directions of edge k
        self._up = up[(row[up] * n + col[up]).argsort()]
        self._down = down[(col[down] * n + row[down]).argsort()]

    def __call__(self, p: float, generator: torch.Generator) -> CSR:
        """The graph without a share ``p`` of its edges."""
        device = self.adj.device
        if self._pairs is not None:
            keep = uniform_of_pairs(*self._pairs, generator.initial_seed()) >= p
        else:
            kept = torch.rand(self._up.numel(), device=device, generator=generator) >= p
            keep = torch.zeros(self.adj.nnz, dtype=torch.bool, device=device)
            keep[self._up], keep[self._down] = kept, kept
        thin = self.adj.filtered(keep)
        return replace(thin, symmetric=self.adj.symmetric)
