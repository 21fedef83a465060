"""Local message compensation, forward and backward: equations (13) and (16) in one differentiable step.

A layer computes its state ``s`` for core rows, then halo rows. Core rows are complete, (12) and (15). Halo rows miss
the messages of their neighbours outside of the batch: their values are partial, (14) and (17), and are mixed with the
histories here:

    forward    s_hat = (1 - beta) H + beta s_tmp        (13)
    backward   V_hat = (1 - beta) V + beta V_tmp        (16)

V_hat REPLACES the adjoint of the halo rows. It is not multiplied by beta again by the chain rule of (13): beta weighs
two estimates of one quantity in each direction; it is not a part of the model.

The operators of (12), (14), (15) and (17) are laid out in :mod:`lmc.methods.lmc4conv`; the gradients (18) and (19) are
formed in :mod:`lmc.models.rows`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _Compensate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        s: Tensor,
        H_halo: Tensor | None,
        adjoint: Callable[[Tensor], Tensor | None],
        beta_forward: Tensor | float,
        beta_backward: Tensor | float,
        num_core: int,
        in_place: bool,
    ) -> Tensor:
        ctx.adjoint, ctx.beta, ctx.num_core = adjoint, beta_backward, num_core
        if in_place:
            ctx.mark_dirty(s)
        else:
            s = s.clone()
        if H_halo is not None:  # s[:num_core] is (12), s[num_core:] is (14)
            _mix(H_halo, s[num_core:], beta_forward, out=s[num_core:])  # (13)
        return s

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (v,) = grads
        c = ctx.num_core
        V_halo = ctx.adjoint(v[:c])  # v[:c] is (15), v[c:] is (17)
        if V_halo is None:
            return v, None, None, None, None, None, None
        V_hat = torch.empty_like(v)  # v may be shared with another branch of the graph, so it must not be changed
        V_hat[:c] = v[:c]
        _mix(V_halo, v[c:], ctx.beta, out=V_hat[c:])  # (16)
        return V_hat, None, None, None, None, None, None


def _mix(stored: Tensor, tmp: Tensor, beta: Tensor | float, out: Tensor) -> None:
    """out <- (1 - beta) stored + beta tmp."""
    if isinstance(beta, float) and beta == 0:
        out.copy_(stored)
    else:
        torch.lerp(stored, tmp, beta, out=out)


def compensate(
    s: Tensor,
    *,
    num_core: int,
    H_halo: Tensor | None,
    adjoint: Callable[[Tensor], Tensor | None],
    beta_forward: Tensor | float,
    beta_backward: Tensor | float,
    in_place: bool,
) -> Tensor:
    """Compensate the halo rows of ``s``, and in the backward pass those of its adjoint.

    Args:
        s: the state of core rows, then halo rows.
        num_core: where the halo begins.
        H_halo: history of the halo rows' states; None leaves them as they are.
        adjoint: called once in the backward pass with the core rows' adjoint (15), for the caller to keep; returns
            the history of the halo rows' adjoints, or None to leave theirs as it is (l = L, where the loss gives it).
        beta_forward, beta_backward: coefficients of the halo rows, [num_halo, 1] or one number.
        in_place: overwrite ``s``; allowed where the operation that made it did not keep it.
    """
    return _Compensate.apply(s, H_halo, adjoint, beta_forward, beta_backward, num_core, in_place)
