"""IGNN: its equilibrium, its gradient and its projection, each against an independent method."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

import lmc
from helpers import chance, full_gradient, full_loss, parts_of, random_graph, worst_error
from lmc.cli.spec import parse_model
from lmc.diagnostics import bias
from lmc.graph import CSR, Aggregation, Graph, gcn_norm
from lmc.methods import BackwardSGD, FullBatch, LMC4Rec
from lmc.models import IGNN, RecGCN


def model_for(g: Graph, **settings: object) -> IGNN:
    model = IGNN(g.num_features, 5, g.num_classes, **{"tol": 1e-13, "kappa": 0.9, **settings}).double()  # type: ignore[arg-type]
    noise = chance(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.4 * torch.randn(p.shape, generator=noise, dtype=torch.float64))
    model.prepare(gcn_norm(g.adj, torch.float64))
    return model


def dense_features(g: Graph) -> Tensor:
    return (g.x.to_dense() if isinstance(g.x, CSR) else g.x).double()


def linear_solves(g: Graph, model: IGNN) -> Tensor:
    """Z by Newton's method: for a set of active units the equation is linear, and is solved as one dense system."""
    P, W = gcn_norm(g.adj, torch.float64).to_dense(), model.W.detach()
    assert model.lin_in is not None
    b = (P @ dense_features(g)) @ model.lin_in.weight.detach().t()
    z = b
    for _ in range(50):
        active = (z > 0).double().view(-1)
        J = torch.kron(P, W) * active  # vec(z) -> vec(P (active * z) W^T), rows first
        found = torch.linalg.solve(torch.eye(J.shape[0], dtype=J.dtype) - J, b.reshape(-1)).view_as(b)
        if torch.equal(found > 0, z > 0):
            return found
        z = found
    raise AssertionError("expected the active units to settle")


@pytest.mark.parametrize("sparse_features", [False, True])
def test_the_equilibrium_is_that_of_dense_linear_solves(sparse_features: bool) -> None:
    g = random_graph(n=24, sparse_features=sparse_features)
    model = model_for(g)
    want = linear_solves(g, model)
    run = FullBatch().bind(g, model, device="cpu")
    run.refresh()
    mine = torch.empty_like(want)
    mine[run.clusters.order] = run.H[1].data()
    torch.testing.assert_close(mine, want, rtol=1e-10, atol=1e-11)
    assert model.lin_out is not None
    logits = want.relu() @ model.lin_out.weight.t()
    called = model(g.x.to(dtype=torch.float64), Aggregation.exact(gcn_norm(g.adj, torch.float64)))
    torch.testing.assert_close(called, logits, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(lmc.predict(model, g).double(), logits.detach(), rtol=1e-5, atol=1e-6)


def test_gradients_are_those_of_unrolled_steps() -> None:
    g = random_graph(n=24)
    model = model_for(g)
    P = gcn_norm(g.adj, torch.float64).to_dense()
    assert model.lin_in is not None
    assert model.lin_out is not None
    b = P @ dense_features(g) @ model.lin_in.weight.t()
    z = torch.zeros_like(b)
    for _ in range(300):
        z = P @ z.relu() @ model.W.t() + b
    loss = full_loss(g, model, z.relu() @ model.lin_out.weight.t())
    want = dict(zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True))
    assert set(want) == {"lin_in.weight", "layers.0.lin.weight", "lin_out.weight"}
    run = FullBatch().bind(g, model, device="cpu")
    assert worst_error(run.gradient(next(run.batches())), want) < 1e-8
    assert worst_error(full_gradient(g, model), want) < 1e-8


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_the_projection_is_the_minimum_of_a_constrained_program(scale: float) -> None:
    """min |w - row|^2 with w = u - v, u, v >= 0 and sum(u + v) <= kappa / lambda_pf, by scipy."""
    model = IGNN(3, 6, 2, kappa=0.8).double()
    model.lambda_pf.fill_(1.25)
    given = scale * torch.randn(6, 6, generator=chance(2), dtype=torch.float64)
    with torch.no_grad():
        model.W.copy_(given)
    model.project()
    radius, moved = 0.8 / 1.25, 0
    for row, mine in zip(given.numpy(), model.W.detach().numpy(), strict=True):
        start = np.full(12, radius / 24)
        found = minimize(
            lambda t, row=row: ((t[:6] - t[6:] - row) ** 2).sum(), start, method="SLSQP", bounds=[(0, None)] * 12,
            constraints={"type": "ineq", "fun": lambda t: radius - t.sum()}, options={"ftol": 1e-15, "maxiter": 500},
        )  # fmt: skip
        np.testing.assert_allclose(mine, found.x[:6] - found.x[6:], atol=2e-6)
        moved += int(np.abs(row).sum() > radius)
    assert moved == (6 if scale > 1 else 0)
    assert float(torch.linalg.matrix_norm(model.W.detach(), torch.inf)) <= radius + 1e-12


def test_it_is_not_recgcn_but_its_own_input_map() -> None:
    g = random_graph()
    model = model_for(g)
    other = RecGCN(g.num_features, 5, g.num_classes, kappa=0.9, tol=1e-13).double()
    assert model.lin_in is not None
    other.load_state_dict(model.state_dict() | {"lin_in.bias": torch.zeros(5), "lin_out.bias": torch.zeros(4)})
    P = Aggregation.exact(gcn_norm(g.adj, torch.float64))
    assert float((model(g.x.double(), P) - other(g.x.double(), P)).detach().abs().max()) > 0.01  # type: ignore[union-attr]
    torch.testing.assert_close(model(g.x.double(), P), other(P.forward.to_dense() @ g.x.double(), P))  # type: ignore[union-attr, operator]


def test_methods_of_parts_train_it_exactly() -> None:
    g = random_graph()
    for method in (LMC4Rec(clusters_per_batch=1), BackwardSGD(clusters_per_batch=2)):
        run = method.bind(g, model_for(g), parts_of(g), device="cpu")
        run.refresh()
        assert max(bias(run).values()) < 1e-8


def test_projection_follows_every_step_of_training() -> None:
    g = random_graph()
    model = parse_model("ignn:hidden=8:kappa=0.5", g, seed=0)
    assert isinstance(model, IGNN)
    run = FullBatch().bind(g, model, device="cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=50.0)
    for _ in range(3):
        run.step(next(run.batches()), optimizer)
        assert float(model.lambda_pf * torch.linalg.matrix_norm(model.W.detach(), torch.inf)) <= 0.5 + 1e-5
    assert float(torch.linalg.matrix_norm(model.W.detach(), torch.inf)) > 0.49
