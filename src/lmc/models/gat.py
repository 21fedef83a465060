"""GAT: "Graph Attention Networks", exact under LMC4Conv with the softmax normaliser as one more history."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmc.errors import ConfigError, typed
from lmc.graph import CSR, WithStoredHalo, spmm
from lmc.models.activation import Activation
from lmc.models.base import Layer, Model, configure, layer_shapes
from lmc.models.passes import CompletesRows, Operator, Pass
from lmc.models.rows import Bias, Linear, Resettable, glorot

LOG_ZERO = -1e4
"""The logarithm of an empty sum, as a finite number: histories mix it with others."""


class _Weighted(torch.autograd.Function):
    """m_i = sum over the entries (i, j) of A of w_ij t_j, for one head, by sparse products, without a row per edge."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, w: Tensor, A: CSR, row: Tensor) -> Tensor:
        ctx.save_for_backward(t, w, row)
        ctx.A = A
        return spmm(CSR(A.indptr, A.indices, w, A.num_cols), t)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        t, w, row = ctx.saved_tensors
        g, A = grads[0].contiguous(), ctx.A
        back, order = A.transposed_order()
        dt = spmm(CSR(back.indptr, back.indices, w[order], back.num_cols), g)
        dw = (g.index_select(0, row) * t.index_select(0, A.indices)).sum(1)
        return dt, dw, None, None


class Attention(Resettable):
    """u_src = t a_src and u_dst = t a_dst for every head; both parameters take their gradient from core rows."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.src = nn.Parameter(torch.zeros(heads, width))
        self.dst = nn.Parameter(torch.zeros(heads, width))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for a in (self.src, self.dst):
            glorot(a, generator)

    def forward(self, t: Tensor, p: Pass) -> tuple[Tensor, Tensor]:
        c = p.core_of(t.shape[0])

        def scores(a: Tensor) -> Tensor:
            core = (t[:c] * a).sum(-1)
            return torch.cat([core, (t[c:] * a.detach()).sum(-1)]) if c < t.shape[0] else core

        return scores(self.src), scores(self.dst)


class Heads(Activation):
    """[m | log Z] -> the concatenated heads plus bias, then norm and ELU; in the last layer the mean of the heads plus
    bias."""

    def __init__(self, heads: int, width: int, norm: str | None, last: bool) -> None:
        joined = width if last else heads * width
        super().__init__(joined, None if last else norm)
        self.bias = Bias(joined)
        self.heads, self.width, self.last = heads, width, last

    def forward(self, s: Tensor, p: Pass) -> Tensor:
        m = s[:, : self.heads * self.width]
        if self.last:
            return self.bias(m.view(-1, self.heads, self.width).mean(1), p)
        m = self.bias(m, p)
        return F.elu(m if self.norm is None else self.norm(m, p))


class GATLayer(Layer):
    """t = dropout(h^{l-1}) W;  e_ij = leaky_relu(u_src,j + u_dst,i);  m_i = sum_j exp(e_ij - log Z_i) t_j.

    The state is s^l = [m | log Z], Z_i = sum_j exp(e_ij), for every head. A batch does not contain all neighbours of a
    halo row, so neither its Z nor its m can be computed. Both are in the history. With them as constants M and Z,

        m_i = sum_{j in ext} w_ij t_j + (1 - sum_{j in ext} w_ij) M_i,   w_ij = exp(e_ij - log Z_i),

    has the Jacobian of the complete row, dm_i/de_ij = w_ij (t_j - M_i): with exact histories LMC4Conv is exact. A
    stored log Z_i that is smaller than the sum over the batch alone is out of date, and is raised to that sum.
    """

    affine = False
    linear = False
    completes_halo = True

    def __init__(
        self, in_width: int, heads: int, width: int, dropout: float, slope: float, activation: Activation
    ) -> None:
        super().__init__()
        self.lin = Linear(in_width, heads * width, bias=False)
        self.attention = Attention(heads, width)
        self.out_width, self.activation, self.dropout = heads * width + heads, activation, dropout
        self.heads, self.width, self.slope = heads, width, slope

    def forward(self, h: Tensor | CSR, P: Operator, p: Pass, h0: Tensor | CSR) -> Tensor:
        assert isinstance(P, CompletesRows)
        q = p.before_aggregation
        t = self.lin(self.drop(h, p), q)
        src, dst = self.attention(t.view(-1, self.heads, self.width), q)
        P, (t, src) = P.complete(t, src)
        A = P.forward
        row, col = A.row_index(), A.indices
        e = F.leaky_relu(src.index_select(0, col) + dst.index_select(0, row), self.slope)
        log_z = log_sum_exp(e, row, A.num_rows)
        if isinstance(P, WithStoredHalo):
            stored = P.stored_halo[:, -self.heads :]
            c = A.num_rows - stored.shape[0]
            log_z = torch.cat([log_z[:c], torch.maximum(stored, log_z[c:].detach())])
        w = (e - log_z.index_select(0, row)).exp()
        heads = [head.contiguous() for head in t.split(self.width, 1)]
        m = torch.cat([_Weighted.apply(head, w[:, k].contiguous(), A, row) for k, head in enumerate(heads)], 1)
        if isinstance(P, WithStoredHalo):
            m = torch.cat([m[:c], m[c:] + self._outside(w, row, c, P.stored_halo)])
        return torch.cat([m, log_z], 1)

    def _outside(self, w: Tensor, row: Tensor, c: int, stored_halo: Tensor) -> Tensor:
        """(1 - sum_j w_ij) M_i for the halo rows: the messages from outside ext."""
        inside = w.new_zeros(c + stored_halo.shape[0], self.heads).index_add(0, row, w)[c:]
        M = stored_halo[:, : -self.heads].view(-1, self.heads, self.width)
        return ((1 - inside).unsqueeze(2) * M).flatten(1)


def log_sum_exp(e: Tensor, row: Tensor, num_rows: int) -> Tensor:
    """log of the sum over the entries of each row of exp(e), per column; LOG_ZERO for a row without entries."""
    index = row.unsqueeze(1).expand_as(e)
    top = e.new_full((num_rows, e.shape[1]), -torch.inf).scatter_reduce(0, index, e.detach(), "amax")
    total = torch.zeros_like(top).index_add(0, row, (e - top.index_select(0, row)).exp())
    return torch.where(top > -torch.inf, top + total.log(), LOG_ZERO)


class GAT(Model):
    """L layers of attention over the neighbours and the node itself, with norm, ELU and dropout between them.

    Departure: no dropout on the attention weights. A hidden layer concatenates ``heads`` heads of width
    ``hidden / heads``; the last layer takes the mean of heads of width ``out_width``.

    Args:
        heads: attention heads of every layer; divides ``hidden``.
        negative_slope: of the leaky ReLU.

    The other arguments are those of :class:`lmc.models.GCN`.
    """

    normalisation = "sum"
    transforms_before_aggregating = True
    lin_in = act_in = lin_out = None

    @typed
    def __init__(
        self, in_width: int, hidden: int, out_width: int, num_layers: int = 2, dropout: float = 0.0,
        norm: str | None = None, *, heads: int = 1, negative_slope: float = 0.2,
        input_dropout: float | bool = False, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        configure(self, in_width, out_width, dropout, input_dropout, hidden=hidden, num_layers=num_layers, heads=heads)
        if hidden % heads:
            raise ConfigError(f"expected heads that divide hidden = {hidden} (got {heads}): change one of them")
        self.layers = nn.ModuleList()
        for a, _, first, last in layer_shapes(in_width, hidden, out_width, num_layers):
            width = out_width if last else hidden // heads
            activation = Heads(heads, width, norm, last)
            self.layers.append(GATLayer(a, heads, width, 0.0 if first else self.dropout, negative_slope, activation))
        self.reset_parameters(seed)
