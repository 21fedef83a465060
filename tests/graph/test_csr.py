"""The sparse format against dense matrices."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from helpers import random_graph, random_sparse, sparse
from lmc.errors import GraphError
from lmc.graph import CSR, Graph, normalise
from lmc.graph.csr import chosen_entries, from_rows, pointers, row_entries, with_empty_rows


def test_to_dense_inverts_from_rows() -> None:
    rows, cols = torch.tensor([0, 0, 2, 3]), torch.tensor([1, 2, 0, 1])
    A = from_rows(rows, cols, torch.tensor([1.0, 2.0, 3.0, 4.0]), (4, 3))
    want = torch.tensor([[0, 1, 2], [0, 0, 0], [3, 0, 0], [0, 4, 0]], dtype=torch.float32)
    assert torch.equal(A.to_dense(), want)
    assert A.shape == (4, 3)
    assert A.nnz == 4
    assert A.indptr.dtype == A.indices.dtype == torch.int32


def test_pointers_are_running_counts() -> None:
    assert pointers(torch.tensor([2, 0, 3])).tolist() == [0, 2, 2, 5]


def test_row_index_and_degrees_agree_with_dense_counts() -> None:
    A = random_sparse(7, 5)
    assert torch.equal(A.degrees().long(), (A.to_dense() != 0).sum(1))
    assert torch.equal(A.row_index(), A.to_dense().nonzero()[:, 0])


def test_transpose_matches_dense_and_keeps_rows_sorted() -> None:
    A = random_sparse(7, 5)
    T = A.t()
    assert torch.equal(T.to_dense(), A.to_dense().t())
    for i in range(T.num_rows):
        row = T.indices[T.indptr[i] : T.indptr[i + 1]]
        assert torch.equal(row, row.sort().values)


def test_transpose_of_a_pattern_has_no_values() -> None:
    A = random_sparse(6, 4)
    pattern = CSR(A.indptr, A.indices, None, A.num_cols)
    assert pattern.t().values is None
    assert torch.equal(pattern.t().to_dense(), (A.to_dense() != 0).t().float())


def test_a_matrix_with_other_values_has_another_transpose() -> None:
    """A matrix keeps what it has computed, which is that of its own values."""
    A = random_sparse(7, 5)
    A.t()
    B = replace(A, values=2 * A.data)
    assert torch.equal(B.t().to_dense(), 2 * A.to_dense().t())


def test_symmetric_matrix_is_its_own_transpose() -> None:
    A = random_sparse(6, 6)
    S = sparse(A.to_dense() + A.to_dense().t())
    symmetric = CSR(S.indptr, S.indices, S.values, 6, symmetric=True)
    assert symmetric.t() is symmetric


@pytest.mark.parametrize("rows", [torch.tensor([5, 0, 3]), torch.tensor([3]), slice(1, 5), slice(0, 0), slice(0, 7)])
def test_select_rows_matches_dense_indexing(rows: Tensor | slice) -> None:
    A = random_sparse(7, 5)
    assert torch.equal(A.select_rows(rows).to_dense(), A.to_dense()[rows])


def test_row_entries_point_at_the_rows_own_entries() -> None:
    A = random_sparse(7, 5)
    rows = torch.tensor([6, 2, 3])  # row 3 is empty
    entries, indptr = row_entries(A, rows)
    assert indptr.diff().tolist() == A.degrees()[rows].tolist()
    assert torch.equal(A.row_index()[entries], rows.repeat_interleave(A.degrees()[rows].long()))


@pytest.mark.parametrize("rows", [0, 3, 4, 7])
def test_leading_is_the_first_rows(rows: int) -> None:
    A = random_sparse(7, 5)
    assert torch.equal(A.leading(rows).to_dense(), A.to_dense()[:rows])


def test_leading_does_not_confuse_two_counts() -> None:
    A = random_sparse(7, 5)
    assert [A.leading(k).num_rows for k in (2, 5, 2)] == [2, 5, 2]


def test_extended_adds_empty_rows() -> None:
    A = random_sparse(4, 5)
    want = torch.cat([A.to_dense(), torch.zeros(3, 5, dtype=torch.float64)])
    assert torch.equal(with_empty_rows(A, 7).to_dense(), want)


def test_filtered_keeps_the_chosen_entries() -> None:
    A = random_sparse(7, 5)
    keep = A.data > 0
    assert torch.equal(A.filtered(keep).to_dense(), A.to_dense().clamp(min=0))


@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("least", [0.0, 10.0])  # with 10, nothing is chosen
def test_chosen_entries_are_those_of_a_filter(chunk: int, least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmc.graph.csr.CHUNK", chunk)
    A = random_sparse(7, 5)
    A = replace(A, edge_data=torch.arange(A.nnz))
    found, want = chosen_entries(A, lambda _, entries: A.data[entries] > least), A.filtered(A.data > least)
    assert all(torch.equal(getattr(found, name), getattr(want, name)) for name in ("indptr", "indices", "values"))
    assert (found.shape, found.edge_data) == (A.shape, None)


def test_filtered_to_nothing_is_the_zero_matrix() -> None:
    A = random_sparse(7, 5)
    none = A.filtered(torch.zeros(A.nnz, dtype=torch.bool))
    assert none.nnz == 0
    assert torch.equal(none.to_dense(), torch.zeros(7, 5, dtype=torch.float64))


def test_to_casts_values_and_returns_itself_where_nothing_changes() -> None:
    A = random_sparse(4, 4)
    assert A.to(dtype=torch.float32).dtype == torch.float32
    assert A.to("cpu", torch.float64) is A


def test_values_of_a_pattern_are_refused() -> None:
    A = random_sparse(4, 4)
    with pytest.raises(GraphError, match="bare pattern"):
        CSR(A.indptr, A.indices, None, 4).data  # noqa: B018


def test_graph_arrays_are_int32() -> None:
    g = Graph.from_edges(
        torch.tensor([[0, 1], [1, 0]]), torch.ones(3, 2), torch.tensor([0, 1, 0]), train=[0], val=[1], test=[2]
    )
    assert g.adj.indptr.dtype == g.adj.indices.dtype == torch.int32


def test_a_matrix_is_freed_with_its_last_owner() -> None:
    """A reference cycle would keep the arrays until the garbage collector runs."""
    adj = random_graph().adj
    P = normalise(adj, "gcn")
    assert P.t() is P
    assert P.as_torch().shape == P.leading(P.num_rows).shape == P.shape
    assert P.columns(3)[0].nnz + P.columns(3)[1].nnz == P.nnz
    gone = weakref.ref(P)
    del P
    assert gone() is None
