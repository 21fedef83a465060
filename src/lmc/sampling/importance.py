"""Drawing with unequal chances, and the weights that make up for them."""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.graph import CSR
from lmc.graph.csr import row_entries


def weighted_draw(chances: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """``size`` numbers drawn with replacement, number i in proportion to chances[i]."""
    total = chances.cumsum(0, dtype=torch.float64)
    return draw_from(total, size, generator)


def draw_from(total: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """The same from the running sum of the chances, for chances that do not change."""
    uniform = torch.rand(size, dtype=torch.float64, device=total.device, generator=generator)
    # right: the first whose sum exceeds the draw, so that chances of zero are never met
    return torch.searchsorted(total, uniform * total[-1], right=True).clamp_(max=total.numel() - 1)


def importance_weights(chances: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Weights w [len(chances)] with E[w_i] = 1 where the chance is positive, at most ``size`` of them not zero.

    w_i = (times i was drawn) / (size * q_i) with q the normalised chances. Where ``size`` is no less than the number of
    candidates nothing needs to be drawn: all weights are 1.
    """
    candidates = chances > 0
    if size >= int(candidates.sum()):
        return candidates.to(chances.dtype)
    times = torch.bincount(weighted_draw(chances, size, generator), minlength=chances.numel())
    return (times * (chances.sum() / size) / chances.where(candidates, 1)).to(chances.dtype)


class ColumnNorms:
    """|P[rows, u]|^2 of every column u, the diagonal left out: how much a node matters to others."""

    def __init__(self, P: CSR) -> None:
        self.P = P
        self._squares = P.data.square().where(P.row_index() != P.indices, 0)

    def of(self, rows: Tensor | None = None) -> Tensor:
        """Over the given rows, by default over all."""
        columns, squares = self.P.indices, self._squares
        if rows is not None:
            entries, _ = row_entries(self.P, rows)
            columns, squares = columns[entries], squares[entries]
        return squares.new_zeros(self.P.num_cols).index_add_(0, columns, squares)
