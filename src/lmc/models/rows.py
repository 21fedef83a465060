"""Row-wise linear maps whose parameters take their gradient from core rows only.

Theorem 1 holds for any decomposition of a network into layers, so every row-wise map with parameters is treated as a
layer of its own. Each map computes all rows at once and passes the adjoint of every row on; only the sum over rows that
makes a parameter's gradient ends at the last core row. No map is run twice.

These sums are the gradients of the paper: (18) for the parameters of the decoder, (19) for those of the layers, and
(10), (11) with exact adjoints. They lack the factor b/c, which :meth:`lmc.engine.Run.accumulate` applies. For LMC4Conv
the rows of P t W^T + b are (12) and (14), and the adjoints that a map passes on are (15) and (17)
(:mod:`lmc.methods.lmc4conv`); (13) and (16) mix them between two layers (:mod:`lmc.methods.compensation`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lmc.graph import CSR, Aggregation, Precomputed, spmm
from lmc.kernels.sums import column_sums
from lmc.models.passes import Operator, Pass, TakesWeights


def linear(t: Tensor | CSR, W: Tensor, b: Tensor | None, num_core: int) -> Tensor:
    """t W^T + b; W and b take their gradient from the first ``num_core`` rows. A sparse t is a constant."""
    return _Linear.apply(t, W, b, num_core)


def scale_and_shift(x: Tensor, scale: Tensor, shift: Tensor, num_core: int) -> Tensor:
    """x * scale + shift, column by column; both take their gradient from the first ``num_core`` rows."""
    return _ScaleAndShift.apply(x, scale, shift, num_core)


def add_bias(x: Tensor, b: Tensor, num_core: int) -> Tensor:
    """x + b; b takes its gradient from the first ``num_core`` rows."""
    return _AddBias.apply(x, b, num_core)


def as_rows(W: Tensor, t: Tensor | CSR) -> Tensor:
    """Parameters in the dtype of the rows they multiply."""
    return W.to(t.dtype)


def outer(g: Tensor, t: Tensor | CSR) -> Tensor:
    """g^T t, the gradient of weights; for bfloat16 rows it is the float32 result in which it is accumulated."""
    if isinstance(t, CSR):
        return spmm(t.t(), g.to(t.dtype).contiguous()).t()
    if t.dtype != torch.bfloat16:
        return g.t() @ t
    return torch.mm(g.t(), t, out_dtype=torch.float32) if t.is_cuda else g.float().t() @ t.float()


def first_rows(t: Tensor | CSR, rows: int) -> Tensor | CSR:
    """The first rows of a dense or sparse matrix."""
    return t.leading(rows) if isinstance(t, CSR) else t[:rows]


def _times(t: Tensor | CSR, W: Tensor) -> Tensor:
    return spmm(t, W.t().contiguous()) if isinstance(t, CSR) else t @ W.t()


def _save(ctx: Any, t: Tensor | CSR, W: Tensor) -> None:
    ctx.sparse = t if isinstance(t, CSR) else None
    ctx.save_for_backward(W, None if isinstance(t, CSR) else t)


def _saved(ctx: Any) -> tuple[Tensor | CSR, Tensor]:
    W, t = ctx.saved_tensors
    return ctx.sparse if t is None else t, W


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor | CSR, W: Tensor, b: Tensor | None, num_core: int) -> Tensor:
        W = as_rows(W, t)
        _save(ctx, t, W)
        ctx.num_core = num_core
        if b is None:
            return _times(t, W)
        return _times(t, W).add_(b) if isinstance(t, CSR) else torch.addmm(as_rows(b, t), t, W.t())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None]:
        (v,) = grads
        t, W = _saved(ctx)
        core = v[: ctx.num_core]
        dt = v @ W if ctx.needs_input_grad[0] else None  # (15) and (17), together with Aggregation.adjoint
        db = column_sums(core) if ctx.needs_input_grad[2] else None  # (18), (19)
        return dt, outer(core, first_rows(t, ctx.num_core)), db, None  # (18), (19)


class _NarrowLinear(torch.autograd.Function):
    """P (t W^T) + b, which aggregates the narrower rows t W^T, with the gradient that (P t) W^T + b would have.

    The gradient of the weights reads the core rows of P t, which is never formed:
    dW = v_core^T (P t)_core = (P^T v_core)^T t.
    """

    @staticmethod
    def forward(ctx: Any, t: Tensor | CSR, W: Tensor, b: Tensor | None, P: Aggregation, num_core: int) -> Tensor:
        W = as_rows(W, t)
        _save(ctx, t, W)
        ctx.P, ctx.num_core = P, num_core
        s = spmm(P.forward, _times(t, W).to(P.forward.dtype))  # core rows (12), halo rows (14)
        return s if b is None else s.add_(b)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None, None]:
        (v,) = grads
        t, W = _saved(ctx)
        P: Aggregation = ctx.P
        needs_dt = ctx.needs_input_grad[0]
        # the adjoints that reach t are those of the weights' gradient where all rows are core and none is discarded
        same = ctx.num_core == v.shape[0] and P.backward is P.forward.t()
        q = P.adjoint(v) if needs_dt or same else None
        if same:
            q_core = q
        else:
            v_core = v.clone()
            v_core[ctx.num_core :] = 0
            q_core = spmm(P.forward.t(), v_core)
        assert q_core is not None
        dt = q @ W if needs_dt and q is not None else None  # core rows (15), halo rows (17)
        db = column_sums(v[: ctx.num_core]) if ctx.needs_input_grad[2] else None  # (19)
        return dt, outer(q_core, t), db, None, None  # (19)


class _ScaleAndShift(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, num_core: int) -> Tensor:
        ctx.save_for_backward(x, scale)
        ctx.num_core = num_core
        return torch.addcmul(shift, x, scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        (g,) = grads
        x, scale = ctx.saved_tensors
        core = g[: ctx.num_core]
        dx, dscale = (g * scale).to(g.dtype), column_sums(core.to(scale.dtype) * x[: ctx.num_core])  # (19)
        return dx, dscale, column_sums(core), None  # (19)


class _AddBias(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, b: Tensor, num_core: int) -> Tensor:
        ctx.num_core = num_core
        return (x + b).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (g,) = grads
        return g, column_sums(g[: ctx.num_core]), None  # (19)


class Weighted(Tensor):
    """Rows whose adjoints are multiplied by one weight each. An operation that applies the weights in its own backward
    pass reads the rows ``plain`` instead, and multiplies by ``weights()``, [rows, 1]."""

    plain: Tensor
    weights: Callable[[], Tensor]
    # operations on these rows give plain tensors
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


def weigh_adjoints(s: Tensor, weights: Callable[[], Tensor]) -> Tensor:
    """The rows s, whose adjoints are multiplied by ``weights()``, [rows, 1], in the backward pass."""
    weighted = _WeighAdjoints.apply(s, weights).as_subclass(Weighted)
    weighted.plain, weighted.weights = s, weights
    return weighted


class _WeighAdjoints(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, s: Tensor, weights: Callable[[], Tensor]) -> Tensor:
        ctx.weights = weights
        return s.view_as(s)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (v,) = grads  # it may be shared with another branch of the graph, so it must not be changed
        return torch.mul(v, ctx.weights(), out=torch.empty_like(v)), None


class Resettable(nn.Module):
    """A module whose initial parameters are drawn from a generator."""

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        raise NotImplementedError


class Bias(Resettable):
    """y = x + b."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, p: Pass) -> Tensor:
        return add_bias(x, self.bias, p.core_of(x.shape[0]))


class Embedding(Resettable):
    """y = x E with one learned row of E per node, where the rows x of nodes without features are those of the identity.

    The lookup h^0_j = E_j is a row-wise layer of its own, so dL/dE_j is the adjoint of h^0_j, which sums P_ij times the
    adjoints of the neighbours i. It is taken for core rows j alone, whose neighbours are all in the batch, and is exact
    where the adjoints of core and halo rows are. A method without adjoints of halo rows (``grad_from_halo``) takes the
    terms of core rows i instead, at every row j that these read. The gradient is dense, and zero at all other rows.
    """

    def __init__(self, num_nodes: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_nodes, width))

    @property
    def out_width(self) -> int:
        return self.weight.shape[1]

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        glorot(self.weight, generator)

    def forward(self, t: Tensor | CSR, p: Pass) -> Tensor:
        return linear(t, self.weight.t(), None, p.before_aggregation.core_of(t.shape[0]))


class Linear(Resettable):
    """y = x W^T + b; zero until :meth:`reset_parameters` draws it as PyG's GCNConv does (Glorot, zero bias)."""

    def __init__(self, in_width: int, out_width: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(out_width, in_width))
        self.bias = nn.Parameter(torch.zeros(out_width)) if bias else None

    @property
    def out_width(self) -> int:
        return self.weight.shape[0]

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        glorot(self.weight, generator)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, t: Tensor | CSR, p: Pass) -> Tensor:
        return linear(t, self.weight, self.bias, p.core_of(t.shape[0]))

    def aggregate(self, P: Operator, t: Tensor | CSR, p: Pass, clean: Tensor | CSR | None = None) -> Tensor:
        """(P t) W^T + b, in the cheaper of two equal orders: the weights first where they make the rows narrower, and
        where t is sparse, since P t is not.

        ``clean`` are the rows before dropout, for operators that store rows.
        """
        narrow = self.weight.shape[0] < self.weight.shape[1]
        if isinstance(P, Precomputed):
            return self(t, p)
        if isinstance(P, Aggregation) and (narrow or isinstance(t, CSR)):
            return _NarrowLinear.apply(t, self.weight, self.bias, P, p.core_of(P.num_outputs))
        assert isinstance(t, Tensor)
        assert not isinstance(clean, CSR)
        if narrow and isinstance(P, TakesWeights):
            s = P.linear_first(self.weight, self.bias, t, clean)
            if s is not None:
                return s
        return self(P(t, clean), p)  # core rows (12), halo rows (14)


def glorot(weight: Tensor, generator: torch.Generator | None) -> None:
    """Draw a matrix uniformly from [-a, a], a = sqrt(6 / (rows + columns))."""
    bound = math.sqrt(6.0 / (weight.shape[0] + weight.shape[1]))
    with torch.no_grad():
        weight.uniform_(-bound, bound, generator=generator)
