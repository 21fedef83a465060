"""What follows the aggregation of a layer, row by row: norm, ReLU and the dropout of the next layer."""

from __future__ import annotations

from typing import overload

import torch
from torch import Tensor, nn

from lmc.errors import ConfigError
from lmc.graph import CSR
from lmc.kernels.dropout import dropout, keep_mask, relu_dropout
from lmc.models.norms import BatchNorm, LayerNorm
from lmc.models.passes import Pass

NORMS = (None, "layer", "batch")


class Activated(Tensor):
    """Rows h that carry their version after dropout, because one kernel made both."""

    dropped: Tensor
    rate: float
    # operations on these rows give plain tensors
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class Activation(nn.Module):
    """norm, then ReLU; row by row.

    Args:
        dropout: the rate of the dropout that follows, where one follows. Its mask is then drawn together with the ReLU
            where that is cheaper, and :func:`drop` finds the result.
    """

    def __init__(self, width: int, norm: str | None, dropout: float = 0.0) -> None:
        super().__init__()
        self._dropout = dropout
        if norm not in NORMS:
            raise ConfigError(f"expected norm in {NORMS} (got {norm!r})")
        self.norm = None if norm is None else LayerNorm(width) if norm == "layer" else BatchNorm(width)

    def forward(self, s: Tensor, p: Pass) -> Tensor:
        s = s if self.norm is None else self.norm(s, p)
        if not (self.training and p.dropout and self._dropout):
            return s.relu()
        h, dropped = relu_dropout(s, self._dropout, p.generator)
        if dropped is None:
            return h
        activated = h.as_subclass(Activated)
        activated.dropped, activated.rate = dropped, self._dropout
        return activated


@overload
def drop(h: Tensor, rate: float, p: Pass, training: bool) -> Tensor: ...
@overload
def drop(h: Tensor | CSR, rate: float, p: Pass, training: bool) -> Tensor | CSR: ...
def drop(h: Tensor | CSR, rate: float, p: Pass, training: bool) -> Tensor | CSR:
    """h with dropout in training: the version that was drawn with its activation, or one drawn now.

    Of a sparse matrix, stored elements are dropped.
    """
    if not (training and p.dropout and rate):
        return h
    if isinstance(h, CSR):
        keep, scale = keep_mask(h.data, rate, p.generator)
        return CSR(h.indptr, h.indices, h.data * keep * scale, h.num_cols)
    if isinstance(h, Activated) and h.rate == rate:
        return h.dropped
    return dropout(h, rate, p.generator)
