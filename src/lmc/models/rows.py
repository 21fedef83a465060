"""Row-wise maps whose parameters take their gradient from core rows only: every row-wise map with parameters is a
layer of its own, and Theorem 1 holds for any decomposition into layers.

Each computes all rows in one go and passes the adjoint of every row on; only the sums that make a parameter's
gradient stop at the last core row. No map is ever run twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmc.graph import CSR, Aggregation, Precomputed, spmm
from lmc.kernels import rows as fused


class Operator(Protocol):
    """What a layer aggregates with: P(t) for the rows it gives out, from those it takes in, core rows first."""

    @property
    def num_outputs(self) -> int: ...

    @property
    def num_inputs(self) -> int: ...

    def __call__(self, t: Tensor, clean: Tensor | None = None) -> Tensor: ...


@runtime_checkable
class TakesWeights(Protocol):
    """An operator that can apply the weights before it sums, with the gradient that summing first would have."""

    def linear_first(self, W: Tensor, b: Tensor | None, t: Tensor, clean: Tensor | None) -> Tensor | None:
        """(P t) W^T + b; None where it has to sum first."""


@dataclass(frozen=True)
class Pass:
    """What a forward pass knows about its rows beside their values.

    Args:
        num_core: leading rows that teach the parameters; None: all of them.
        pooled: batch statistics are taken over all rows together, not over core and halo apart.
        batch_renorm: core and halo rows share the core's batch statistics, corrected towards the running ones
            (:func:`renormalised`).
        dropout: False switches every dropout off while batch norm stays in training mode (for diagnostics).
        generator: where the dropout masks come from; None: torch's own generator.
        grad_from_halo: weights before a sum take their gradient from every row the sum reads: right where the
            adjoint of a halo row comes from core rows alone and ends there (GAS). The gradient is then that of weights
            after the sum, taken from core rows.
        drawn: rows whose dropout was drawn together with their activation, until it is asked for
            (:meth:`lmc.models.base.Layer.drop`): by identity, the rows, what became of them, and the rate.
    """

    num_core: int | None = None
    pooled: bool = False
    batch_renorm: bool = False
    dropout: bool = True
    generator: torch.Generator | None = None
    grad_from_halo: bool = False
    drawn: dict[int, tuple[Tensor, Tensor, float]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def before_aggregation(self) -> Pass:
        """This pass for weights that are applied before a sum."""
        return replace(self, num_core=None) if self.grad_from_halo else self

    def core_of(self, num_rows: int) -> int:
        return num_rows if self.num_core is None else min(self.num_core, num_rows)


def as_rows(W: Tensor, t: Tensor | CSR) -> Tensor:
    """Parameters in the type of the rows they multiply."""
    return W.to(t.dtype)


def _times(t: Tensor | CSR, W: Tensor) -> Tensor:
    return spmm(t, W.t().contiguous()) if isinstance(t, CSR) else t @ W.t()


def outer(g: Tensor, t: Tensor | CSR) -> Tensor:
    """g^T t, a parameter's gradient: of bfloat16 rows it is the float32 it is summed in."""
    if isinstance(t, CSR):
        return spmm(t.t(), g.to(t.dtype).contiguous()).t()
    if t.dtype != torch.bfloat16:
        return g.t() @ t
    return torch.mm(g.t(), t, out_dtype=torch.float32) if t.is_cuda else g.float().t() @ t.float()


def total(g: Tensor) -> Tensor:
    """The sum of the rows, in float32 at least."""
    if fused.available(g) and g.stride(1) == 1:
        return fused.column_sums(g)
    return g.sum(0, dtype=torch.promote_types(g.dtype, torch.float32))


def _leading(t: Tensor | CSR, rows: int) -> Tensor | CSR:
    return t.leading(rows) if isinstance(t, CSR) else t[:rows]


def _keep(ctx: Any, t: Tensor | CSR, W: Tensor) -> None:
    ctx.sparse = t if isinstance(t, CSR) else None
    ctx.save_for_backward(W, None if isinstance(t, CSR) else t)


def _kept(ctx: Any) -> tuple[Tensor | CSR, Tensor]:
    W, t = ctx.saved_tensors
    return ctx.sparse if t is None else t, W


class _Linear(torch.autograd.Function):
    """t W^T + b; dW and db from the first ``num_core`` rows. A sparse t is constant."""

    @staticmethod
    def forward(ctx: Any, t: Tensor | CSR, W: Tensor, b: Tensor | None, num_core: int) -> Tensor:
        W = as_rows(W, t)
        _keep(ctx, t, W)
        ctx.num_core = num_core
        if b is None:
            return _times(t, W)
        return _times(t, W).add_(b) if isinstance(t, CSR) else torch.addmm(as_rows(b, t), t, W.t())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None]:
        (v,) = grads
        t, W = _kept(ctx)
        core = v[: ctx.num_core]
        dt = v @ W if ctx.needs_input_grad[0] else None
        return dt, outer(core, _leading(t, ctx.num_core)), total(core) if ctx.needs_input_grad[2] else None, None


class _NarrowLinear(torch.autograd.Function):
    """P (t W^T) + b, the product taken on the narrower side, with the gradient that (P t) W^T + b would have.

    The weights' gradient reads core rows of P t. It is not formed: dW = v_core^T (P t)_core = (P^T v_core)^T t.
    """

    @staticmethod
    def forward(ctx: Any, t: Tensor | CSR, W: Tensor, b: Tensor | None, P: Aggregation, num_core: int) -> Tensor:
        W = as_rows(W, t)
        _keep(ctx, t, W)
        ctx.P, ctx.num_core = P, num_core
        s = spmm(P.forward, _times(t, W).to(P.forward.dtype))
        return s if b is None else s.add_(b)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None, None]:
        (v,) = grads
        t, W = _kept(ctx)
        P: Aggregation = ctx.P
        needs_dt = ctx.needs_input_grad[0]
        same = ctx.num_core == v.shape[0] and P.backward is P.forward.t()
        q = P.adjoint(v) if needs_dt or same else None
        if same:
            q_core = q
        else:
            v_core = v.clone()
            v_core[ctx.num_core :] = 0
            q_core = spmm(P.forward.t(), v_core)
        assert q_core is not None
        dt = q @ W if needs_dt and q is not None else None
        db = total(v[: ctx.num_core]) if ctx.needs_input_grad[2] else None
        return dt, outer(q_core, t), db, None, None


class _Affine(torch.autograd.Function):
    """x * scale + shift column by column; both take their gradient from the first ``num_core`` rows."""

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
        dx, dscale = (g * scale).to(g.dtype), total(core.to(scale.dtype) * x[: ctx.num_core])
        return dx, dscale, total(core), None


class _Shift(torch.autograd.Function):
    """x + b; b takes its gradient from the first ``num_core`` rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, b: Tensor, num_core: int) -> Tensor:
        ctx.num_core = num_core
        return (x + b).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (g,) = grads
        return g, total(g[: ctx.num_core]), None


class Bias(nn.Module):
    """y = x + b."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, p: Pass) -> Tensor:
        return _Shift.apply(x, self.bias, p.core_of(x.shape[0]))


def linear(t: Tensor | CSR, W: Tensor, b: Tensor | None, p: Pass) -> Tensor:
    """t W^T + b for weights that are not a module's own."""
    return _Linear.apply(t, W, b, p.core_of(t.shape[0]))


class Drawn(nn.Module):
    """A module whose initial parameters are drawn from a generator."""

    def reset_parameters(self, generator: torch.Generator) -> None:
        raise NotImplementedError


class Linear(Drawn):
    """y = x W^T + b; zero until :meth:`reset_parameters` draws it as PyG's GCNConv does (Glorot, zero bias)."""

    def __init__(self, in_width: int, out_width: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(out_width, in_width))
        self.bias = nn.Parameter(torch.zeros(out_width)) if bias else None

    def reset_parameters(self, generator: torch.Generator) -> None:
        bound = math.sqrt(6.0 / (self.weight.shape[0] + self.weight.shape[1]))
        with torch.no_grad():
            self.weight.uniform_(-bound, bound, generator=generator)
            if self.bias is not None:
                self.bias.zero_()

    def forward(self, t: Tensor | CSR, p: Pass) -> Tensor:
        return linear(t, self.weight, self.bias, p)

    def aggregate(self, P: Operator, t: Tensor | CSR, p: Pass, clean: Tensor | CSR | None = None) -> Tensor:
        """(P t) W^T + b, in the cheaper of two equal orders: sparse rows would fill in, wide rows cost more.

        ``clean`` are the rows before dropout, for operators that keep rows.
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
        return self(P(t, clean), p)


class LayerNorm(nn.Module):
    """Layer norm over the columns of each row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, p: Pass) -> Tensor:
        unit = F.layer_norm(x, x.shape[1:])
        return _Affine.apply(unit, self.weight, self.bias, p.core_of(x.shape[0]))


STRETCH, SHIFT = 1.2, 0.2
"""How far the scale and the mean that a batch gives its rows are corrected (:func:`renormalised`)."""


def renormalised(
    x: Tensor,
    num_core: int,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    share: float | Tensor,
    eps: float,
) -> Tensor:
    """Batch norm whose rows mean the same in every batch, as far as that is known ("Batch Renormalization: Towards
    Reducing Minibatch Dependence in Batch-Normalized Models", equation 1).

    With the core's statistics mu, s and the running ones m, S, which take up a ``share`` of the former first,
    y = ((x - mu) / s) r + d, where r = s / S and d = (mu - m) / S are constants to the gradient. Unlimited, this is
    (x - m) / S. But running statistics lag behind parameters that move, so r is at most a factor ``STRETCH`` from 1
    and d ``SHIFT`` from 0. Halo rows take the same map, its parameters frozen, with mu and s as constants.
    """
    c = num_core
    if c == 1:  # one row has no statistics
        r, d, own_mean, own_var = torch.ones_like(mean), torch.zeros_like(mean), mean, var
    else:
        own_var, own_mean = torch.var_mean(x[:c].detach().to(mean.dtype), 0, correction=0)
        off = own_mean - mean
        mean.add_(off * share)
        var.add_((own_var - var + off.square() * (1 - share)) * share)
        scale = (var + eps).rsqrt()
        r = ((own_var + eps).sqrt() * scale).clamp(1 / STRETCH, STRETCH)
        d = ((own_mean - mean) * scale).clamp(-SHIFT, SHIFT)
    gain = torch.ones_like(r) if weight is None else weight
    scaled, shifted = gain * r, torch.addcmul(torch.zeros_like(d) if bias is None else bias, gain, d)
    stats = (None, None) if c > 1 else (own_mean, own_var)
    core = F.batch_norm(x[:c], stats[0], stats[1], scaled, shifted, training=c > 1, eps=eps)
    halo = F.batch_norm(x[c:], own_mean, own_var, scaled.detach(), shifted.detach(), eps=eps)
    return torch.cat([core, halo])


def share_of(batches: Tensor, momentum: float) -> Tensor:
    """What a batch adds to running statistics: as in a plain average of all so far, ``momentum`` at least."""
    return batches.double().reciprocal().clamp(min=momentum)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm with statistics of core rows for core rows, and of halo rows for halo rows (by default).

    Halo rows are normalised with the same affine parameters, frozen, and never touch the running statistics
    (docs/bring-your-own-model.md). A single row has no statistics of its own: it takes the running ones.
    """

    def forward(self, x: Tensor, p: Pass = Pass()) -> Tensor:  # noqa: B008
        core = p.core_of(x.shape[0])
        if not self.training or core == x.shape[0]:
            return self._core(x)
        if p.pooled:
            unit = F.batch_norm(
                x, self.running_mean, self.running_var, training=True, momentum=self._count(), eps=self.eps
            )
            return _Affine.apply(unit, self.weight, self.bias, core)
        if p.batch_renorm:
            mean, var, momentum = self.running_mean, self.running_var, self._count(core > 1)
            assert self.num_batches_tracked is not None
            assert mean is not None
            assert var is not None
            share = share_of(self.num_batches_tracked, momentum)
            return renormalised(x, core, mean, var, self.weight, self.bias, share, self.eps)
        alone = x.shape[0] - core == 1
        halo = F.batch_norm(
            x[core:],
            self.running_mean if alone else None,
            self.running_var if alone else None,
            self.weight.detach(),
            self.bias.detach(),
            training=not alone,
            eps=self.eps,
        )
        return torch.cat([self._core(x[:core]), halo])

    def _core(self, x: Tensor) -> Tensor:
        if self.training and x.shape[0] == 1:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)

    def _count(self, batches: int = 1) -> float:
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked.add_(batches)
        return self.momentum
