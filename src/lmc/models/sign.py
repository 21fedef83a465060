"""SIGN: "SIGN: Scalable Inception Graph Neural Networks"."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from lmc.errors import typed
from lmc.graph import CSR
from lmc.models.activation import Activation, drop
from lmc.models.base import Layer, Model, configure
from lmc.models.passes import Operator, Pass
from lmc.models.rows import Linear, linear


class Hop(Layer):
    """One more aggregation of every block but the first ``l``: block r ends as P^r X Theta_r. No parameters."""

    def __init__(self, l: int, hidden: int, num_layers: int) -> None:
        super().__init__()
        self.out_width, self.activation, self.dropout = (num_layers + 1) * hidden, None, 0.0
        self.done = l * hidden

    def forward(self, h: Tensor | CSR, P: Operator, p: Pass, h0: Tensor | CSR) -> Tensor:
        assert isinstance(h, Tensor)  # the features are always encoded
        # all columns, although the first are not needed: operators that store rows store whole ones
        return torch.cat([h[: P.num_outputs, : self.done], P(h)[:, self.done :]], 1)


class SIGN(Model):
    """An MLP on aggregated features: logits = MLP(act(X Theta_0 | P X Theta_1 | ... | P^k X Theta_k)).

    P^r (X Theta_r) = (P^r X) Theta_r, so for most methods this is a model of k parameter-free layers between a Linear
    and an MLP. The method :class:`lmc.methods.SIGN` computes P^r X once and trains on rows alone (:meth:`of_hops`).

    Args:
        num_layers: k, the number of aggregations.
        dropout: rate on the rows the MLP reads.
        mlp_layers: Linears of the MLP.

    The other arguments are those of :class:`lmc.models.GCN`.
    """

    act_in = None
    lin_in: Linear
    lin_out: Linear

    @typed
    def __init__(
        self, in_width: int, hidden: int, out_width: int, num_layers: int = 2, dropout: float = 0.0,
        norm: str | None = None, *, input_dropout: float | bool = False, mlp_layers: int = 1, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        sizes = {"hidden": hidden, "num_layers": num_layers, "mlp_layers": mlp_layers}
        configure(self, in_width, out_width, dropout, input_dropout, **sizes)
        self.hidden = hidden
        joined = (num_layers + 1) * hidden
        self.lin_in = Linear(in_width, joined, bias=False)
        self.layers = nn.ModuleList(Hop(l, hidden, num_layers) for l in range(1, num_layers + 1))
        self.act = Activation(joined, norm)
        widths = [joined, *[hidden] * (mlp_layers - 1)]
        self.inner = nn.ModuleList(Linear(a, b) for a, b in pairwise(widths))
        self.acts = nn.ModuleList(Activation(b, norm) for b in widths[1:])
        self.lin_out = Linear(widths[-1], out_width)
        self.reset_parameters(seed)

    def reset_parameters(self, seed: int) -> None:
        super().reset_parameters(seed)
        # Glorot's bound for each Theta_r separately, not for all of them as one matrix
        both = self.in_width + self.lin_in.weight.shape[0]
        with torch.no_grad():
            self.lin_in.weight.mul_((both / (self.in_width + self.hidden)) ** 0.5)

    def of_hops(self, hops: Sequence[Tensor | CSR], p: Pass) -> Tensor:
        """Logits from the rows of X, P X, ..., P^k X, row by row and without a graph."""
        joined = []
        for x, theta in zip(hops, self.lin_in.weight.split(self.hidden), strict=True):
            x = drop(x, self.input_dropout, p, self.training)
            joined.append(linear(x, theta, None, p.core_of(x.shape[0])))
        return self.decode(torch.cat(joined, 1), p)

    def decode(self, h: Tensor, p: Pass) -> Tensor:
        t = self.act(h, p)
        for inner, act in zip(self.inner, self.acts, strict=True):
            t = act(inner(drop(t, self.dropout, p, self.training), p), p)
        return self.lin_out(drop(t, self.dropout, p, self.training), p)
