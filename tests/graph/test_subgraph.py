"""Blocks of a matrix against dense indexing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import chance, random_graph
from lmc.graph import Extractor, gcn_norm

CORES = [torch.tensor([7]), torch.tensor([4, 30, 2, 11]), torch.arange(10, 25), torch.arange(40)]


@pytest.fixture
def blocks() -> Extractor:
    return Extractor(gcn_norm(random_graph().adj, torch.float64))


@pytest.mark.parametrize("core", CORES)
def test_halo_is_the_neighbours_outside_the_core(blocks: Extractor, core: Tensor) -> None:
    reached = (blocks.P.to_dense()[core] != 0).any(0)
    reached[core] = False
    assert torch.equal(blocks.halo(core), reached.nonzero().squeeze(1))


@pytest.mark.parametrize("core", CORES)
def test_induced_is_the_square_block_in_the_order_given(blocks: Extractor, core: Tensor) -> None:
    cut = blocks.induced(core)
    assert torch.equal(cut.to_dense(), blocks.P.to_dense()[core][:, core])
    assert cut.symmetric


@pytest.mark.parametrize("chunk", [1, 12, 2**20])
@pytest.mark.parametrize("seed", range(3))
def test_block_matches_dense_indexing(
    blocks: Extractor, seed: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("csr", "submatrices"):  # entries that are read at a time
        monkeypatch.setattr(f"lmc.graph.{module}.CHUNK", chunk)
    order = torch.randperm(40, generator=chance(seed))
    for rows, cols in ((order[:9], order[5:25]), (order[:9], order[:0]), (order[:0], order[5:25])):
        assert torch.equal(blocks.block(rows, cols).to_dense(), blocks.P.to_dense()[rows][:, cols])


def test_a_block_does_not_depend_on_the_block_before(blocks: Extractor) -> None:
    first = torch.arange(20)
    second = torch.arange(10, 30)
    blocks.induced(first)
    assert torch.equal(blocks.induced(second).to_dense(), blocks.P.to_dense()[second][:, second])


def test_core_rows_with_their_halo_are_complete(blocks: Extractor) -> None:
    core = torch.tensor([4, 30, 2, 11])
    ext = torch.cat([core, blocks.halo(core)])
    torch.testing.assert_close(
        blocks.block(core, ext).to_dense().sum(1), blocks.P.to_dense()[core].sum(1), rtol=0, atol=1e-15
    )
