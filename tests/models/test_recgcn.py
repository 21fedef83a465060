"""RecGCN: the fixed point, its implicit gradient, and the set of weights for which there is one."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

import lmc
from helpers import chance, full_gradient, full_loss, random_graph, random_sparse, sparse, worst_error
from lmc.engine.problem import row_losses
from lmc.errors import ConfigError, SolverError, SolverWarning
from lmc.graph import CSR, Aggregation, Graph, gcn_norm
from lmc.methods import FullBatch, LMC4Rec, Method
from lmc.models import Pass, RecGCN
from lmc.models.recgcn import onto_l1_ball, perron
from lmc.solvers import Anderson, Picard


def model_for(g: Graph, seed: int = 0, **settings: object) -> RecGCN:
    """A RecGCN in float64, solved to rounding error, with non-zero biases and weights that are not small."""
    model = RecGCN(g.num_features, 7, g.num_classes, **{"tol": 1e-13, **settings}).double()  # type: ignore[arg-type]
    noise = chance(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.4 * torch.randn(p.shape, generator=noise, dtype=torch.float64))
    model.prepare(gcn_norm(g.adj, torch.float64))
    return model


def unrolled(g: Graph, model: RecGCN, steps: int = 200) -> Tensor:
    """The loss after ``steps`` plain steps from zero, for autograd."""
    P, p = Aggregation.exact(gcn_norm(g.adj, torch.float64)), Pass()
    b = model.encode(g.x.to(dtype=torch.float64), p)
    z = torch.zeros(g.num_nodes, 7, dtype=torch.float64)
    for _ in range(steps):
        z = model.layer(1)(z.relu(), P, p, b)
    return full_loss(g, model, model.decode(z.relu(), p))


def test_one_more_step_does_not_change_the_fixed_point() -> None:
    g = random_graph()
    model = model_for(g)
    run = FullBatch().bind(g, model)
    run.refresh()
    z = run.H[1].data()
    again = model.layer(1)(z.relu(), Aggregation.exact(run.problem.P), Pass(), model.encode(run.graph.x, Pass()))
    torch.testing.assert_close(again, z, rtol=1e-12, atol=1e-12)
    assert bool((z > 0).any())
    assert bool((z < 0).any())


def test_adjoints_are_those_of_a_dense_solve() -> None:
    g = random_graph(n=20)
    model = model_for(g)
    run = FullBatch().bind(g, model)
    run.refresh()
    z, P, W = run.H[1].data(), run.problem.P.to_dense(), model.W.detach()
    h = z.relu().requires_grad_()
    losses = row_losses(run.problem, model.decode(h, Pass()), run.graph.y, run.graph.train)
    (G,) = torch.autograd.grad(losses.sum(), h)
    D = (z > 0).double().view(-1)
    J = D[:, None] * torch.kron(P, W.t().contiguous())  # u -> D * vec(P u W), rows first
    want = torch.linalg.solve(torch.eye(J.shape[0], dtype=J.dtype) - J, D * G.view(-1)).view_as(z)
    torch.testing.assert_close(run.V[1].data(), want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("chosen", [Picard(tol=1e-13), Picard(tol=1e-13, damping=0.8), Anderson(tol=1e-13)], ids=repr)
@pytest.mark.parametrize(("multi_label", "sparse_features"), [(False, False), (True, True)])
def test_implicit_gradients_are_those_of_200_unrolled_steps(
    chosen: Picard | Anderson, multi_label: bool, sparse_features: bool
) -> None:
    g = random_graph(multi_label=multi_label, sparse_features=sparse_features)
    model = model_for(g, solver=chosen)
    loss = unrolled(g, model)
    want = dict(zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True))
    assert worst_error(full_gradient(g, model), want) < 1e-8
    run = FullBatch().bind(g, model)
    (batch,) = run.batches()
    assert worst_error(run.gradient(batch), want) < 1e-8
    assert abs(float(run.accumulate(batch).loss) - float(loss.detach())) < 1e-10


def test_implicit_gradients_are_finite_differences() -> None:
    g = random_graph(n=20)
    model = model_for(g)
    P = Aggregation.exact(gcn_norm(g.adj, torch.float64))
    got, step = full_gradient(g, model), 1e-6

    def loss() -> float:
        with torch.no_grad():
            return float(full_loss(g, model, model(g.x, P)))

    for name, p in model.named_parameters():
        flat, where = p.data.view(-1), int(got[name].abs().view(-1).argmax())
        was = float(flat[where])
        flat[where] = was + step
        above = loss()
        flat[where] = was - step
        below = loss()
        flat[where] = was
        assert abs((above - below) / (2 * step) - float(got[name].view(-1)[where])) < 1e-8, name


def by_bisection(row: Tensor, radius: float) -> Tensor:
    """The nearest point of the l1 ball: soft-threshold, with the threshold found by halving."""
    if float(row.abs().sum()) <= radius:
        return row
    low, high = 0.0, float(row.abs().max())
    for _ in range(200):
        t = (low + high) / 2
        low, high = (t, high) if float((row.abs() - t).clamp_min(0).sum()) > radius else (low, t)
    return row.sign() * (row.abs() - high).clamp_min(0)


@pytest.mark.parametrize("scale", [0.05, 0.5, 5.0])
@pytest.mark.parametrize("p", ["1", "inf"])
def test_projection_is_the_nearest_matrix_in_the_ball(p: str, scale: float) -> None:
    model = RecGCN(3, 9, 2, p=p, kappa=0.9).double()  # type: ignore[arg-type]
    W = scale * torch.randn(9, 9, generator=chance(), dtype=torch.float64)
    with torch.no_grad():
        model.W.copy_(W)
    model.project()
    rows = W if p == "inf" else W.t()
    want = torch.stack([by_bisection(row, 0.9) for row in rows])
    torch.testing.assert_close(model.W, want if p == "inf" else want.t(), rtol=1e-10, atol=1e-10)
    inside = rows.abs().sum(1) <= 0.9
    got = model.W if p == "inf" else model.W.t()
    assert torch.equal(got[inside], rows[inside])


def test_no_point_of_the_ball_is_nearer() -> None:
    rows = torch.randn(4, 6, generator=chance(), dtype=torch.float64)
    near = onto_l1_ball(rows, torch.tensor(1.0, dtype=torch.float64))
    others = torch.randn(500, 4, 6, generator=chance(1), dtype=torch.float64)
    others *= torch.rand(500, 4, 1, generator=chance(2), dtype=torch.float64) / others.abs().sum(2, keepdim=True)
    others = torch.cat([others, (others + 9 * near) / 10])
    assert bool(((others - rows).norm(dim=2) >= (near - rows).norm(dim=1) - 1e-12).all())


def weighted(dense: Tensor) -> CSR:
    return sparse((dense + dense.t()).abs())


@pytest.mark.parametrize(
    "P",
    [
        gcn_norm(random_graph().adj, torch.float64),
        weighted(random_sparse(15, 15).to_dense()),
        weighted(torch.block_diag(3 * torch.eye(2).double(), torch.ones(3, 3).double())),  # two components
        weighted(torch.diag(torch.ones(1).double(), 1)),  # no self-loops at all
    ],
    ids=["gcn", "random", "components", "edge"],
)
def test_the_perron_root_is_measured(P: CSR) -> None:
    want = float(torch.linalg.eigvalsh(P.to_dense()).abs().max())
    got = float(perron(P))
    assert got >= want - 1e-12
    assert got == pytest.approx(want, rel=1e-5)


def test_the_bound_on_the_weights_depends_on_the_graph() -> None:
    P = weighted(random_sparse(15, 15).to_dense())
    model = RecGCN(3, 8, 2, kappa=0.9)
    with torch.no_grad():
        model.W.fill_(1.0)
    model.prepare(P)
    norm = float(torch.linalg.matrix_norm(model.W.detach(), torch.inf))
    assert norm * float(torch.linalg.eigvalsh(P.to_dense()).abs().max()) == pytest.approx(0.9, rel=1e-4)


@pytest.mark.parametrize("p", ["1", "inf"])
def test_training_stays_well_posed(p: str) -> None:
    g = random_graph()
    model = RecGCN(6, 8, 4, p=p, kappa=0.97)  # type: ignore[arg-type]
    norms = []
    order = 1 if p == "1" else torch.inf
    lmc.fit(
        g, model, FullBatch(), epochs=30, lr=0.3, device="cpu", eval_every=0,
        callbacks=[lambda _: norms.append(float(torch.linalg.matrix_norm(model.W.detach(), order)))],
    )  # fmt: skip
    assert max(norms) == pytest.approx(0.97, rel=1e-5)  # the bound was reached, and held
    assert float(model.lambda_pf) * max(norms) < 1


def test_divergence_without_the_projection_is_reported_with_its_remedy() -> None:
    g = random_graph()
    model = model_for(g)
    run = FullBatch().bind(g, model)
    with torch.no_grad():
        model.W.fill_(2.0)
        model.lin_in.bias.fill_(1.0)  # type: ignore[union-attr]
    with pytest.raises(SolverError, match=r"model\.project\(\) after every optimiser step"):
        run.accumulate(next(run.batches()))


def test_a_solve_that_fails_is_reported_and_counted() -> None:
    g = random_graph()
    model = model_for(g, solver=Picard(max_steps=3))
    run = FullBatch().bind(g, model)
    with pytest.warns(SolverWarning, match=r"settle to 1e-13.*after 3 steps.*lower kappa"):
        run.accumulate(next(run.batches()))
    assert run.solves() == pytest.approx(
        {"forward_steps": 3, "backward_steps": 3, "unconverged": 2, "worst_residual": 0.1}, abs=0.5
    )
    assert run.solves() is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolverWarning)
        record = lmc.fit(g, model, FullBatch(), epochs=2, device="cpu", eval_every=0)
    assert [e.solver["unconverged"] for e in record.epochs if e.solver] == [2, 2]


@pytest.mark.parametrize("method", [FullBatch(), LMC4Rec(4, 1)], ids=lambda m: m.traits.name)
def test_a_graph_without_features_learns_embeddings(method: Method) -> None:
    base = random_graph()
    n = base.num_nodes
    identity = CSR(torch.arange(n + 1, dtype=torch.int32), torch.arange(n, dtype=torch.int32), torch.ones(n), n)
    g = Graph(base.adj, identity, base.y, base.train, base.val, base.test, base.num_classes)
    model = RecGCN(n, 8, 4)
    first, *_, last = lmc.fit(g, model, method, epochs=60, lr=0.03, device="cpu", eval_every=0).epochs
    assert last.loss < 0.3 * first.loss


def test_settings_name_the_solver() -> None:
    settings = RecGCN(3, 4, 2, solver="anderson", tol=1e-3, kappa=0.8).settings
    assert (settings["solver"], settings["solver.tol"], settings["kappa"]) == ("anderson", 1e-3, 0.8)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"kappa": 1.0}, "kappa"), ({"p": "2"}, 'p "1" or "inf"'), ({"solver": "x"}, "solver"), ({"tol": 0.0}, "tol")],
)
def test_bad_settings_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RecGCN(3, 4, 2, **wrong)  # type: ignore[arg-type]


def test_a_forward_pass_needs_one_set_of_rows() -> None:
    P = Aggregation.exact(random_sparse(3, 5))
    with pytest.raises(ConfigError, match="one set of rows"):
        RecGCN(2, 4, 2).double()(torch.zeros(5, 2, dtype=torch.float64), P)
