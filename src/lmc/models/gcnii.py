"""GCNII: "Simple and Deep Graph Convolutional Networks"."""

from __future__ import annotations

import math

from torch import Tensor, nn

from lmc.errors import check_at_least, check_within, typed
from lmc.graph import CSR
from lmc.models.activation import Activation
from lmc.models.base import Layer, Model, configure
from lmc.models.passes import Operator, Pass
from lmc.models.rows import Linear


class GCNIILayer(Layer):
    """z = (1 - alpha) P h^{l-1} + alpha h^0;  s^l = (1 - beta_l) z + beta_l z W, beta_l = log(theta / l + 1).

    With ``shared_weights=False`` the two terms of z have a matrix each:
    s^l = (1 - beta_l) z + beta_l ((1 - alpha) P h^{l-1} W_1 + alpha h^0 W_2).
    """

    def __init__(
        self, width: int, alpha: float, beta: float, dropout: float, activation: Activation, residual: bool,
        shared_weights: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.lin = Linear(width, width, bias=False)
        self.lin0 = None if shared_weights else Linear(width, width, bias=False)
        self.out_width, self.activation, self.dropout = width, activation, dropout
        self.alpha, self.beta, self.residual = alpha, beta, residual

    def forward(self, h: Tensor | CSR, P: Operator, p: Pass, h0: Tensor | CSR) -> Tensor:
        assert isinstance(h, Tensor)  # the features are always encoded, so h and h0 are dense
        assert isinstance(h0, Tensor)
        initial = h0[: P.num_outputs]
        m = P(self.drop(h, p), h)
        z = m.lerp(initial, self.alpha)
        if self.lin0 is None:
            mixed = self.lin(z, p)
        else:
            mixed = self.lin(m, p).lerp(self.lin0(initial, p), self.alpha)
        s = z.lerp(mixed.to(z.dtype), self.beta)  # autocast narrows the products
        return s + h[: P.num_outputs] if self.residual else s


class GCNII(Model):
    """A Linear in, L layers with initial residual and identity mapping, a Linear out.

    Args:
        alpha: share of the encoded input h^0 in every layer.
        theta: strength of the weights; layer l mixes them in with beta_l = log(theta / l + 1).
        shared_weights: one matrix for the message and the encoded input, as in the paper's equation; else two.
        residual: add each layer's input to its output as well.

    The other arguments are those of :class:`lmc.models.GCN`.
    """

    reads_input = True

    @typed
    def __init__(
        self, in_width: int, hidden: int, out_width: int, num_layers: int = 4, dropout: float = 0.0,
        norm: str | None = None, *, alpha: float = 0.1, theta: float = 0.5, input_dropout: float | bool = False,
        residual: bool = False, shared_weights: bool = True, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        configure(self, in_width, out_width, dropout, input_dropout, hidden=hidden, num_layers=num_layers)
        check_within("[0, 1]", alpha=alpha)
        check_at_least(0, theta=theta)
        self.lin_in = Linear(in_width, hidden)
        self.act_in = Activation(hidden, None, self.dropout)
        self.lin_out = Linear(hidden, out_width)
        self.layers = nn.ModuleList()
        for l in range(1, num_layers + 1):
            beta, activation = math.log(theta / l + 1), Activation(hidden, norm, self.dropout)
            self.layers.append(GCNIILayer(hidden, alpha, beta, self.dropout, activation, residual, shared_weights))
        self.reset_parameters(seed)
