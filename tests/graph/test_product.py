"""The one sparse product and its adjoint against dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import chance, random_sparse, sparse
from lmc.graph import CSR, Aggregation, Precomputed, accumulate, sparse_product, spmm
from lmc.graph.csr import with_empty_rows


def rows(n: int, d: int = 3, seed: int = 5) -> Tensor:
    return torch.randn(n, d, generator=chance(seed), dtype=torch.float64)


def test_spmm_matches_dense() -> None:
    A, x = random_sparse(7, 5), rows(5)
    torch.testing.assert_close(spmm(A, x), A.to_dense() @ x, rtol=0, atol=1e-14)


def test_spmm_of_an_empty_matrix_is_zero() -> None:
    A = random_sparse(7, 5).filtered(torch.zeros(random_sparse(7, 5).nnz, dtype=torch.bool))
    assert torch.equal(spmm(A, rows(5)), torch.zeros(7, 3, dtype=torch.float64))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_spmm_overwrites_its_output_memory(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def dirty(self: Tensor, *size: int, **_: object) -> Tensor:
        return self.new_full(size, float("nan"))

    monkeypatch.setattr(Tensor, "new_empty", dirty)
    A, x = random_sparse(7, 5), rows(5)  # one row of A is empty
    got = spmm(with_empty_rows(A, 9).to(device), x.to(device)).cpu()
    torch.testing.assert_close(got, with_empty_rows(A, 9).to_dense() @ x, rtol=0, atol=1e-14)


@pytest.mark.parametrize("shape", [(6, 6), (7, 4), (4, 7)])
def test_exact_operator_passes_gradcheck(shape: tuple[int, int]) -> None:
    P = Aggregation.exact(random_sparse(*shape))
    assert torch.autograd.gradcheck(P, rows(shape[1]).requires_grad_())


def test_symmetric_operator_passes_gradcheck_with_one_matrix() -> None:
    A = random_sparse(6, 6).to_dense()
    S = sparse(A + A.t())
    P = Aggregation.exact(CSR(S.indptr, S.indices, S.values, 6, symmetric=True))
    assert P.backward is P.forward
    assert torch.autograd.gradcheck(P, rows(6).requires_grad_())


def test_leading_backward_gives_halo_inputs_a_zero_adjoint() -> None:
    # four core rows read seven rows, and the backward pass has the block of core rows only
    A = random_sparse(4, 7).to_dense()
    core_block = sparse(A[:, :4])
    P = Aggregation(sparse(A), core_block.t())
    x = rows(7).requires_grad_()
    v = rows(4, seed=9)
    (got,) = torch.autograd.grad(P(x), x, v)
    torch.testing.assert_close(got[:4], A[:, :4].t() @ v, rtol=0, atol=1e-14)
    assert torch.equal(got[4:], torch.zeros(3, 3, dtype=torch.float64))


def test_backward_block_narrower_than_the_outputs_reads_the_core_adjoints_only() -> None:
    A = random_sparse(6, 6).to_dense()
    P = Aggregation(sparse(A), sparse(A[:4, :4]).t())
    v = rows(6, seed=9)
    got = P.adjoint(v)
    torch.testing.assert_close(got[:4], A[:4, :4].t() @ v[:4], rtol=0, atol=1e-14)
    assert torch.equal(got[4:], torch.zeros(2, 3, dtype=torch.float64))


def test_backward_leading_rows_read_every_adjoint() -> None:
    A = random_sparse(6, 6).to_dense()
    S = sparse(A + A.t())
    P = Aggregation(S, S.leading(4))
    v = rows(6, seed=9)
    torch.testing.assert_close(P.adjoint(v)[:4], (S.to_dense() @ v)[:4], rtol=0, atol=1e-14)
    assert torch.equal(P.adjoint(v)[4:], torch.zeros(2, 3, dtype=torch.float64))


def test_product_of_two_sparse_matrices_matches_dense() -> None:
    A, B = random_sparse(6, 5), random_sparse(5, 4, seed=2)
    C = sparse_product(A, B)
    assert C.shape == (6, 4)
    assert C.indices.dtype == C.indptr.dtype == torch.int32
    torch.testing.assert_close(C.to_dense(), A.to_dense() @ B.to_dense(), rtol=0, atol=1e-14)


def test_precomputed_operator_passes_rows_through() -> None:
    x = rows(5)
    P = Precomputed(5)
    assert P(x) is x
    assert P.num_inputs == P.num_outputs == 5


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [1, 7, 64])
@pytest.mark.parametrize("start", [0, 1])
def test_bfloat16_is_summed_in_float32_and_rounded_once(device: str, width: int, start: int) -> None:
    A = random_sparse(300, 200).to(device, torch.bfloat16)
    x = rows(200 + start, width).to(device, torch.bfloat16)[start:]
    exact = A.to_dense().double() @ x.double()
    got, added = spmm(A, x), accumulate(torch.ones(300, width, dtype=x.dtype, device=device), A, x)
    assert got.dtype == added.dtype == torch.bfloat16
    # half a unit in the last place, and float32's own rounding where terms cancel
    slack = 1e-5 * (A.to_dense().double().abs() @ x.double().abs())
    assert ((got.double() - exact).abs() <= 2**-8 * exact.abs() + slack).all()
    assert ((added.double() - 1 - exact).abs() <= 2**-8 * (1 + exact).abs() + slack + 1e-6).all()


@pytest.mark.parametrize("device", DEVICES)
def test_a_long_sum_of_bfloat16_does_not_stop_growing(device: str) -> None:
    """A sum of ones in bfloat16 stops at 256, because 257 cannot be represented."""
    ones = sparse(torch.ones(1, 4096)).to(device, torch.bfloat16)
    assert float(spmm(ones, torch.ones(4096, 8, dtype=torch.bfloat16, device=device))[0, 0]) == 4096


@pytest.mark.parametrize("device", DEVICES)
def test_the_product_has_the_dtype_of_its_rows(device: str) -> None:
    A, x = random_sparse(7, 5).to(device, torch.bfloat16), rows(5).to(device, torch.float32)
    got = spmm(A, x)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, A.to_dense().float() @ x, rtol=1e-6, atol=1e-6)
