"""Rows of equal length as dense blocks: every row is visited once, and permutations and self-loops are as written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from lmc.graph import CSR, MappedFiles, equal_rows
from lmc.graph.csr import from_rows
from lmc.graph.normalise import NORMALISATIONS, normalise, with_self_loops
from lmc.graph.submatrices import permuted


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"], autouse=True)
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(equal_rows, "BLOCK", 7)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def matrix(dtype: torch.dtype = torch.float64) -> CSR:
    """A square matrix with empty rows, a long row, no diagonal, values and edge data."""
    generator = torch.Generator().manual_seed(3)
    dense = torch.rand(23, 23, generator=generator) < torch.rand(23, 1, generator=generator) ** 2
    dense[5], dense[11] = True, False
    rows, cols = dense.fill_diagonal_(False).nonzero().unbind(1)
    values = torch.rand(rows.numel(), generator=generator).to(dtype)
    return replace(from_rows(rows, cols, values, (23, 23)), edge_data=torch.stack([values, -values], 1))


@pytest.mark.parametrize("lengths", [[], [3], [0, 2, 9, 2, 0, 2, 2, 2, 9]])
def test_every_row_is_visited_once_in_blocks_of_its_length(lengths: list[int]) -> None:
    seen: list[tuple[int, np.ndarray]] = []
    equal_rows.for_equal_rows(torch.tensor(lengths, dtype=torch.int32), lambda *block: seen.append(block))
    assert sorted(row for _, rows in seen for row in rows) == list(range(len(lengths)))
    assert all(lengths[row] == length for length, rows in seen for row in rows)
    assert all(rows.size == 1 or rows.size * max(1, length) <= 7 for length, rows in seen)


def test_an_error_of_a_block_is_raised() -> None:
    def fail(length: int, rows: np.ndarray) -> None:
        raise ValueError(f"length {length}")

    with pytest.raises(ValueError, match="length 4"):
        equal_rows.for_equal_rows(torch.tensor([4]), fail)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_permutation_in_memory_is_the_one_in_files(dtype: torch.dtype) -> None:
    A, order = matrix(dtype), torch.randperm(23, generator=torch.Generator().manual_seed(1))
    B, mapped = permuted(A, order), permuted(A, order, MappedFiles())
    assert torch.equal(B.to_dense(), A.to_dense()[order][:, order])
    for name in ("indptr", "indices", "values", "edge_data"):
        assert torch.equal(getattr(B, name), getattr(mapped, name))


def test_self_loops_of_a_pattern_are_those_of_a_weighted_matrix() -> None:
    A = matrix()
    weighted = permuted(A, torch.arange(22, -1, -1))  # its columns are not sorted
    bare = replace(weighted, values=None, edge_data=None)
    looped, wanted = with_self_loops(bare), with_self_loops(weighted)
    assert torch.equal(looped.indptr, wanted.indptr)
    assert torch.equal(looped.indices, wanted.indices)
    with_files = with_self_loops(replace(bare, files=MappedFiles()))
    assert torch.equal(with_files.indices, wanted.indices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", NORMALISATIONS)
def test_values_by_rows_of_equal_length_are_those_by_chunks(kind: str, dtype: torch.dtype) -> None:
    """Bit for bit, also of the transpose, which the mean keeps with it."""
    dense = matrix().to_dense() != 0
    rows, cols = (dense | dense.t()).nonzero().unbind(1)
    A = replace(from_rows(rows, cols, None, (23, 23)), symmetric=True)
    found, wanted = (normalise(each, kind, dtype) for each in (A, replace(A, files=MappedFiles())))
    for a, b in ((found, wanted), (found.t(), wanted.t())):
        assert torch.equal(a.indices, b.indices)
        assert a.dtype == b.dtype == dtype
        assert torch.equal(a.data.view(torch.uint8), b.data.view(torch.uint8))
