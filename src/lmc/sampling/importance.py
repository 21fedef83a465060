"""Importance sampling: draws with unequal probabilities, and the weights that correct for them."""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.graph import CSR


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
