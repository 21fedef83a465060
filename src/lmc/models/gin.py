"""GIN: "How Powerful are Graph Neural Networks?", with its MLP before the sum."""

from __future__ import annotations

from torch import Tensor, nn

from lmc.errors import typed
from lmc.graph import CSR
from lmc.models.activation import Activation
from lmc.models.base import Layer, Model, configure
from lmc.models.passes import Operator, Pass
from lmc.models.rows import Linear


class MLPActivation(Activation):
    """h = W_b relu(norm(W_a relu(norm(s)))): what follows a sum, and the MLP before the next one."""

    def __init__(self, width: int, norm: str | None) -> None:
        super().__init__(width, norm)
        self.lin_a = Linear(width, width)
        self.inner = Activation(width, norm)
        self.lin_b = Linear(width, width)

    def forward(self, s: Tensor, p: Pass) -> Tensor:
        return self.lin_b(self.inner(self.lin_a(super().forward(s, p), p), p), p)


class GINLayer(Layer):
    """s_i = (1 + eps) t_i + sum over neighbours j of t_j, with t = dropout(h^{l-1}); the MLP is in h."""

    def __init__(self, width: int, eps: float, dropout: float, activation: Activation) -> None:
        super().__init__()
        self.out_width, self.activation, self.dropout = width, activation, dropout
        self.eps = eps

    def forward(self, h: Tensor | CSR, P: Operator, p: Pass, h0: Tensor | CSR) -> Tensor:
        assert isinstance(h, Tensor)  # the features are always encoded
        t = self.drop(h, p)
        s = P(t, h)
        return s + self.eps * t[: P.num_outputs] if self.eps else s


class GIN(Model):
    """An MLP and a sum over the neighbours, L times; then norm, ReLU and a Linear out.

    Departure: the paper sums first, h^l = MLP(sum of h^{l-1}). Here each MLP is before its sum, so that the state in
    the histories is linear in the messages, and LMC4Conv is exact with exact histories. As functions of the graph the
    two differ by one MLP at each end.

    Args:
        eps: weight of a node's own message in addition to 1; fixed.

    The other arguments are those of :class:`lmc.models.GCN`.
    """

    normalisation = "sum"

    @typed
    def __init__(
        self, in_width: int, hidden: int, out_width: int, num_layers: int = 2, dropout: float = 0.0,
        norm: str | None = None, *, eps: float = 0.0, input_dropout: float | bool = False, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        configure(self, in_width, out_width, dropout, input_dropout, hidden=hidden, num_layers=num_layers)
        self.lin_in = Linear(in_width, hidden)
        self.act_in = Activation(hidden, norm)
        self.lin_first = Linear(hidden, hidden)
        self.lin_out = Linear(hidden, out_width)
        activations = [MLPActivation(hidden, norm) for _ in range(num_layers - 1)]
        self.layers = nn.ModuleList(
            GINLayer(hidden, float(eps), self.dropout, activation)
            for activation in [*activations, Activation(hidden, norm, self.dropout)]
        )
        self.reset_parameters(seed)

    def encode(self, x: Tensor | CSR, p: Pass) -> Tensor:
        return self.lin_first(super().encode(x, p), p)
