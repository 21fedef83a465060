"""Transfers of rows: the plain torch versions on a small example, and the kernels against them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from helpers import chance
from lmc.kernels.packed import Packed
from lmc.kernels.row_transfers import RowCache, absent, append, gather, overlay, pack, scatter
from lmc.stores import StagedTable, host_zeros

CPU = torch.device("cpu")


def test_a_cache_finds_its_rows_whatever_it_held_before() -> None:
    slots = torch.full((12,), 7, dtype=torch.int32)
    cache = RowCache(torch.arange(8), filled(8, 0.0), slots)
    append(cache, torch.tensor([3, 9]), filled(2, 1.0))
    append(cache, slice(9, 11), filled(2, 2.0))
    out = filled(4, 0.0)
    overlay(out, torch.tensor([3, 7, 9, 10]), cache)
    for member in out:
        assert member[:, 0].tolist() == [1, 0, 2, 2]


def filled(
    num: int,
    value: float,
    widths: Sequence[int] = (3, 2),
    dtype: torch.dtype = torch.float32,
    on: torch.device = CPU,
) -> Packed:
    return Packed.over(torch.full((num * sum(widths),), value, dtype=dtype, device=on), widths)


@pytest.mark.gpu
@pytest.mark.parametrize("widths", [(3,), (40,), (256,), (300,), (256, 40, 256), (3, 300)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_kernels_equal_the_plain_versions(widths: tuple[int, ...], dtype: torch.dtype) -> None:
    n, cuda = 1000, torch.device("cuda")
    made = StagedTable(host_zeros(n, widths, dtype, cuda))
    assert made.host.kernels_write, "page-locking failed"
    values = Packed.over(torch.randn(n * sum(widths), generator=chance(1)).to(dtype), widths)
    for k, member in enumerate(values):
        made.push(slice(0, n), member, k)
    rows = torch.randperm(n, generator=chance(2))[:500]
    out = [filled(510, 0.0, widths, dtype, on).rows(7, 500) for on in (CPU, cuda)]
    for on, into, host in ((CPU, out[0], values), (cuda, out[1], made.host.packed)):
        caches = []
        for first in (0, 150, 250, 300):
            slots = torch.zeros(n, dtype=torch.int32, device=on)
            empty = filled(300, 0.0, widths, dtype, on)
            cache = RowCache(torch.zeros(300, dtype=torch.int64, device=on), empty, slots)
            append(cache, slice(first, first + 100), filled(120, float(first), widths, dtype, on).rows(10, 100))
            more = torch.arange(600 + first, 700 + first, 3, device=on)
            append(cache, more, filled(more.numel(), first + 1.0, widths, dtype, on))
            caches.append(cache)
        slots = torch.zeros(n, dtype=torch.int32, device=on)
        gather(host, rows.to(on), into, tuple(caches), slots)
        assert torch.equal(slots.cpu()[rows], torch.arange(500, dtype=torch.int32))
        overlay(into.rows(0, 100), rows[100:200].to(on), caches[0])
    for mine, want in zip(out[1], out[0], strict=True):
        assert torch.equal(mine.cpu(), want)
    scatter(out[1], rows.to(cuda), made.host.packed)
    wanted = [made.data(k).clone() for k in range(len(widths))]
    for mine, want in zip(wanted, out[0], strict=True):
        assert torch.equal(mine[rows], want)
    left = absent(rows.to(cuda), (caches[1], caches[3])).cpu()
    for want, member in zip(wanted, out[1], strict=True):
        member += 2
        want[rows[left]] = member.cpu()[left]
    scatter(out[1], rows.to(cuda), made.host.packed, (caches[1], caches[3]))
    for k, want in enumerate(wanted):
        assert torch.equal(made.data(k), want)


@pytest.mark.parametrize("by_kernel", [False, pytest.param(True, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_chosen_rows_are_packed_with_their_numbers(share: float, by_kernel: bool) -> None:
    n, widths, on = 1000, (256, 40), torch.device("cuda" if by_kernel else "cpu")
    values = Packed.over(torch.randn(n * sum(widths), generator=chance(1)).to(on), widths)
    some, rows = values.rows(7, 900), torch.randperm(5000, generator=chance(2))[:900]
    chosen = torch.rand(900, generator=chance(3)) < share
    flat, numbers = (torch.zeros(size, dtype=dtype, pin_memory=by_kernel) for size, dtype in
                     ((n * sum(widths), torch.float32), (901, torch.int64)))  # fmt: skip
    out = values.with_values(flat)
    pack(some, rows.to(on), chosen.to(on), out, numbers, by_kernel)
    if by_kernel:
        torch.cuda.synchronize()
    num = int(chosen.sum())
    assert numbers[-1] == num
    assert torch.equal(numbers[:num], rows[chosen])
    for mine, others in zip(out, some, strict=True):
        assert torch.equal(mine[:num], others.cpu()[chosen])
        assert not mine[num:].any()
