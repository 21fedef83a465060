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
    """How rows of one or several kinds are distributed over all nodes.

    The rows of node i of kind j are ``means[j] + a_ij directions``. The coefficients a_i, of all kinds one after the
    other, have the mean 0 and a known covariance.

    Args:
        means: of every kind, [1, d].
        directions: [r, d].
        covariance: [k r, k r] for k kinds.
    """

    means: tuple[Tensor, ...]
    directions: Tensor
    covariance: Tensor

    def through(self, affine: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        """Mean and variance over all nodes of the columns of s = affine(rows of every kind), an affine function of the
        rows of every node.

        With A = affine(directions of every kind, and 0 for the others) - affine(0), they are affine(means) and the
        diagonal of A^T covariance A.
        """
        none = torch.zeros_like(self.directions)
        others = range(len(self.means))
        rows = [
            torch.cat([torch.zeros_like(mean), mean, *(self.directions if i == j else none for j in others)])
            for i, mean in enumerate(self.means)
        ]
        return _Moments.apply(affine(*rows), self.covariance)


class _Moments(torch.autograd.Function):
    """From the rows s = [affine(0), affine(means), affine(directions)] the mean and the variance of
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
