"""What follows the aggregation of a layer, row by row: norm, ReLU and the dropout of the next layer.

The parameters of the norms take their gradient from core rows only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmc.errors import ConfigError
from lmc.graph import CSR
from lmc.kernels.availability import triton_available
from lmc.kernels.batch_norm import Group, batch_norm_relu_dropout, moments
from lmc.kernels.dropout import dropout, keep_mask, relu_dropout
from lmc.kernels.layer_norm import MAX_WIDTH, Adjoints, layer_norm_relu_dropout
from lmc.models.passes import Pass
from lmc.models.rows import Resettable, Weighted, scale_and_shift
from lmc.models.statistics import through_statistics

NORMS = (None, "layer", "batch", "batch-halo")
EPS = 1e-5
"""Added to the variance of a layer norm."""
R_MAX, D_MAX = 1.2, 0.2
"""The limits of the corrections r and d in :func:`batch_renorm`: r is in [1 / R_MAX, R_MAX], d in [-D_MAX, D_MAX]."""


class Activated(Tensor):
    """Rows h that carry their version after dropout, because one kernel made both."""

    dropped: Tensor
    rate: float
    adjoints: Adjoints | None
    # operations on these rows give plain tensors
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class Activation(nn.Module):
    """norm, then ReLU; row by row.

    Args:
        dropout: the rate of the dropout that follows, where one follows. Its mask is then drawn together with the ReLU
            where that is cheaper, and :func:`drop` finds the result.
    """

    def __init__(self, width: int, norm: str | None, dropout: float = 0.0) -> None:
        super().__init__()
        self._dropout = dropout
        if norm not in NORMS:
            raise ConfigError(f"expected norm in {NORMS} (got {norm!r})")
        batch_norm = BatchNormWithHalo if norm == "batch-halo" else BatchNorm
        self.norm = None if norm is None else LayerNorm(width) if norm == "layer" else batch_norm(width)

    def forward(self, s: Tensor, p: Pass) -> Tensor:
        rate = self._dropout if self.training and p.dropout else 0.0
        norm, core, adjoints = self.norm, p.core_of(s.shape[0]), None
        if isinstance(norm, LayerNorm) and triton_available(s) and s.shape[1] <= MAX_WIDTH:
            adjoints, (s, tau) = Adjoints(), (s.plain, s.weights()) if isinstance(s, Weighted) else (s, None)
            h, dropped = layer_norm_relu_dropout(s, norm.weight, norm.bias, EPS, core, rate, p.generator, adjoints, tau)
        elif isinstance(norm, BatchNorm) and norm.fuses(s, p):
            h, dropped = batch_norm_relu_dropout(s, core, norm.groups(s, p), norm.eps, rate, p.generator, p.num_real)
        else:
            s = s if norm is None else norm(s, p)
            h, dropped = relu_dropout(s, rate, p.generator) if rate else (s.relu(), None)
        if dropped is None:
            return h
        activated = h.as_subclass(Activated)
        activated.dropped, activated.rate, activated.adjoints = dropped, self._dropout, adjoints
        return activated


def every(h: Tensor, stride: int) -> Tensor:
    """Every ``stride``-th row of h. If a fused kernel computed h, it receives their adjoints without rows of zeros in
    between."""
    if stride == 1:
        return h.view(h.shape)  # plain rows, whose adjoint is not copied
    adjoints = h.adjoints if isinstance(h, Activated) else None
    return h[::stride] if adjoints is None else _Every.apply(h, stride, adjoints)


class _Every(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, stride: int, adjoints: Adjoints) -> Tensor:
        ctx.shape, ctx.stride, ctx.adjoints = h.shape, stride, adjoints
        return h[::stride]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None]:
        (g,) = grads
        if ctx.adjoints.rows is None:
            ctx.adjoints.rows, ctx.adjoints.stride = g.contiguous(), ctx.stride
            return None, None, None
        dense = g.new_zeros(ctx.shape)
        dense[:: ctx.stride] = g
        return dense, None, None


@overload
def drop(h: Tensor, rate: float, p: Pass, training: bool) -> Tensor: ...
@overload
def drop(h: Tensor | CSR, rate: float, p: Pass, training: bool) -> Tensor | CSR: ...
def drop(h: Tensor | CSR, rate: float, p: Pass, training: bool) -> Tensor | CSR:
    """h with dropout in training: the version that was drawn with its activation, or one drawn now.

    Of a sparse matrix, stored elements are dropped.
    """
    if not (training and p.dropout and rate):
        return h
    if isinstance(h, CSR):
        keep, scale = keep_mask(h.data, rate, p.generator)
        return CSR(h.indptr, h.indices, h.data * keep * scale, h.num_cols)
    if isinstance(h, Activated) and h.rate == rate:
        return h.dropped
    return dropout(h, rate, p.generator)


class LayerNorm(Resettable):
    """Layer norm over the columns of each row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, p: Pass) -> Tensor:
        unit = F.layer_norm(x, x.shape[1:], eps=EPS)
        return scale_and_shift(unit, self.weight, self.bias, p.core_of(x.shape[0]))


def batch_renorm(
    x: Tensor, num_core: int, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None,
    share: float | Tensor, eps: float,
) -> Tensor:  # fmt: skip
    """Batch norm whose output depends little on the batch ("Batch Renormalization: Towards Reducing Minibatch
    Dependence in Batch-Normalized Models", equation 1).

    mu and sigma are the statistics of the core rows, m and S the running ones, which are updated first:

        y = ((x - mu) / sigma) r + d,   r = sigma / S,   d = (mu - m) / S      (r, d: constants for the gradient)

    Without limits this is (x - m) / S. But running statistics lag behind parameters that change, so r and d are limited
    (:data:`R_MAX`, :data:`D_MAX`). Halo rows go through the same map with frozen parameters, mu and sigma.

    Args:
        x: rows, the ``num_core`` core rows first.
        mean, var: the running statistics; they are updated in place.
        weight, bias: the affine parameters that follow; None: 1 and 0.
        share: the weight of this batch in the running statistics.
    """
    c = num_core
    gain = torch.ones_like(mean) if weight is None else weight
    shift = torch.zeros_like(mean) if bias is None else bias
    if c == 1:  # one row has no statistics
        mu, sigma2, scaled, shifted = mean, var, gain, shift
    else:
        sigma2, mu = torch.var_mean(x[:c].detach().to(mean.dtype), 0, correction=0)
        scaled, shifted = _corrected(mu, sigma2, mean, var, gain, shift, share, eps)
    given = (None, None) if c > 1 else (mu, sigma2)
    core = F.batch_norm(x[:c], given[0], given[1], scaled, shifted, training=c > 1, eps=eps)
    if c == x.shape[0]:
        return core
    halo = F.batch_norm(x[c:], mu, sigma2, scaled.detach(), shifted.detach(), eps=eps)
    return torch.cat([core, halo])


def _corrected(
    mu: Tensor, sigma2: Tensor, mean: Tensor, var: Tensor, gain: Tensor, shift: Tensor, share: float | Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The affine parameters with r and d of :func:`batch_renorm` in them; updates the running statistics."""
    difference = mu - mean
    mean.add_(difference * share)
    var.add_((sigma2 - var + difference.square() * (1 - share)) * share)
    scale = (var + eps).rsqrt()
    r = ((sigma2 + eps).sqrt() * scale).clamp(1 / R_MAX, R_MAX)
    d = ((mu - mean) * scale).clamp(-D_MAX, D_MAX)
    return gain * r, torch.addcmul(shift, gain, d)


def update_share(batches: Tensor, momentum: float) -> Tensor:
    """The weight of a batch in the running statistics: that of a plain average, but at least ``momentum``."""
    return batches.double().reciprocal().clamp(min=momentum)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm with the statistics of core rows for core rows, and of halo rows for halo rows (by default).

    Halo rows are normalised with the same affine parameters, frozen, and do not change the running statistics
    (docs/bring-your-own-model.md). A single row has no statistics of its own and is normalised with the running ones.
    """

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        super().reset_parameters()

    def forward(self, x: Tensor, p: Pass = Pass()) -> Tensor:  # noqa: B008
        core = p.core_of(x.shape[0])
        if self.training and p.total is not None:
            return scale_and_shift(self._over_ranks(x, p.total), self.weight, self.bias, core)
        if not self.training or (core == x.shape[0] and not p.batch_renorm):
            return self._core(x)
        if p.statistics is not None:
            mean, var, gain, shift = self._of_whole(*p.statistics)
            return F.batch_norm(x, mean, var, gain, shift, eps=self.eps)
        if p.pooled:
            unit = F.batch_norm(
                x, self.running_mean, self.running_var, training=True, momentum=self._count(), eps=self.eps
            )
            return scale_and_shift(unit, self.weight, self.bias, core)
        if p.batch_renorm:
            share = self._share(core > 1)
            return batch_renorm(x, core, *self._running(), self.weight, self.bias, share, self.eps)
        return torch.cat([self._core(x[:core]), self._halo(x[core:])])

    def fuses(self, x: Tensor, p: Pass) -> bool:
        """Whether :func:`lmc.kernels.batch_norm.batch_norm_relu_dropout` does the same as :meth:`forward`, ReLU and
        dropout: in training, with the statistics of all nodes, or with those of core rows and halo rows by themselves,
        where both have some."""
        core = p.core_of(x.shape[0])
        separate = p.total is None and not p.pooled and type(self) is BatchNorm
        return triton_available(x) and self.training and separate and core > 1 and x.shape[0] - core != 1

    def groups(self, x: Tensor, p: Pass) -> list[Group]:
        """How core rows and halo rows are normalised, for the fused kernel; updates the running statistics."""
        core, (mean, var) = p.core_of(x.shape[0]), self._running()
        if p.statistics is not None:
            return [Group(*self._of_whole(*p.statistics), constant=True)]
        found = moments(x, core, p.num_real)
        mu, sigma2 = found[0]
        if p.batch_renorm:
            affine = _corrected(mu, sigma2, mean, var, self.weight, self.bias, self._share(), self.eps)
            return [Group(mu, sigma2, *affine), *(Group(mu, sigma2, *affine, constant=True) for _ in found[1:])]
        size = core if p.num_real is None else p.num_real[:1].to(sigma2.dtype)
        momentum = self._count()
        mean.lerp_(mu.to(mean.dtype), momentum)
        var.lerp_((sigma2 * (size / (size - 1))).to(var.dtype), momentum)
        return [Group(*of, self.weight, self.bias) for of in found]

    def _of_whole(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The statistics of all nodes as constants, and the affine parameters, through which the gradient flows to
        these statistics. The running ones become the same, since an average over steps would lag behind them."""
        self._count()
        for running, value in zip(self._running(), (mean, var), strict=True):
            running.copy_(value.detach())
        return mean.detach(), var.detach(), *through_statistics(self.weight, self.bias, mean, var, self.eps)

    def _running(self) -> tuple[Tensor, Tensor]:
        assert self.running_mean is not None
        assert self.running_var is not None
        return self.running_mean, self.running_var

    def _share(self, batches: int = 1) -> Tensor:
        """Count batches; returns the weight of this one in the running statistics."""
        momentum = self._count(batches)
        assert self.num_batches_tracked is not None
        return update_share(self.num_batches_tracked, momentum)

    def _over_ranks(self, x: Tensor, total: Callable[[Tensor], Tensor]) -> Tensor:
        """Rows normalised with the statistics of the rows of all ranks, which the running ones follow."""
        momentum = self._count()
        n = total(x.new_full((), x.shape[0]))
        mean = total(x.sum(0)) / n
        var = total((x - mean).square().sum(0)) / n
        for running, value in ((self.running_mean, mean), (self.running_var, var * n / (n - 1))):
            assert running is not None
            running.lerp_(value.detach().to(running.dtype), momentum)
        return (x - mean) * (var + self.eps).rsqrt()

    def _core(self, x: Tensor) -> Tensor:
        if self.training and x.shape[0] == 1:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)

    def _halo(self, x: Tensor) -> Tensor:
        given = (self.running_mean, self.running_var) if x.shape[0] == 1 else (None, None)
        weight, bias = self.weight.detach(), self.bias.detach()
        return F.batch_norm(x, given[0], given[1], weight, bias, training=given[0] is None, eps=self.eps)

    def _count(self, batches: int = 1) -> float:
        """Count batches towards the running statistics; returns their momentum."""
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked.add_(batches)
        return self.momentum


def normalised_by_batch(model: nn.Module) -> bool:
    """Whether rows are normalised with statistics of their batch. Rows then differ between visits, as these do."""
    return any(isinstance(module, nn.BatchNorm1d) for module in model.modules())


class BatchNormWithHalo(BatchNorm):
    """Batch norm of core rows, and another batch norm for halo rows, as the appendix of the LMC paper has it.

    With mu and sigma^2 the mean and variance of the halo rows of a batch, a halo row x becomes

        (x - mu) / sqrt(sigma^2 + eps) * gamma' + b'

    ``halo`` has parameters gamma' and b' of its own, which take their gradient from halo rows, and running statistics
    of its own. Full batches and evaluation have no halo rows and do not read it. :class:`BatchNorm` differs in that
    gamma' and b' are the parameters of the core, frozen.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.halo = BatchNorm(width)

    def _halo(self, x: Tensor) -> Tensor:
        return self.halo._core(x)
