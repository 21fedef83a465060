"""APPNP: "Predict then Propagate: Graph Neural Networks meet Personalized PageRank"."""

from __future__ import annotations

from torch import Tensor, nn

from lmc.errors import check_within, typed
from lmc.graph import CSR
from lmc.models.activation import Activation, drop
from lmc.models.base import Layer, Model, configure
from lmc.models.passes import Operator, Pass
from lmc.models.rows import Linear


class APPNPLayer(Layer):
    """s^l = (1 - alpha) P s^{l-1} + alpha h^0: one step of personalised PageRank; no parameters."""

    def __init__(self, width: int, alpha: float) -> None:
        super().__init__()
        self.out_width, self.activation, self.dropout = width, None, 0.0
        self.alpha = alpha

    def forward(self, h: Tensor | CSR, P: Operator, p: Pass, h0: Tensor | CSR) -> Tensor:
        assert isinstance(h, Tensor)  # the features are always encoded
        assert isinstance(h0, Tensor)
        return P(h, h).lerp(h0[: P.num_outputs], self.alpha)


class APPNP(Model):
    """An MLP of two Linears predicts, h^0 = W_b dropout(relu(norm(W_a x))); L steps propagate with teleport.

    Departure: no dropout on the entries of P.

    Args:
        num_layers: L, the steps of propagation.
        alpha: the teleport probability.
        dropout: rate inside the MLP.

    The other arguments are those of :class:`lmc.models.GCN`.
    """

    reads_input = True
    lin_out = None

    @typed
    def __init__(
        self, in_width: int, hidden: int, out_width: int, num_layers: int = 10, dropout: float = 0.0,
        norm: str | None = None, *, alpha: float = 0.1, input_dropout: float | bool = False, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        configure(self, in_width, out_width, dropout, input_dropout, hidden=hidden, num_layers=num_layers)
        check_within("[0, 1]", alpha=alpha)
        self.lin_in = Linear(in_width, hidden)
        self.act_in = Activation(hidden, norm)
        self.lin_predict = Linear(hidden, out_width)
        self.layers = nn.ModuleList(APPNPLayer(out_width, alpha) for _ in range(num_layers))
        self.reset_parameters(seed)

    def encode(self, x: Tensor | CSR, p: Pass) -> Tensor:
        h = super().encode(x, p)
        return self.lin_predict(drop(h, self.dropout, p, self.training), p)

    @property
    def message_widths(self) -> dict[int, int]:
        return dict.fromkeys(range(1, self.num_layers + 1), self.out_width)
