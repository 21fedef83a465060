"""GCNII: "Simple and Deep Graph Convolutional Networks"."""

from __future__ import annotations

import math

from torch import Tensor, nn

from lmc.errors import ConfigError
from lmc.graph import CSR
from lmc.models.base import Activation, Layer, Model
from lmc.models.rows import Linear, Operator, Pass


class GCNIILayer(Layer):
    """z = (1 - alpha) P h^{l-1} + alpha h^0;  s^l = (1 - beta_l) z + beta_l z W, beta_l = log(theta / l + 1).

    With ``shared_weights=False`` the two terms of z have a matrix each:
    s^l = (1 - beta_l) z + beta_l ((1 - alpha) P h^{l-1} W_1 + alpha h^0 W_2).
    """

    def __init__(
        self,
        width: int,
        alpha: float,
        beta: float,
        dropout: float,
        activation: Activation,
        residual: bool,
        shared_weights: bool,
    ) -> None:
        super().__init__()
        self.lin = Linear(width, width, bias=False)
        self.lin0 = None if shared_weights else Linear(width, width, bias=False)
        self.activation = activation
        self.out_width = width
        self.alpha, self.beta, self.dropout, self.residual = alpha, beta, dropout, residual

    def forward(self, h: Tensor | CSR, P: Operator, p: Pass, h0: Tensor | CSR) -> Tensor:
        t = self.drop(h, p)
        assert isinstance(h, Tensor)  # the features are always encoded, so h and h0 are dense
        assert isinstance(h0, Tensor)
        assert isinstance(t, Tensor)
        initial = h0[: P.num_outputs]
        m = P(t, h)
        z = m.lerp(initial, self.alpha)
        if self.lin0 is None:
            s = z.lerp(self.lin(z, p), self.beta)
        else:
            mixed = self.lin(m, p).lerp(self.lin0(initial, p), self.alpha)
            s = z.lerp(mixed, self.beta)
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

    def __init__(
        self,
        in_width: int,
        hidden: int,
        out_width: int,
        num_layers: int = 4,
        dropout: float = 0.0,
        norm: str | None = None,
        *,
        alpha: float = 0.1,
        theta: float = 0.5,
        input_dropout: float | bool = False,
        residual: bool = False,
        shared_weights: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._set_up(in_width, hidden, out_width, num_layers, dropout, input_dropout)
        if not 0 <= alpha <= 1:
            raise ConfigError(f"expected alpha in [0, 1] (got {alpha})")
        if theta < 0:
            raise ConfigError(f"expected theta of at least 0 (got {theta})")
        self.lin_in = Linear(in_width, hidden)
        self.act_in = Activation(hidden, None, self.dropout)
        self.lin_out = Linear(hidden, out_width)
        self.layers = nn.ModuleList(
            GCNIILayer(
                hidden,
                alpha,
                math.log(theta / l + 1),
                self.dropout,
                Activation(hidden, norm, self.dropout),
                residual,
                shared_weights,
            )
            for l in range(1, num_layers + 1)
        )
        self.reset_parameters(seed)
