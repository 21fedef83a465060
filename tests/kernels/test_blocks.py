"""Blocks that are cut by kernels, with and without padding, against plain torch."""

from __future__ import annotations

import pytest
import torch

from helpers import random_sparse
from lmc.graph import CSR, Extractor, PaddedExtractor, Room, with_empty_row

pytestmark = pytest.mark.gpu


def same(a: CSR, b: CSR) -> None:
    assert a.shape == b.shape
    for mine, other in ((a.indptr, b.indptr), (a.indices, b.indices), (a.data, b.data)):
        assert torch.equal(mine.cpu(), other.cpu())


@pytest.mark.parametrize("int64", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("density", [0.02, 0.9])
def test_blocks_and_halos_are_those_of_plain_torch(density: float, int64: bool) -> None:
    P = random_sparse(200, 200, density=density)
    P = CSR(P.indptr.long() if int64 else P.indptr, P.indices, P.values, P.num_cols)
    here, there = Extractor(P), Extractor(P.to("cuda"))
    chance = torch.Generator().manual_seed(0)
    for size in (1, 30, 200):
        rows, cols = (torch.randperm(200, generator=chance)[:size] for _ in range(2))
        same(there.block(rows.cuda(), cols.cuda()), here.block(rows, cols))
        same(there.induced(rows.cuda()), here.induced(rows))
        assert torch.equal(there.halo(rows.cuda()).cpu(), here.halo(rows))
    assert bool((there._row == -1).all())


def test_a_long_row_is_cut_as_the_others() -> None:
    """Rows of more than 1,024 entries are read in larger pieces."""
    n, chance = 3_000, torch.Generator().manual_seed(0)
    lengths = torch.tensor([0, 3, 64, 65, 1_024, 1_025, 2_048, 2_777, n])
    columns = [torch.randperm(n, generator=chance)[:length].sort().values for length in lengths.tolist()]
    indptr = torch.zeros(n + 1, dtype=torch.int32)
    indptr[1:] = torch.cat([lengths.cumsum(0), lengths.sum().expand(n - len(lengths))])
    P = CSR(indptr, torch.cat(columns).int(), torch.randn(int(lengths.sum()), generator=chance), n)
    here, there = Extractor(P), Extractor(P.to("cuda"))
    rows, cols = torch.arange(len(lengths)), torch.randperm(n, generator=chance)[:1_500]
    same(there.block(rows.cuda(), cols.cuda()), here.block(rows, cols))
    for row in rows.split(1):
        assert torch.equal(there.halo(row.cuda()).cpu(), here.halo(row))


@pytest.mark.parametrize("room", [4000, 60], ids=["enough", "too few"])
def test_blocks_of_fixed_size_are_those_of_plain_torch(room: int) -> None:
    c, h, n = 30, 50, 200
    P = random_sparse(n, n)
    sizes = Room(c, h, {(a, b): room for a in ("core", "halo") for b in ("core", "halo")})
    core = torch.full((c,), n)
    core[:21] = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:21]
    found = []
    for device in ("cpu", "cuda"):
        noted: list[tuple[torch.Tensor, int]] = []
        extractor = PaddedExtractor(with_empty_row(P.to(device)), sizes, noted)
        halo = extractor.halo(core.to(device), both=True)
        ext = torch.cat([core.to(device), halo])
        block = extractor.block(ext, ext)
        made = [block, block.t(), block.leading(c), *block.columns(c)]
        found.append((halo, made, [(int(number), limit) for number, limit in noted]))
    (halo, made, noted), (halo_gpu, made_gpu, noted_gpu) = found
    assert torch.equal(halo, halo_gpu.cpu())
    assert noted == noted_gpu
    for a, b in zip(made, made_gpu, strict=True):
        if room == 4000:
            same(b, a)
        else:  # which entries are left out is not promised; row pointers and columns stay within their limits
            assert int(b.indptr.max()) <= b.nnz
            assert int(b.indices.max()) < b.num_cols
