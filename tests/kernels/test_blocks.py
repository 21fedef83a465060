"""Blocks that are cut, and rows and entries that are padded, by kernels, against plain torch."""

from __future__ import annotations

import pytest
import torch

from helpers import random_sparse
from lmc.graph import CSR, Extractor
from lmc.kernels.padded import pad_entries, pad_rows, pad_starts

pytestmark = pytest.mark.gpu


def same(a: CSR, b: CSR) -> None:
    assert a.shape == b.shape
    for mine, other in ((a.indptr, b.indptr), (a.indices, b.indices), (a.data, b.data)):
        assert torch.equal(mine.cpu(), other.cpu())


@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("density", [0.02, 0.9])
def test_blocks_and_halos_are_those_of_plain_torch(density: float, wide: bool) -> None:
    P = random_sparse(200, 200, density=density)
    P = CSR(P.indptr.long() if wide else P.indptr, P.indices, P.values, P.num_cols)
    here, there = Extractor(P), Extractor(P.to("cuda"))
    chance = torch.Generator().manual_seed(0)
    for size in (1, 30, 200):
        rows, cols = (torch.randperm(200, generator=chance)[:size] for _ in range(2))
        same(there.block(rows.cuda(), cols.cuda()), here.block(rows, cols))
        same(there.induced(rows.cuda()), here.induced(rows))
        assert torch.equal(there.halo(rows.cuda()).cpu(), here.halo(rows))
    assert bool((there._row == -1).all())


@pytest.mark.parametrize("halo", [0, 37])
def test_padding_is_that_of_plain_torch(halo: int) -> None:
    c, core, n = 21, 30, 400
    chance = torch.Generator().manual_seed(0)
    nodes = torch.randperm(n, generator=chance)
    train = torch.rand(n, generator=chance) < 0.5
    P = random_sparse(c + halo, c + halo)
    found = []
    for device in ("cpu", "cuda"):
        room = core + halo + 9 if halo else core
        ext, labelled = (
            torch.empty(room, dtype=torch.int64, device=device),
            torch.empty(room, dtype=torch.bool, device=device),
        )
        read = pad_rows(nodes[:c].to(device), nodes[c : c + halo].to(device), train.to(device), core, ext, labelled)
        matrix = P.to(device)
        starts = torch.empty(room + 1, dtype=torch.int32, device=device)
        entries = (
            torch.empty(P.nnz + 50, dtype=torch.int32, device=device),
            torch.empty(P.nnz + 50, dtype=P.dtype, device=device),
        )
        pad_starts(matrix.indptr, starts, c, core, core + halo + 1 if halo else c + 1, P.nnz, P.nnz + 50)
        pad_entries(matrix.indices, matrix.data, entries, c, core - c)
        found.append([ext, labelled, read, starts, *entries])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b.cpu())
    assert int(found[0][3][-1]) == P.nnz + 50
