"""Batch norm, ReLU and dropout: one pass over the rows for the statistics, one for the result, and two on the way back.

In plain torch (:class:`lmc.models.activation.BatchNorm`, which is the reference) core rows and halo rows are normalised
apart and copied together, and ReLU and dropout read and write them again. Here a row is read with the statistics of its
group: group 0 are the core rows, group 1 the halo rows after them. The draws of dropout are those of
:func:`lmc.kernels.dropout.relu_dropout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmc.kernels.availability import tl, triton
from lmc.kernels.dropout import BLOCK, adjoint_arguments, seed_of
from lmc.kernels.sums import total_of

ROWS = 16
"""Rows that a program adds up at a time."""
PROGRAMS = 256
"""Programs that share the rows of a group in a sum."""
BACKWARD_BLOCK = 512
"""Numbers that a program of the last backward pass computes."""

if triton is not None:
    from lmc.kernels.dropout import relu_dropout_adjoint

    @triton.jit(do_not_specialize=["n", "c"])
    def _moments(  # type: ignore[no-untyped-def]
        s_ptr, out_ptr, real_ptr, n, c, PADDED: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
        TYPE: tl.constexpr,
    ):  # fmt: skip
        group, k = tl.program_id(1), tl.arange(0, WIDTH)
        begin, end = tl.where(group == 0, 0, c), tl.where(group == 0, c, n)
        if PADDED:
            end = begin + tl.load(real_ptr + group).to(tl.int32)
        # differences from a row of the group, so that nothing cancels
        first = tl.load(s_ptr + begin.to(tl.int64) * D + k, mask=k < D, other=0.0).to(TYPE)
        total, squares = tl.zeros((WIDTH,), dtype=TYPE), tl.zeros((WIDTH,), dtype=TYPE)
        for start in range(begin + tl.program_id(0) * ROWS, end, tl.num_programs(0) * ROWS):
            row = start + tl.arange(0, ROWS).to(tl.int64)
            mask = (row < end)[:, None] & (k < D)[None, :]
            x = tl.load(s_ptr + row[:, None] * D + k[None, :], mask=mask, other=0.0).to(TYPE) - first[None, :]
            x = tl.where(mask, x, 0.0)
            total += tl.sum(x, 0)
            squares += tl.sum(x * x, 0)
        out = out_ptr + (group * tl.num_programs(0) + tl.program_id(0)) * 2 * D + k
        tl.store(out, total, mask=k < D)
        tl.store(out + D, squares, mask=k < D)

    @triton.jit
    def _activate(  # type: ignore[no-untyped-def]
        s_ptr, terms_ptr, h_ptr, t_ptr, at, num, draw, p, scale, c,
        D: tl.constexpr, DROP: tl.constexpr, TYPE: tl.constexpr,
    ):  # fmt: skip
        mask = at < num
        column, term = at % D, terms_ptr + (at // D >= c).to(tl.int32) * 4 * D
        x = tl.load(s_ptr + at, mask=mask, other=0.0).to(TYPE) - tl.load(term + column, mask=mask, other=0.0)
        x *= tl.load(term + D + column, mask=mask, other=0.0)
        gain, shift = tl.load(term + 2 * D + column, mask=mask, other=0.0), tl.load(term + 3 * D + column, mask=mask)
        y = x * gain + shift
        h = tl.where(y < 0, 0.0, y)  # NaN stays NaN
        tl.store(h_ptr + at, h, mask=mask)
        if DROP:
            tl.store(t_ptr + at, tl.where(draw >= p, h * scale, 0.0), mask=mask)

    @triton.jit(do_not_specialize=["num", "c"])
    def _forward(  # type: ignore[no-untyped-def]
        s_ptr, terms_ptr, h_ptr, t_ptr, seed_ptr, num, c, p, scale,
        D: tl.constexpr, DROP: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr,
    ):  # fmt: skip
        block = tl.program_id(0).to(tl.int64) * BLOCK
        u0, u1, u2, u3 = tl.rand4x(tl.load(seed_ptr), block + tl.arange(0, BLOCK))
        at = 4 * block + tl.arange(0, BLOCK)
        _activate(s_ptr, terms_ptr, h_ptr, t_ptr, at, num, u0, p, scale, c, D, DROP, TYPE)
        _activate(s_ptr, terms_ptr, h_ptr, t_ptr, at + BLOCK, num, u1, p, scale, c, D, DROP, TYPE)
        _activate(s_ptr, terms_ptr, h_ptr, t_ptr, at + 2 * BLOCK, num, u2, p, scale, c, D, DROP, TYPE)
        _activate(s_ptr, terms_ptr, h_ptr, t_ptr, at + 3 * BLOCK, num, u3, p, scale, c, D, DROP, TYPE)

    @triton.jit(do_not_specialize=["n", "c"])
    def _sums(  # type: ignore[no-untyped-def]
        s_ptr, terms_ptr, gt_ptr, t_ptr, gh_ptr, h_ptr, out_ptr, n, c, scale, T: tl.constexpr, H: tl.constexpr,
        D: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, TYPE: tl.constexpr,
    ):  # fmt: skip
        group, k = tl.program_id(1), tl.arange(0, WIDTH)
        begin, end = tl.where(group == 0, 0, c), tl.where(group == 0, c, n)
        mean = tl.load(terms_ptr + group * 4 * D + k, mask=k < D, other=0.0)
        inverse = tl.load(terms_ptr + group * 4 * D + D + k, mask=k < D, other=0.0)
        total, along = tl.zeros((WIDTH,), dtype=TYPE), tl.zeros((WIDTH,), dtype=TYPE)
        for start in range(begin + tl.program_id(0) * ROWS, end, tl.num_programs(0) * ROWS):
            row = start + tl.arange(0, ROWS).to(tl.int64)
            mask, at = (row < end)[:, None] & (k < D)[None, :], row[:, None] * D + k[None, :]
            x = (tl.load(s_ptr + at, mask=mask, other=0.0).to(TYPE) - mean[None, :]) * inverse[None, :]
            g = relu_dropout_adjoint(at, mask, gt_ptr, t_ptr, gh_ptr, h_ptr, scale, T, H, TYPE)
            total += tl.sum(g, 0)
            along += tl.sum(g * x, 0)
        out = out_ptr + (group * tl.num_programs(0) + tl.program_id(0)) * 2 * D + k
        tl.store(out, total, mask=k < D)
        tl.store(out + D, along, mask=k < D)

    @triton.jit(do_not_specialize=["num", "c"])
    def _backward(  # type: ignore[no-untyped-def]
        s_ptr, terms_ptr, means_ptr, gt_ptr, t_ptr, gh_ptr, h_ptr, ds_ptr, real_ptr, num, c, scale,
        PADDED: tl.constexpr, T: tl.constexpr, H: tl.constexpr,
        D: tl.constexpr, BLOCK: tl.constexpr, TYPE: tl.constexpr,
    ):  # fmt: skip
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        mask, column, group = at < num, at % D, (at // D >= c).to(tl.int32)
        term, means = terms_ptr + group * 4 * D + column, means_ptr + group * 2 * D + column
        inverse = tl.load(term + D, mask=mask, other=0.0)
        x = (tl.load(s_ptr + at, mask=mask, other=0.0).to(TYPE) - tl.load(term, mask=mask, other=0.0)) * inverse
        g = relu_dropout_adjoint(at, mask, gt_ptr, t_ptr, gh_ptr, h_ptr, scale, T, H, TYPE)
        g -= tl.load(means, mask=mask, other=0.0) + x * tl.load(means + D, mask=mask, other=0.0)
        if PADDED:  # the adjoints of padding are zero
            g = tl.where(at // D - group * c < tl.load(real_ptr + group, mask=mask, other=0), g, 0.0)
        tl.store(ds_ptr + at, g * inverse * tl.load(term + 2 * D, mask=mask, other=0.0), mask=mask)


@dataclass(frozen=True)
class Group:
    """How the rows of a group are normalised: y = (x - mean) / sqrt(var + eps) gain + shift.

    Args:
        constant: ``mean`` and ``var`` are constants; else they are the statistics of these rows, which the gradient
            flows through.
    """

    mean: Tensor
    var: Tensor
    gain: Tensor
    shift: Tensor
    constant: bool = False


def moments(s: Tensor, num_core: int, num_real: Tensor | None = None) -> list[tuple[Tensor, Tensor]]:
    """The mean and the variance (over n) of the core rows, and of the halo rows where there are any.

    Args:
        num_real: the core rows, and the halo rows, that are not padding, int64 [groups]; None: there is no padding.
    """
    s = s.detach().contiguous()
    (n, d), sizes = s.shape, [num_core, s.shape[0] - num_core]
    groups, programs = 1 + (sizes[1] > 0), min(PROGRAMS, triton.cdiv(max(sizes), ROWS))
    dtype = torch.promote_types(s.dtype, torch.float32)
    sums = torch.empty(groups, programs, 2, d, dtype=dtype, device=s.device)
    _moments[(programs, groups)](
        s, sums, sums if num_real is None else num_real, n, num_core, PADDED=num_real is not None, **_sizes(s)
    )
    found, counts = [], sizes if num_real is None else num_real.split(1)
    for (total, squares), first, size in zip(total_of(sums), (s[0], s[min(num_core, n - 1)]), counts, strict=False):
        shift = total / size
        found.append((first + shift, (squares / size - shift.square()).clamp_min(0)))
    return found


def batch_norm_relu_dropout(
    s: Tensor, num_core: int, groups: list[Group], eps: float, p: float, generator: torch.Generator | None,
    num_real: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """h = relu of the normalised rows, and h after dropout; None where p = 0.

    ``gain`` and ``shift`` of the core take their gradient from core rows; those of the halo take none.
    """
    each = [torch.stack([g.mean, (g.var + eps).rsqrt(), g.gain, g.shift]) for g in groups]
    terms, constant = torch.stack(each).detach(), tuple(g.constant for g in groups)
    return _NormReluDropout.apply(s, groups[0].gain, groups[0].shift, terms, num_core, constant, p, generator, num_real)


class _NormReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, s: Tensor, gain: Tensor, shift: Tensor, terms: Tensor, num_core: int, constant: tuple[bool, ...],
        p: float, generator: torch.Generator | None, num_real: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        s, scale = s.contiguous(), 1 / (1 - p)
        h, t = torch.empty_like(s), torch.empty_like(s) if p else None
        seed = seed_of(s, generator) if p else torch.zeros(1, dtype=torch.int64, device=s.device)
        num, sizes = s.numel(), _sizes(s)
        _forward[(triton.cdiv(num, 4 * BLOCK),)](
            s, terms, h, h if t is None else t, seed, num, num_core, p, scale,
            D=sizes["D"], DROP=p > 0, BLOCK=BLOCK, TYPE=sizes["TYPE"], num_warps=16,
        )  # fmt: skip
        ctx.save_for_backward(s, terms, h, t)
        ctx.num_core, ctx.constant, ctx.scale, ctx.num_real = num_core, constant, scale, num_real
        ctx.set_materialize_grads(False)
        return h, t

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        s, terms, h, t = ctx.saved_tensors
        c, (n, d), sizes = ctx.num_core, s.shape, _sizes(s)
        given, which = adjoint_arguments(h, t, *grads)
        programs = min(PROGRAMS, triton.cdiv(max(c, n - c), ROWS))
        sums = terms.new_empty(len(ctx.constant), programs, 2, d)
        _sums[(programs, len(ctx.constant))](s, terms, *given, sums, n, c, ctx.scale, **which, **sizes)
        total = total_of(sums)
        sizes_of = (c, n - c) if ctx.num_real is None else ctx.num_real.split(1)
        means = torch.stack(
            [
                of * 0 if constant else of / size
                for of, constant, size in zip(total, ctx.constant, sizes_of, strict=False)
            ]
        )
        ds, padded = torch.empty_like(s), ctx.num_real is not None
        _backward[(triton.cdiv(s.numel(), BACKWARD_BLOCK),)](
            s, terms, means, *given, ds, ctx.num_real if padded else s, s.numel(), c, ctx.scale, **which, PADDED=padded,
            D=sizes["D"], BLOCK=BACKWARD_BLOCK, TYPE=sizes["TYPE"], num_warps=8,
        )  # fmt: skip
        return ds, total[0, 1], total[0, 0], None, None, None, None, None, None


def _sizes(s: Tensor) -> dict[str, Any]:
    d = s.shape[1]
    kind = tl.float64 if s.dtype == torch.float64 else tl.float32
    return {"D": d, "ROWS": ROWS, "WIDTH": triton.next_power_of_2(d), "TYPE": kind}
