"""Row-wise maps: ordinary values, ordinary input gradients, parameter gradients from core rows only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers import chance, random_sparse, scrambled, sparse
from lmc.graph import CSR, Aggregation, Precomputed
from lmc.graph.csr import with_empty_rows
from lmc.models import Pass
from lmc.models.activation import LayerNorm
from lmc.models.rows import Linear, weigh_adjoints

N, CORE = 8, 5
TOLERANCE = {"rtol": 1e-12, "atol": 1e-13}


def rows(n: int = N, d: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=chance(seed), dtype=torch.float64)


def plain_linear(m: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(m, Linear)
    return F.linear(x, m.weight, m.bias)


def plain_layer_norm(m: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(m, LayerNorm)
    return F.layer_norm(x, x.shape[1:], m.weight, m.bias)


MAPS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, Tensor], Tensor]]] = {
    "linear": (lambda: Linear(4, 3), plain_linear),
    "linear without bias": (lambda: Linear(4, 3, bias=False), plain_linear),
    "layer norm": (lambda: LayerNorm(4), plain_layer_norm),
}


@pytest.mark.parametrize("num_core", [None, CORE, 1, N])
@pytest.mark.parametrize("name", MAPS)
class TestRowWiseMap:
    def test_output_is_that_of_the_ordinary_module(self, name: str, num_core: int | None) -> None:
        module, plain = MAPS[name][0](), MAPS[name][1]
        scrambled(module)
        torch.testing.assert_close(module(rows(), Pass(num_core=num_core)), plain(module, rows()), **TOLERANCE)

    def test_input_gradient_is_that_of_every_row(self, name: str, num_core: int | None) -> None:
        module, plain = MAPS[name][0](), MAPS[name][1]
        scrambled(module)
        x = rows().requires_grad_()
        out = module(x, Pass(num_core=num_core))
        v = rows(N, out.shape[1], seed=1)
        (got,) = torch.autograd.grad(out, x, v)
        (want,) = torch.autograd.grad(plain(module, x), x, v)
        torch.testing.assert_close(got, want, **TOLERANCE)

    def test_parameter_gradient_is_that_of_the_core_rows(self, name: str, num_core: int | None) -> None:
        module, plain = MAPS[name][0](), MAPS[name][1]
        scrambled(module)
        params = list(module.parameters())
        c = N if num_core is None else num_core
        out = module(rows(), Pass(num_core=num_core))
        v = rows(N, out.shape[1], seed=1)
        got = torch.autograd.grad(out, params, v)
        want = torch.autograd.grad(plain(module, rows()[:c]), params, v[:c])
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, **TOLERANCE)


@pytest.mark.parametrize("name", MAPS)
def test_more_core_rows_than_rows_is_all_of_them(name: str) -> None:
    # with GAS, the maps of the last layer get core rows only
    module = MAPS[name][0]().double()
    params = list(module.parameters())
    v = rows(N, module(rows(), Pass()).shape[1], seed=1)
    got = torch.autograd.grad(module(rows(), Pass(num_core=N + 3)), params, v)
    want = torch.autograd.grad(module(rows(), Pass()), params, v)
    assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))


@pytest.mark.parametrize("name", ["linear", "layer norm"])
def test_all_rows_pass_gradcheck(name: str) -> None:
    module = MAPS[name][0]().double()
    assert torch.autograd.gradcheck(lambda x, *_: module(x, Pass()), (rows().requires_grad_(), *module.parameters()))


def _operators() -> dict[str, Aggregation]:
    dense = random_sparse(N, N, seed=3).to_dense()
    S = sparse(dense + dense.t())
    symmetric = CSR(S.indptr, S.indices, S.values, N, symmetric=True)
    core_block = sparse(symmetric.to_dense()[:CORE, :CORE])
    return {
        # the operators of full batch, GAS, LMC (alpha > 0, alpha = 0), and a general rectangular one
        "whole": Aggregation.exact(symmetric),
        "core from all, adjoints inside the core": Aggregation(symmetric.leading(CORE), core_block.t()),
        "all from all, adjoints of the core rows": Aggregation(symmetric, symmetric.leading(CORE)),
        "halo rows empty, adjoints of the core rows": Aggregation(
            with_empty_rows(symmetric.leading(CORE), N), symmetric.leading(CORE)
        ),
        "rectangular": Aggregation.exact(random_sparse(CORE + 1, N, seed=4)),
    }


OPERATORS = _operators()


@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("widths", [(6, 3), (3, 6), (4, 4)], ids=["narrow", "wide", "square"])
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("num_core", [None, CORE])
class TestAggregate:
    """(P t) W^T + b, whatever the order it is computed in."""

    def test_value(self, operator: str, widths: tuple[int, int], is_sparse: bool, num_core: int | None) -> None:
        P, lin = OPERATORS[operator], Linear(*widths)
        scrambled(lin)
        t = rows(N, widths[0])
        got = lin.aggregate(P, sparse(t) if is_sparse else t, Pass(num_core=num_core))
        want = P.forward.to_dense() @ t @ lin.weight.t() + lin.bias
        torch.testing.assert_close(got, want, **TOLERANCE)

    def test_gradient(self, operator: str, widths: tuple[int, int], is_sparse: bool, num_core: int | None) -> None:
        P, lin = OPERATORS[operator], Linear(*widths)
        scrambled(lin)
        t = rows(N, widths[0]).requires_grad_(not is_sparse)
        out = lin.aggregate(P, sparse(t) if is_sparse else t, Pass(num_core=num_core))
        v = rows(out.shape[0], widths[1], seed=1)
        wanted = [lin.weight, lin.bias, *([] if is_sparse else [t])]
        dW, db, *dt = torch.autograd.grad(out, wanted, v)

        # the weights' gradient reads the core rows of P t; the adjoint of t is computed with P.backward
        c = out.shape[0] if num_core is None else num_core
        aggregate = (P.forward.to_dense() @ t).detach()
        torch.testing.assert_close(dW, v[:c].t() @ aggregate[:c], **TOLERANCE)
        torch.testing.assert_close(db, v[:c].sum(0), **TOLERANCE)
        if dt:
            B = P.backward.to_dense()
            want = torch.zeros(N, widths[0], dtype=torch.float64)
            want[: B.shape[0]] = B @ v[: B.shape[1]] @ lin.weight.detach()
            torch.testing.assert_close(dt[0], want, **TOLERANCE)


@pytest.mark.parametrize("widths", [(6, 3), (3, 6)], ids=["narrow", "wide"])
def test_aggregate_passes_gradcheck_with_an_exact_operator(widths: tuple[int, int]) -> None:
    lin, P = Linear(*widths).double(), OPERATORS["rectangular"]
    inputs = (rows(N, widths[0]).requires_grad_(), *lin.parameters())
    assert torch.autograd.gradcheck(lambda t, *_: lin.aggregate(P, t, Pass()), inputs)


def test_precomputed_rows_are_not_aggregated_again() -> None:
    lin = Linear(4, 3).double()
    torch.testing.assert_close(lin.aggregate(Precomputed(N), rows(), Pass()), plain_linear(lin, rows()), **TOLERANCE)


def test_sparse_rows_are_a_constant_with_core_only_weight_gradient() -> None:
    lin = Linear(4, 3).double()
    x = rows() * (rows(seed=7) > 0)
    out = lin(sparse(x), Pass(num_core=CORE))
    v = rows(N, 3, seed=1)
    torch.testing.assert_close(out, plain_linear(lin, x), **TOLERANCE)
    dW, db = torch.autograd.grad(out, list(lin.parameters()), v)
    torch.testing.assert_close(dW, v[:CORE].t() @ x[:CORE], **TOLERANCE)
    torch.testing.assert_close(db, v[:CORE].sum(0), **TOLERANCE)


def test_linear_starts_as_glorot_with_zero_bias() -> None:
    lin = Linear(300, 200)
    bound = (6 / 500) ** 0.5
    lin.reset_parameters(chance(0))
    assert float(lin.weight.detach().abs().max()) <= bound
    # a uniform distribution on [-bound, bound] has standard deviation bound / sqrt(3)
    assert float(lin.weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.02)
    assert not lin.bias.any()


def test_weights_multiply_the_adjoints_of_every_reader_once() -> None:
    x, tau, v = rows().requires_grad_(), rows(N, 1, seed=1), rows(seed=2)
    weighed = weigh_adjoints(x, lambda: tau)
    assert torch.equal(weighed, x)
    (got,) = torch.autograd.grad((weighed * v).sum() + (weighed * weighed).sum(), x)
    torch.testing.assert_close(got, tau * (v + 2 * x), **TOLERANCE)
