"""Layer norm, ReLU and dropout in one pass over the rows in each direction.

In plain torch (:class:`lmc.models.activation.Activation`, which is the reference) the three read and write the rows
seven times on the way forward and a dozen times on the way back. A program here holds whole rows, in four quarters of
their columns, since one draw of Philox gives four numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmc.kernels.availability import tl, triton
from lmc.kernels.dropout import adjoint_arguments
from lmc.kernels.sums import total_of

ROWS = 4
"""Rows that a program of the forward pass holds."""
BACKWARD_ROWS = 2
"""Rows that a program of the backward pass holds at a time: with one warp for them, no warp waits for another."""
MAX_PROGRAMS = 2112
"""Programs that share the rows of a backward pass: each sums the gradients of the parameters over its rows."""
MAX_WIDTH = 1024
"""Columns of the widest rows that fit into registers."""

if triton is not None:
    from lmc.kernels.dropout import relu_dropout_adjoint

    @triton.jit
    def _sum(a, b, c, d):  # type: ignore[no-untyped-def]
        return tl.sum(a, 1) + tl.sum(b, 1) + tl.sum(c, 1) + tl.sum(d, 1)

    @triton.jit
    def _quarter(ptr, row, k, d, inside, q: tl.constexpr, QUARTER: tl.constexpr, TYPE: tl.constexpr):  # type: ignore[no-untyped-def]
        column = q * QUARTER + k
        mask = inside[:, None] & (column < d)[None, :]
        at = row[:, None] * d + column[None, :]
        return tl.load(ptr + at, mask=mask, other=0.0).to(TYPE), at, mask

    @triton.jit
    def _centred(x, mean, mask):  # type: ignore[no-untyped-def]
        return tl.where(mask, x - mean[:, None], 0.0)

    @triton.jit
    def _standard(  # type: ignore[no-untyped-def]
        s_ptr, row, k, d, inside, eps, QUARTER: tl.constexpr, TYPE: tl.constexpr
    ):
        x0, a0, m0 = _quarter(s_ptr, row, k, d, inside, 0, QUARTER, TYPE)
        x1, a1, m1 = _quarter(s_ptr, row, k, d, inside, 1, QUARTER, TYPE)
        x2, a2, m2 = _quarter(s_ptr, row, k, d, inside, 2, QUARTER, TYPE)
        x3, a3, m3 = _quarter(s_ptr, row, k, d, inside, 3, QUARTER, TYPE)
        mean = _sum(x0, x1, x2, x3) / d
        x0, x1, x2, x3 = _centred(x0, mean, m0), _centred(x1, mean, m1), _centred(x2, mean, m2), _centred(x3, mean, m3)
        r = (1 / tl.sqrt(_sum(x0 * x0, x1 * x1, x2 * x2, x3 * x3) / d + eps))[:, None]
        return x0 * r, x1 * r, x2 * r, x3 * r, a0, a1, a2, a3, m0, m1, m2, m3, r

    @triton.jit
    def _parameter(ptr, k, d, q: tl.constexpr, QUARTER: tl.constexpr, TYPE: tl.constexpr):  # type: ignore[no-untyped-def]
        column = q * QUARTER + k
        return tl.load(ptr + column, mask=column < d, other=0.0).to(TYPE)[None, :]

    @triton.jit
    def _activate(  # type: ignore[no-untyped-def]
        x, at, mask, draw, w_ptr, b_ptr, h_ptr, t_ptr, k, d, p, scale,
        q: tl.constexpr, DROP: tl.constexpr, QUARTER: tl.constexpr, TYPE: tl.constexpr,
    ):  # fmt: skip
        w, b = _parameter(w_ptr, k, d, q, QUARTER, TYPE), _parameter(b_ptr, k, d, q, QUARTER, TYPE)
        y = x * w + b
        h = tl.where(y < 0, 0.0, y)  # NaN stays NaN
        tl.store(h_ptr + at, h, mask=mask)
        if DROP:
            tl.store(t_ptr + at, tl.where(draw >= p, h * scale, 0.0), mask=mask)

    @triton.jit(do_not_specialize=["n"])
    def _forward(  # type: ignore[no-untyped-def]
        s_ptr, w_ptr, b_ptr, h_ptr, t_ptr, seed_ptr, n, d, eps, p, scale,
        DROP: tl.constexpr, ROWS: tl.constexpr, QUARTER: tl.constexpr, TYPE: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        k = tl.arange(0, QUARTER)
        x0, x1, x2, x3, a0, a1, a2, a3, m0, m1, m2, m3, _ = _standard(s_ptr, row, k, d, row < n, eps, QUARTER, TYPE)
        if DROP:
            u0, u1, u2, u3 = tl.rand4x(tl.load(seed_ptr), row[:, None] * QUARTER + k[None, :])
        else:
            u0, u1, u2, u3 = x0, x1, x2, x3
        _activate(x0, a0, m0, u0, w_ptr, b_ptr, h_ptr, t_ptr, k, d, p, scale, 0, DROP, QUARTER, TYPE)
        _activate(x1, a1, m1, u1, w_ptr, b_ptr, h_ptr, t_ptr, k, d, p, scale, 1, DROP, QUARTER, TYPE)
        _activate(x2, a2, m2, u2, w_ptr, b_ptr, h_ptr, t_ptr, k, d, p, scale, 2, DROP, QUARTER, TYPE)
        _activate(x3, a3, m3, u3, w_ptr, b_ptr, h_ptr, t_ptr, k, d, p, scale, 3, DROP, QUARTER, TYPE)

    @triton.jit
    def _add_some(  # type: ignore[no-untyped-def]
        g, at, mask, row, k, d, rows_ptr, h_ptr, stride, q: tl.constexpr, QUARTER: tl.constexpr, TYPE: tl.constexpr
    ):
        here = mask & (row % stride == 0)[:, None]
        kept = tl.load(h_ptr + at, mask=here, other=0.0) > 0
        there = (row // stride)[:, None] * d + (q * QUARTER + k)[None, :]
        return g + tl.where(kept, tl.load(rows_ptr + there, mask=here, other=0.0).to(TYPE), 0.0)

    @triton.jit(do_not_specialize=["n", "c", "stride"])
    def _backward(  # type: ignore[no-untyped-def]
        s_ptr, w_ptr, gt_ptr, t_ptr, gh_ptr, h_ptr, ds_ptr, sums_ptr, rows_ptr, tau_ptr, n, c, d, eps, scale, stride,
        T: tl.constexpr, H: tl.constexpr, SOME: tl.constexpr, WEIGHTED: tl.constexpr,
        ROWS: tl.constexpr, QUARTER: tl.constexpr, TYPE: tl.constexpr,
    ):  # fmt: skip
        k = tl.arange(0, QUARTER)
        zero = tl.zeros((ROWS, QUARTER), dtype=TYPE)
        dw0, dw1, dw2, dw3, db0, db1, db2, db3 = zero, zero, zero, zero, zero, zero, zero, zero
        for first in range(tl.program_id(0) * ROWS, n, tl.num_programs(0) * ROWS):
            row = tl.arange(0, ROWS).to(tl.int64) + first
            x0, x1, x2, x3, a0, a1, a2, a3, m0, m1, m2, m3, r = _standard(s_ptr, row, k, d, row < n, eps, QUARTER, TYPE)
            g0 = relu_dropout_adjoint(a0, m0, gt_ptr, t_ptr, gh_ptr, h_ptr, scale, T, H, TYPE)
            g1 = relu_dropout_adjoint(a1, m1, gt_ptr, t_ptr, gh_ptr, h_ptr, scale, T, H, TYPE)
            g2 = relu_dropout_adjoint(a2, m2, gt_ptr, t_ptr, gh_ptr, h_ptr, scale, T, H, TYPE)
            g3 = relu_dropout_adjoint(a3, m3, gt_ptr, t_ptr, gh_ptr, h_ptr, scale, T, H, TYPE)
            if SOME:
                g0 = _add_some(g0, a0, m0, row, k, d, rows_ptr, h_ptr, stride, 0, QUARTER, TYPE)
                g1 = _add_some(g1, a1, m1, row, k, d, rows_ptr, h_ptr, stride, 1, QUARTER, TYPE)
                g2 = _add_some(g2, a2, m2, row, k, d, rows_ptr, h_ptr, stride, 2, QUARTER, TYPE)
                g3 = _add_some(g3, a3, m3, row, k, d, rows_ptr, h_ptr, stride, 3, QUARTER, TYPE)
            core = (row < c)[:, None]
            dw0 += tl.where(core, g0 * x0, 0.0)
            dw1 += tl.where(core, g1 * x1, 0.0)
            dw2 += tl.where(core, g2 * x2, 0.0)
            dw3 += tl.where(core, g3 * x3, 0.0)
            db0 += tl.where(core, g0, 0.0)
            db1 += tl.where(core, g1, 0.0)
            db2 += tl.where(core, g2, 0.0)
            db3 += tl.where(core, g3, 0.0)
            g0 *= _parameter(w_ptr, k, d, 0, QUARTER, TYPE)
            g1 *= _parameter(w_ptr, k, d, 1, QUARTER, TYPE)
            g2 *= _parameter(w_ptr, k, d, 2, QUARTER, TYPE)
            g3 *= _parameter(w_ptr, k, d, 3, QUARTER, TYPE)
            mean = (_sum(g0, g1, g2, g3) / d)[:, None]
            along = (_sum(g0 * x0, g1 * x1, g2 * x2, g3 * x3) / d)[:, None]
            if WEIGHTED:
                r *= tl.load(tau_ptr + row, mask=row < n, other=0.0).to(TYPE)[:, None]
            tl.store(ds_ptr + a0, r * (g0 - mean - x0 * along), mask=m0)
            tl.store(ds_ptr + a1, r * (g1 - mean - x1 * along), mask=m1)
            tl.store(ds_ptr + a2, r * (g2 - mean - x2 * along), mask=m2)
            tl.store(ds_ptr + a3, r * (g3 - mean - x3 * along), mask=m3)
        out = sums_ptr + tl.program_id(0).to(tl.int64) * 2 * d + k
        tl.store(out, tl.sum(dw0, 0), mask=k < d)
        tl.store(out + QUARTER, tl.sum(dw1, 0), mask=QUARTER + k < d)
        tl.store(out + 2 * QUARTER, tl.sum(dw2, 0), mask=2 * QUARTER + k < d)
        tl.store(out + 3 * QUARTER, tl.sum(dw3, 0), mask=3 * QUARTER + k < d)
        tl.store(out + d, tl.sum(db0, 0), mask=k < d)
        tl.store(out + d + QUARTER, tl.sum(db1, 0), mask=QUARTER + k < d)
        tl.store(out + d + 2 * QUARTER, tl.sum(db2, 0), mask=2 * QUARTER + k < d)
        tl.store(out + d + 3 * QUARTER, tl.sum(db3, 0), mask=3 * QUARTER + k < d)


@dataclass
class Adjoints:
    """Adjoints of every ``stride``-th row of h, which reach the backward pass beside those of all rows."""

    rows: Tensor | None = None
    stride: int = 1


def layer_norm_relu_dropout(
    s: Tensor, weight: Tensor, bias: Tensor, eps: float, num_core: int, p: float, generator: torch.Generator | None,
    adjoints: Adjoints | None = None, tau: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """h = relu(weight (s - mean) / deviation + bias), row by row, and h after dropout; None where p = 0.

    The gradients of ``weight`` and ``bias`` are sums over the first ``num_core`` rows. The adjoints of the rows of s
    are multiplied by ``tau``, [n, 1], where it is given.
    """
    return _NormReluDropout.apply(s, weight, bias, eps, num_core, p, generator, adjoints or Adjoints(), tau)


class _NormReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, s: Tensor, weight: Tensor, bias: Tensor, eps: float, num_core: int, p: float,
        generator: torch.Generator | None, adjoints: Adjoints, tau: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        s = s.contiguous()
        (n, d), scale = s.shape, 1 / (1 - p)
        h = torch.empty_like(s)
        t = torch.empty_like(s) if p else None
        seed = torch.empty(1, dtype=torch.int64, device=s.device)
        if p:
            seed.random_(generator=generator)
        if n:
            _forward[(triton.cdiv(n, ROWS),)](
                s, weight, bias, h, h if t is None else t, seed, n, d, eps, p, scale, DROP=p > 0, ROWS=ROWS, **_sizes(s)
            )
        ctx.save_for_backward(s, weight, h, t, tau)
        ctx.eps, ctx.num_core, ctx.scale, ctx.adjoints = eps, num_core, scale, adjoints
        ctx.set_materialize_grads(False)
        return h, t

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        s, weight, h, t, tau = ctx.saved_tensors
        (n, d), ds = s.shape, torch.empty_like(s)
        given, which = adjoint_arguments(h, t, *grads)
        programs = max(1, min(MAX_PROGRAMS, triton.cdiv(n, BACKWARD_ROWS)))
        sums = weight.new_empty(programs, 2, d)
        sizes, some = _sizes(s), ctx.adjoints
        rows, some.rows = some.rows, None
        _backward[(programs,)](
            s, weight, *given, ds, sums, h if rows is None else rows, h if tau is None else tau, n, ctx.num_core, d,
            ctx.eps, ctx.scale, some.stride, **which, **sizes, SOME=rows is not None, WEIGHTED=tau is not None,
            ROWS=BACKWARD_ROWS, num_warps=max(1, sizes["QUARTER"] // 64),
        )  # fmt: skip
        dweight, dbias = total_of(sums.unsqueeze(0))[0]
        return ds, dweight, dbias, None, None, None, None, None, None


def _sizes(s: Tensor) -> dict[str, Any]:
    double = s.dtype == torch.float64
    quarter = triton.next_power_of_2(triton.cdiv(s.shape[1], 4))
    return {"QUARTER": quarter, "TYPE": tl.float64 if double else tl.float32}
