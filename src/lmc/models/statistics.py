"""Mean and variance over all nodes of a state that is an affine function of rows whose distribution is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmc.kernels.products import exact_mm


@dataclass(frozen=True, eq=False)
class Distribution:
    """Rows ``mean + a directions``, one for every node. The coefficients a have the mean 0 and a known covariance.

    Args:
        mean: [1, d].
        directions: [r, d].
        covariance: [r, r], of the coefficients.
    """

    mean: Tensor
    directions: Tensor
    covariance: Tensor

    def through(self, affine: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Mean and variance of the columns of ``affine(rows)``, an affine function of every row.

        With A = affine(directions) - affine(0), they are affine(mean) and the diagonal of A^T covariance A.
        """
        origin = torch.zeros_like(self.mean)
        return _Moments.apply(affine(torch.cat([origin, self.mean, self.directions])), self.covariance)


class _Moments(torch.autograd.Function):
    """From the rows s = [affine(0), affine(mean), affine(directions)] the mean and the variance of
    :meth:`Distribution.through`. The derivative of the variance by A is 2 covariance A."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        A = s[2:] - s[0]
        spread = exact_mm(covariance, A)
        ctx.save_for_backward(spread)
        ctx.dtype = s.dtype
        return s[1].to(covariance.dtype), (A * spread).sum(0).clamp_min(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (dmean, dvar), (spread,) = grads, ctx.saved_tensors
        dA = 2 * dvar * spread
        return torch.cat([torch.stack([-dA.sum(0), dmean]), dA]).to(ctx.dtype), None


def through_statistics(weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The affine parameters of a batch norm that reads ``mean`` and ``var`` as constants; from them, the gradient flows
    to ``mean`` and ``var`` too."""
    return _ThroughStatistics.apply(weight, bias, mean, var, eps)


class _ThroughStatistics(torch.autograd.Function):
    """Of y = (x - mean) / sigma weight + bias, sigma^2 = var + eps, given the adjoints of weight and bias:

    dmean = -dbias weight / sigma,   dvar = -dweight weight / (2 sigma^2)
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(weight, var)
        ctx.eps = eps
        return weight.view_as(weight), bias.view_as(bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        weight, var = ctx.saved_tensors
        dweight, dbias = grads
        inverse = (var + ctx.eps).rsqrt()
        scaled = weight * inverse
        return dweight, dbias, -dbias * scaled, -0.5 * dweight * scaled * inverse, None
