"""PNA: "Principal Neighbourhood Aggregation for Graph Nets"."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmc.errors import check_positive, typed
from lmc.graph import CSR
from lmc.graph.csr import cached
from lmc.models.activation import Activation
from lmc.models.base import Layer, Model, configure, layer_shapes
from lmc.models.passes import CompletesRows, Operator, Pass
from lmc.models.rows import Linear, first_rows

AGGREGATORS = ("mean", "max", "min", "std")


class PNALayer(Layer):
    """s_i = W [t_i | S(d_i) x (mean, max, min, std of u_j over the neighbours j)] + b with u = t U, t = dropout(h).

    S(d) = (1, log(d + 1) / delta, delta / log(d + 1)) are the scalers, d the degree in the whole graph. Mean and
    standard deviation are sparse products; maximum and minimum read a row per edge.
    """

    affine = False
    linear = False

    def __init__(
        self, in_width: int, out_width: int, width: int, delta: float, dropout: float, activation: Activation | None
    ) -> None:
        super().__init__()
        self.lin_message = Linear(in_width, width)
        self.lin_own = Linear(in_width, out_width)
        self.lin = Linear(3 * len(AGGREGATORS) * width, out_width, bias=False)
        self.out_width, self.activation, self.dropout = out_width, activation, dropout
        self.delta = delta

    def forward(self, h: Tensor | CSR, P: Operator, p: Pass, h0: Tensor | CSR) -> Tensor:
        assert isinstance(P, CompletesRows)
        t = self.drop(h, p)
        P, (u,) = P.complete(self.lin_message(t, p.before_aggregation))
        mean = P(u)
        std = ((P(u * u) - mean * mean).relu() + 1e-5).sqrt()
        m = torch.cat([mean, *_extremes(P.forward, u), std], 1)
        log_degree = (_degrees(P.forward) + 1).log().unsqueeze(1)
        up = log_degree / self.delta
        # a node without neighbours has nothing to scale
        down = torch.where(log_degree > 0, self.delta / log_degree, 0)
        return self.lin(torch.cat([m, m * up, m * down], 1), p) + self.lin_own(first_rows(t, P.num_outputs), p)


def _degrees(A: CSR) -> Tensor:
    """Degrees in the whole graph: the entries of row i of D^-1 A are 1 / d_i, or zero on the diagonal."""
    top = A.data.new_zeros(A.num_rows).scatter_reduce(0, A.row_index(), A.data, "amax")
    return torch.where(top > 0, 1 / top, 0)


@cached
def _off_diagonal(A: CSR) -> tuple[Tensor, Tensor]:
    """Row and column of every stored entry off the diagonal; cached, since counting them waits for the GPU."""
    row = A.row_index()
    off = row != A.indices
    return row[off], A.indices[off]


def _extremes(A: CSR, u: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum and minimum over the neighbours in the batch; zero where there are none."""
    row, col = _off_diagonal(A)
    messages = u.index_select(0, col)
    index = row.unsqueeze(1).expand_as(messages)
    zeros = u.new_zeros(A.num_rows, u.shape[1])
    high, low = (zeros.scatter_reduce(0, index, messages, how, include_self=False) for how in ("amax", "amin"))
    return high, low


class PNA(Model):
    """L layers with four aggregators and three scalers; norm, ReLU and dropout between them.

    Departures: the message is a Linear of the neighbour alone (the part of the node itself is in ``lin_own``), and
    there is one tower. Maximum, minimum and deviation of an incomplete neighbourhood have other Jacobians than those of
    the whole one, so LMC4Conv is not exact for halo rows with exact histories; core rows are exact.

    Args:
        width: of a message; by default a quarter of ``hidden``, at least 1.
        delta: mean over the training nodes of log(d + 1), the unit of the scalers.

    The other arguments are those of :class:`lmc.models.GCN`.
    """

    normalisation = "mean"
    transforms_before_aggregating = True
    lin_in = act_in = lin_out = None

    @typed
    def __init__(
        self, in_width: int, hidden: int, out_width: int, num_layers: int = 2, dropout: float = 0.0,
        norm: str | None = None, *, width: int | None = None, delta: float = 1.0,
        input_dropout: float | bool = False, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        width = max(1, hidden // 4) if width is None else width
        configure(self, in_width, out_width, dropout, input_dropout, hidden=hidden, num_layers=num_layers, width=width)
        check_positive(delta=delta)
        self.layers = nn.ModuleList()
        for a, b, first, last in layer_shapes(in_width, hidden, out_width, num_layers):
            activation = None if last else Activation(hidden, norm, self.dropout)
            self.layers.append(PNALayer(a, b, width, delta, 0.0 if first else self.dropout, activation))
        self.reset_parameters(seed)
