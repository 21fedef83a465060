"""SAGE: the mean aggregator of "Inductive Representation Learning on Large Graphs", on whole neighbourhoods."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmc.errors import typed
from lmc.graph import CSR, Precomputed
from lmc.models.activation import Activation
from lmc.models.base import Layer, Model, configure, layer_shapes
from lmc.models.passes import Operator, Pass
from lmc.models.rows import Linear, first_rows, linear


class SAGELayer(Layer):
    """s^l = P t W_1 + b + t W_2 with t = dropout(h^{l-1}) and P = D^-1 A, the mean over the neighbours."""

    affine_of = ("sums", "rows")

    def __init__(self, in_width: int, out_width: int, dropout: float, activation: Activation | None) -> None:
        super().__init__()
        self.lin = Linear(in_width, out_width)
        self.lin_own = Linear(in_width, out_width, bias=False)
        self.out_width, self.activation, self.dropout = out_width, activation, dropout

    def forward(self, h: Tensor | CSR, P: Operator, p: Pass, h0: Tensor | CSR) -> Tensor:
        if isinstance(P, Precomputed):  # h is [P X | X]
            W = torch.cat([self.lin.weight, self.lin_own.weight], 1)
            return linear(h, W, self.lin.bias, p.core_of(h.shape[0]))
        t = self.drop(h, p)
        return self.lin.aggregate(P, t, p, clean=h) + self.lin_own(first_rows(t, P.num_outputs), p)


class SAGE(Model):
    """L layers that join the mean of a node's neighbours with the node itself; norm, ReLU and dropout between them.

    Departures: neighbours are not sampled, since sampling belongs to methods here, and rows are not scaled to unit
    length.

    The arguments are those of :class:`lmc.models.GCN`.
    """

    normalisation = "mean"
    keeps_features = True
    lin_in = act_in = lin_out = None

    @typed
    def __init__(
        self, in_width: int, hidden: int, out_width: int, num_layers: int = 2, dropout: float = 0.0,
        norm: str | None = None, *, input_dropout: float | bool = False, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        configure(self, in_width, out_width, dropout, input_dropout, hidden=hidden, num_layers=num_layers)
        self.layers = nn.ModuleList(
            SAGELayer(a, b, 0.0 if first else self.dropout, None if last else Activation(hidden, norm, self.dropout))
            for a, b, first, last in layer_shapes(in_width, hidden, out_width, num_layers)
        )
        # with dropout, the first layer has to read the same dropped features in both of its terms
        self.aggregates_features = self.input_dropout == 0
        self.reset_parameters(seed)
