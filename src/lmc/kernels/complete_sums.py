"""The row-wise work of CMC (:mod:`lmc.methods.cmc`) as Triton kernels.

Plain torch passes over the rows of ext about fifteen times: it gathers, scales, subtracts, copies back,
each on its own, and measures in two dozen small launches. Here every row is read once and written once, and two
launches measure. :meth:`lmc.methods.cmc.RowsAndSums.read` is the reference, and what runs elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lmc.kernels.availability import tl, triton

ROWS = 4
"""Rows a program serves."""
CHUNK = 32
"""Rows of a sample whose sums one program makes: few programs, since one alone adds up what they made."""
TILE = 16
"""Rows, or sums of programs, that are loaded at a time."""
BLOCK = 1024
"""Rows whose trust a program computes."""

if triton is not None:
    # Sizes that differ from batch to batch are not compiled in (do_not_specialize).

    @triton.jit
    def _tile(ext_ptr, n, d, ROWS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
        i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        k = tl.arange(0, WIDTH)
        node = tl.load(ext_ptr + i, mask=i < n, other=0)
        inside = (i < n)[:, None] & (k < d)[None, :]
        return i, k, i[:, None] * d + k[None, :], node[:, None] * d + k[None, :], inside

    @triton.jit(do_not_specialize=["n", "c"])
    def _difference(  # type: ignore[no-untyped-def]
        t_ptr, clean_ptr, T_ptr, ext_ptr, a_ptr, delta_ptr, change_ptr, n, c, d,
        KEEP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        i, k, here, there, inside = _tile(ext_ptr, n, d, ROWS, WIDTH)
        a = tl.load(a_ptr + k, mask=k < d, other=0.0)
        accumulate_dtype = a_ptr.dtype.element_ty
        T = tl.load(T_ptr + there, mask=inside, other=0.0).to(accumulate_dtype)
        t = tl.load(t_ptr + here, mask=inside, other=0.0).to(accumulate_dtype)
        tl.store(delta_ptr + here, t - a[None, :] * T, mask=inside)
        if KEEP:
            core = inside & (i < c)[:, None]
            clean = tl.load(clean_ptr + here, mask=core, other=0.0).to(accumulate_dtype)
            tl.store(change_ptr + here, clean - T, mask=core)
            tl.store(T_ptr + there, clean, mask=core)

    @triton.jit(do_not_specialize=["n", "first"])
    def _base_sums(  # type: ignore[no-untyped-def]
        M_ptr, A_ptr, ext_ptr, a_ptr, base_ptr, n, d, first,
        KEEP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        i, k, here, there, inside = _tile(ext_ptr, n, d, ROWS, WIDTH)
        a = tl.load(a_ptr + k, mask=k < d, other=0.0)
        M = tl.load(M_ptr + there, mask=inside, other=0.0)
        tl.store(base_ptr + here, a[None, :] * M, mask=inside)
        if KEEP:
            changed = inside & (i >= first)[:, None]
            A = tl.load(A_ptr + (i - first)[:, None] * d + k[None, :], mask=changed, other=0.0)
            tl.store(M_ptr + there, M + A, mask=changed)

    @triton.jit(do_not_specialize=["nodes", "n", "c", "core_step", "halo_step"])
    def _sums(  # type: ignore[no-untyped-def]
        clean_ptr, T_ptr, ext_ptr, out_ptr, nodes, n, c, d, core_step, halo_step,
        CHUNK: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        halo = tl.program_id(1)
        step = tl.where(halo == 1, halo_step, core_step)
        end = tl.where(halo == 1, n, c)
        k, g = tl.arange(0, WIDTH), tl.arange(0, TILE)
        accumulate_dtype = out_ptr.dtype.element_ty
        zero = tl.zeros((TILE, WIDTH), dtype=accumulate_dtype)
        ff, fT, TT = zero, zero, zero
        for first in tl.static_range(0, CHUNK, TILE):  # unrolled, so that no load waits for the sums before it
            i = halo * c + (tl.program_id(0) * CHUNK + first + g).to(tl.int64) * step
            inside = (i < end)[:, None] & (k < d)[None, :]
            node = tl.load(ext_ptr + i, mask=i < end, other=0)
            inside = inside & (node < nodes)[:, None]  # rows of padding are not measured
            f = tl.load(clean_ptr + i[:, None] * d + k[None, :], mask=inside, other=0.0).to(accumulate_dtype)
            T = tl.load(T_ptr + node[:, None] * d + k[None, :], mask=inside, other=0.0).to(accumulate_dtype)
            ff += f * f
            fT += f * T
            TT += T * T
        out = out_ptr + (tl.program_id(0) * 2 + halo) * 3 * d + k
        tl.store(out, tl.sum(ff, 0), mask=k < d)
        tl.store(out + d, tl.sum(fT, 0), mask=k < d)
        tl.store(out + 2 * d, tl.sum(TT, 0), mask=k < d)

    @triton.jit(do_not_specialize=["programs"])
    def _conclude(  # type: ignore[no-untyped-def]
        sums_ptr, a_ptr, R2_ptr, place_ptr, programs, d,
        DRIFTS: tl.constexpr, STORE: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
    ):  # fmt: skip
        k = tl.arange(0, WIDTH)
        zero = tl.zeros((WIDTH,), dtype=sums_ptr.dtype.element_ty)
        ff, fT, TT, fT_halo, TT_halo = zero, zero, zero, zero, zero
        for first in range(0, programs, TILE):
            for g in tl.static_range(TILE):  # a column is added up by one thread, which waits for no other
                core = sums_ptr + (first + g) * 6 * d + k
                inside = (first + g < programs) & (k < d)
                ff += tl.load(core, mask=inside, other=0.0)
                fT += tl.load(core + d, mask=inside, other=0.0)
                TT += tl.load(core + 2 * d, mask=inside, other=0.0)
                fT_halo += tl.load(core + 4 * d, mask=inside, other=0.0)
                TT_halo += tl.load(core + 5 * d, mask=inside, other=0.0)
        a = tl.where(TT_halo > 0, fT_halo / tl.where(TT_halo > 0, TT_halo, 1.0), 1.0)
        a = tl.minimum(tl.maximum(a, 0.0), 2.0) if DRIFTS else 0.0 * a + 1.0
        tl.store(a_ptr + k, a, mask=k < d)
        if STORE:
            missed, size = tl.sum(ff - 2 * a * fT + a * a * TT), tl.sum(ff)
            R2 = tl.where(size > 0, 1 - missed / tl.where(size > 0, size, 1.0), 1.0)
            tl.store(R2_ptr + tl.load(place_ptr), tl.minimum(tl.maximum(R2, 0.0), 1.0))

    @triton.jit(do_not_specialize=["batches", "n", "c"])
    def _tau(  # type: ignore[no-untyped-def]
        part_ptr, R2_ptr, place_ptr, tau_ptr, batches, n, c, BLOCK: tl.constexpr, BATCHES: tl.constexpr
    ):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        b = tl.arange(0, BATCHES)
        mean = tl.sum(tl.load(R2_ptr + b, mask=b < batches, other=0.0)) / batches
        missed = 1 - tl.minimum(tl.load(R2_ptr + tl.load(place_ptr)), mean)
        part = tl.load(part_ptr + i - c, mask=(i >= c) & (i < n), other=0.0)
        tl.store(tau_ptr + i, tl.minimum(tl.maximum(3 - 20 * part * missed, 0.0), 1.0), mask=i < n)


def read(
    T: Tensor,
    M: Tensor,
    rows: Tensor,
    t: Tensor,
    clean: Tensor,
    num_core: int,
    sample: int,
    drifts: bool,
    R2: tuple[Tensor, Tensor] | None,
    sum_core: Callable[[Tensor], Tensor] | None,
    add_core: Callable[[Tensor], object] | None = None,
) -> tuple[Tensor, Tensor]:
    """a M[rows] and t - a T[rows]. With ``sum_core``, T[core] <- clean_core, and M[rows] += A afterwards.

    Args:
        T, M: the rows and the sums; ``rows`` are the numbers of the rows of ext in them.
        R2: where R2 is stored, and the place in it; None: it is not measured.
        sum_core: x -> P[ext, core] x, which makes A of clean_core - T[core]; None: nothing is kept.
        add_core: x -> M[core] += P[core, core] x; ``sum_core`` then makes the halo rows of A alone.
    """
    a = measure(clean, T, rows, num_core, sample, drifts, R2)
    t, clean, keep = t.contiguous(), clean.contiguous(), sum_core is not None
    (n, d), (grid, width) = t.shape, _shape(t)
    delta, change = torch.empty_like(t), t.new_empty(num_core, d, dtype=_accumulate_dtype(t))
    _difference[grid](t, clean, T, rows, a, delta, change, n, num_core, d, KEEP=keep, ROWS=ROWS, WIDTH=width)
    A = None if sum_core is None else sum_core(change)
    base = M.new_empty(n, d, dtype=t.dtype)
    first = 0 if add_core is None else num_core
    _base_sums[grid](M, base if A is None else A, rows, a, base, n, d, first, KEEP=keep, ROWS=ROWS, WIDTH=width)
    if add_core is not None:
        add_core(change)
    return base, delta


def measure(
    clean: Tensor, T: Tensor, ext: Tensor, num_core: int, sample: int, drifts: bool, R2: tuple[Tensor, Tensor] | None
) -> Tensor:
    """The drift a from evenly spaced rows of core and halo; R2 is stored in its place."""
    clean = clean.contiguous()
    (n, d), c = clean.shape, num_core
    steps = [max(1, num // sample) for num in (c, n - c)]
    programs = max(triton.cdiv(triton.cdiv(num, step), CHUNK) for num, step in zip((c, n - c), steps, strict=True))
    sums, a = (T.new_empty(shape, dtype=_accumulate_dtype(T)) for shape in ((programs, 2, 3, d), (d,)))
    _, width = _shape(clean)
    _sums[(programs, 2)](clean, T, ext, sums, T.shape[0], n, c, d, *steps, CHUNK=CHUNK, TILE=TILE, WIDTH=width)
    stored, place = (a, ext) if R2 is None else R2
    _conclude[(1,)](
        sums, a, stored, place, programs, d, DRIFTS=drifts, STORE=R2 is not None, TILE=TILE, WIDTH=width, num_warps=8
    )
    return a


def trust(R2: Tensor, place: Tensor, part: Tensor, num_core: int) -> Tensor:
    """tau of every row, [core and halo rows, 1] (:func:`lmc.methods.cmc.trust`)."""
    n, batches = num_core + part.numel(), R2.numel()
    tau, grid = R2.new_empty(n, 1), (triton.cdiv(n, BLOCK),)
    _tau[grid](part, R2, place, tau, batches, n, num_core, BLOCK=BLOCK, BATCHES=triton.next_power_of_2(batches))
    return tau


def _accumulate_dtype(rows: Tensor) -> torch.dtype:
    return torch.promote_types(rows.dtype, torch.float32)


def _shape(rows: Tensor) -> tuple[tuple[int], int]:
    return (triton.cdiv(rows.shape[0], ROWS),), triton.next_power_of_2(rows.shape[1])
