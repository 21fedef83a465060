"""SAGE: the mean aggregator of "Inductive Representation Learning on Large Graphs", on whole neighbourhoods."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmc.graph import CSR, Precomputed
from lmc.models.base import Activation, Layer, Model
from lmc.models.rows import Linear, Operator, Pass, linear


class SAGELayer(Layer):
    """s^l = P t W_1 + b + t W_2 with t = dropout(h^{l-1}) and P = D^-1 A, the mean over the neighbours."""

    def __init__(self, in_width: int, out_width: int, dropout: float, activation: Activation | None) -> None:
        super().__init__()
        self.lin = Linear(in_width, out_width)
        self.lin_own = Linear(in_width, out_width, bias=False)
        self.activation = activation
        self.out_width = out_width
        self.dropout = dropout

    def forward(self, h: Tensor | CSR, P: Operator, p: Pass, h0: Tensor | CSR) -> Tensor:
        if isinstance(P, Precomputed):  # h is [P X | X]
            return linear(h, torch.cat([self.lin.weight, self.lin_own.weight], 1), self.lin.bias, p)
        t = self.drop(h, p)
        own = t.leading(P.num_outputs) if isinstance(t, CSR) else t[: P.num_outputs]
        return self.lin.aggregate(P, t, p, clean=h) + self.lin_own(own, p)


class SAGE(Model):
    """L layers that join the mean of a node's neighbours with the node itself; norm, ReLU and dropout between them.

    Departure: no sampling of neighbours and no scaling of rows to unit length; sampling is a method's matter here.

    The arguments are those of :class:`lmc.models.GCN`.
    """

    normalisation = "mean"
    keeps_features = True
    lin_in = act_in = lin_out = None

    def __init__(
        self,
        in_width: int,
        hidden: int,
        out_width: int,
        num_layers: int = 2,
        dropout: float = 0.0,
        norm: str | None = None,
        *,
        input_dropout: float | bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._set_up(in_width, hidden, out_width, num_layers, dropout, input_dropout)
        self.layers = nn.ModuleList()
        for l in range(1, num_layers + 1):
            first, last = l == 1, l == num_layers
            self.layers.append(
                SAGELayer(
                    in_width if first else hidden,
                    out_width if last else hidden,
                    0.0 if first else self.dropout,
                    None if last else Activation(hidden, norm, self.dropout),
                )
            )
        self.reset_parameters(seed)

    @property
    def constant_input(self) -> bool:
        """Yes, unless the features are dropped out before they are aggregated."""
        return self.input_dropout == 0
