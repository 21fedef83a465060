"""GCN: "Semi-Supervised Classification with Graph Convolutional Networks"."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from lmc.errors import ConfigError, typed
from lmc.graph import CSR
from lmc.models.activation import Activation
from lmc.models.base import Layer, Model, configure, layer_shapes
from lmc.models.passes import Operator, Pass
from lmc.models.rows import Embedding, Linear


class GCNLayer(Layer):
    """s^l = P dropout(h^{l-1}) W + b, plus h^{l-1} with ``residual``."""

    def __init__(
        self, in_width: int, out_width: int, dropout: float, activation: Activation | None, residual: bool
    ) -> None:
        super().__init__()
        self.lin = Linear(in_width, out_width)
        self.out_width, self.activation, self.dropout = out_width, activation, dropout
        self.residual = residual
        self.affine_of = ("sums", "rows") if residual else ("sums",)

    def forward(self, h: Tensor | CSR, P: Operator, p: Pass, h0: Tensor | CSR) -> Tensor:
        s = self.lin.aggregate(P, self.drop(h, p), p, clean=h)
        if not self.residual:
            return s
        assert isinstance(h, Tensor)
        return s + h[: P.num_outputs]


class GCN(Model):
    """L layers of s = P h W + b with norm, ReLU and dropout between them.

    Args:
        in_width: feature width.
        hidden: width of the hidden layers.
        out_width: number of classes.
        num_layers: L, the number of aggregations.
        dropout: rate on the input of every layer but the first.
        input_dropout: rate on the features; True: the same rate. The first aggregation is then not constant.
        norm: None, "layer", "batch", or "batch-halo" (halo rows have a batch norm of their own), before each ReLU.
        residual: add each layer's hidden input to its output where the widths agree.
        linear_in: a Linear before the first aggregation.
        linear_out: a Linear after the last aggregation.
        input: "features", or "embedding": for a graph without features, one learned row of the width ``hidden`` per
            node, which the first layer aggregates.
        seed: of the initial parameters.
    """

    @typed
    def __init__(
        self, in_width: int, hidden: int, out_width: int, num_layers: int = 2, dropout: float = 0.0,
        norm: str | None = None, *, input_dropout: float | bool = False, residual: bool = False,
        linear_in: bool = False, linear_out: bool = False, input: Literal["features", "embedding"] = "features",
        seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        configure(self, in_width, out_width, dropout, input_dropout, hidden=hidden, num_layers=num_layers)
        embedded = input == "embedding"
        if embedded and linear_in:
            raise ConfigError(
                'expected linear_in or input="embedding" (got both): the embedding is a linear map already'
            )
        self.lin_in = Linear(in_width, hidden) if linear_in else Embedding(in_width, hidden) if embedded else None
        self.act_in = Activation(hidden, norm, self.dropout) if linear_in else None
        linear_in = linear_in or embedded
        # rows of the embedding are read through P by other rows, which weights behind P are not
        self.transforms_before_aggregating = embedded
        self.lin_out = Linear(hidden, out_width) if linear_out else None
        self.layers = nn.ModuleList()
        for a, b, first, last in layer_shapes(in_width, hidden, out_width, num_layers, linear_in, linear_out):
            activation = None if last else Activation(hidden, norm, self.dropout)
            # a residual joins hidden states; the features are no hidden state, and may be aggregated already
            residual_here = residual and not first and a == b
            # encode() drops the features, at the rate input_dropout
            self.layers.append(GCNLayer(a, b, 0.0 if first else self.dropout, activation, residual_here))
        self.aggregates_features = not linear_in
        self.reset_parameters(seed)
