"""Recurrent models: which methods give the full gradient, and where the histories go at fixed parameters."""

from __future__ import annotations

import math
import sys
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from helpers import (
    CONVOLUTIONAL,
    MODELS,
    RECURRENT,
    chance,
    full_gradient,
    random_graph,
    sweep,
    total_error,
    worst_error,
)
from lmc.diagnostics import estimated_errors, gradient_error, staleness
from lmc.engine import Run
from lmc.engine.exact import exact_adjoints, exact_states
from lmc.engine.problem import row_losses
from lmc.errors import ConfigError
from lmc.graph import Graph, gcn_norm
from lmc.methods import GAS, SSE, BackwardSGD, ClusterGCN, ClusterMethod, CMC4Rec, LMC4Rec
from lmc.models import Pass, RecGCN

EXACT = {name: cls for name, cls in RECURRENT.items() if "exact with exact histories" in cls.traits.facts}
DIVISIONS = [("metis", 4, 1, False), ("random", 4, 1, False), ("random", 7, 3, False), ("random", 7, 2, True)]


def recgcn(g: Graph, seed: int = 0, **settings: object) -> RecGCN:
    """In float64, solved to rounding error, W on the edge of the ball."""
    model = RecGCN(g.num_features, 7, g.num_classes, **{"tol": 1e-13, "kappa": 0.8, **settings}).double()  # type: ignore[arg-type]
    noise = chance(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.4 * torch.randn(p.shape, generator=noise, dtype=torch.float64))
        model.W.copy_(torch.rand(7, 7, generator=noise, dtype=torch.float64))  # positive: messages add up
    model.prepare(gcn_norm(g.adj, torch.float64))
    return model


def bound(cls: type[ClusterMethod], g: Graph, model: RecGCN, **settings: object) -> Run:
    return cls(**{"num_parts": 4, "clusters_per_batch": 1, "partition": "random", **settings}).bind(g, model)  # type: ignore[arg-type]


@pytest.mark.parametrize(("multi_label", "sparse_features"), [(False, False), (True, True)])
@pytest.mark.parametrize("name", [name for name, cls in RECURRENT.items() if "exact on one part" in cls.traits.facts])
def test_one_part_is_the_full_gradient(name: str, multi_label: bool, sparse_features: bool) -> None:
    g = random_graph(multi_label=multi_label, sparse_features=sparse_features)
    model = recgcn(g)
    run = RECURRENT[name]().bind(g, model, torch.zeros(g.num_nodes, dtype=torch.int64))
    want = full_gradient(g, model)
    assert worst_error(sweep(run), want) < 1e-8  # from empty histories
    run.refresh()
    assert worst_error(sweep(run), want) < 1e-8


@pytest.mark.parametrize("division", DIVISIONS, ids=str)
@pytest.mark.parametrize("name", [name for name in EXACT if name != "full"])
def test_exact_histories_give_the_full_gradient(name: str, division: tuple[str, int, int, bool]) -> None:
    how, b, c, redraw = division
    g = random_graph()
    model = recgcn(g)
    run = EXACT[name](num_parts=b, clusters_per_batch=c, redraw=redraw, partition=how).bind(g, model)  # type: ignore[call-arg]
    run.refresh()
    want = full_gradient(g, model)
    for _ in range(2):  # what the first epoch pushes must leave the histories exact
        assert worst_error(sweep(run), want) < 1e-8


@pytest.mark.parametrize("kind", [GAS, ClusterGCN, SSE])
def test_methods_that_drop_messages_are_not_exact(kind: type[ClusterMethod]) -> None:
    g = random_graph()
    model = recgcn(g)
    run = bound(kind, g, model)
    run.refresh()
    assert total_error(sweep(run), full_gradient(g, model)) > 0.05


def test_backward_sgd_needs_no_histories() -> None:
    g = random_graph()
    model = recgcn(g)
    run = bound(BackwardSGD, g, model)
    assert worst_error(sweep(run), full_gradient(g, model)) < 1e-8


@pytest.mark.parametrize(
    ("cls", "settings"),
    [(LMC4Rec, {}), (LMC4Rec, {"update": "step"}), (CMC4Rec, {})],
    ids=["lmc4rec", "step", "cmc4rec"],
)
def test_histories_converge_geometrically(
    cls: type[ClusterMethod], settings: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    g = random_graph()
    model = recgcn(g)
    run = bound(cls, g, model, **settings)
    errors = []
    for _ in range(120):
        sweep(run)
        now = staleness(run)
        errors.append(max(now.H[1], now.V[1]))
        if errors[-1] < 1e-9:
            break
    rate = math.exp(math.log(errors[-1] / errors[0]) / (len(errors) - 1))
    with capsys.disabled():
        sys.stdout.write(f"\n{cls.traits.title} {settings or ''}: error of H and V falls by {rate:.3f} a sweep\n")
    assert errors[-1] < 1e-9
    assert all(b < 0.9 * a for a, b in pairwise(errors))
    assert worst_error(sweep(run), full_gradient(g, model)) < 1e-7


def test_the_solution_is_a_better_history_than_one_step_and_complete_sums_a_better_one_still() -> None:
    g = random_graph()
    model = recgcn(g)
    errors = []
    for cls, settings in ((CMC4Rec, {}), (LMC4Rec, {}), (LMC4Rec, {"update": "step"})):
        run = bound(cls, g, model, **settings)
        for _ in range(4):
            sweep(run)
        errors.append(staleness(run).V[1])
    assert errors[0] < 0.3 * errors[1]
    assert errors[1] < 0.5 * errors[2]


def test_one_step_from_the_histories_is_equations_20_and_22() -> None:
    g = random_graph()
    model = recgcn(g)
    run = bound(LMC4Rec, g, model, update="step")
    noise = chance(5)
    for table in run.named_tables().values():
        table.data().copy_(torch.randn(table.data().shape, generator=noise, dtype=torch.float64))
    Z, V, P, W = run.H[1].data().clone(), run.V[1].data().clone(), run.problem.P.to_dense(), model.W.detach()
    batch = next(run.batches())
    run.accumulate(batch)
    z = P @ Z.relu() @ W.t() + run.graph.x @ model.lin_in.weight.t() + model.lin_in.bias  # type: ignore[union-attr, operator]
    h = z.relu().detach().requires_grad_()
    losses = row_losses(run.problem, h @ model.lin_out.weight.t() + model.lin_out.bias, run.graph.y, run.graph.train)  # type: ignore[union-attr, operator]
    (G,) = torch.autograd.grad(losses.sum(), h)
    v = (P @ V @ W + G) * (z > 0)
    core = batch.core
    torch.testing.assert_close(run.H[1].data()[core], z[core].detach())
    torch.testing.assert_close(run.V[1].data()[core], v[core].detach())
    assert torch.equal(run.H[1].data()[batch.halo], Z[batch.halo])


def test_local_fixed_points_are_equations_21_and_23() -> None:
    g = random_graph()
    model = recgcn(g)
    run = bound(LMC4Rec, g, model, undo_drift=False)
    noise = chance(5)
    for table in run.named_tables().values():
        table.data().copy_(torch.randn(table.data().shape, generator=noise, dtype=torch.float64))
    Z, V = run.H[1].data().clone(), run.V[1].data().clone()
    batch = next(run.batches())
    run.accumulate(batch)
    P, W, core = run.problem.P.to_dense()[batch.core], model.W.detach(), batch.core
    now, v = run.H[1].data()[core], run.V[1].data()[core]
    Z[core], V[core] = now, v  # halo from the histories, core at its solution
    b = model.encode(run.graph.x, Pass())[core].detach()  # type: ignore[index]
    torch.testing.assert_close(P @ Z.relu() @ W.t() + b, now, rtol=1e-10, atol=1e-10)
    h = now.relu().requires_grad_()
    losses = row_losses(run.problem, model.decode(h, Pass()), run.graph.y[core], run.graph.train[core])
    (G,) = torch.autograd.grad(losses.sum(), h)
    torch.testing.assert_close((P @ V @ W + G) * (now > 0), v, rtol=1e-10, atol=1e-10)


def test_drift_is_undone_and_exact_histories_stay_exact() -> None:
    g = random_graph()
    model = recgcn(g)
    want = full_gradient(g, model)
    run, plain = bound(LMC4Rec, g, model), bound(LMC4Rec, g, model, undo_drift=False)
    run.refresh()
    for _ in range(2):
        assert worst_error(sweep(run), want) < 1e-8
    for factor in (3.0, 0.25):  # all adjoints stored when the loss was so many times today's
        run.refresh()
        run.V[1].data().mul_(factor)
        plain.load_state_dict(run.state_dict())
        batch = next(run.batches())
        found, as_stored = estimated_errors(run, batch).V, estimated_errors(plain, batch).V
        assert as_stored > 0.05
        assert found < 1e-8 if factor > 1 else found == as_stored  # a loss that has grown is not believed


def test_drift_is_not_measured_where_no_row_has_a_loss() -> None:
    base = random_graph()
    g = Graph(base.adj, base.x, base.y, torch.arange(base.num_nodes) < 3, base.val, base.test, base.num_classes)
    model = recgcn(g)
    run = bound(LMC4Rec, g, model)
    run.refresh()
    assert any(not bool(batch.labelled[: batch.num_core].any()) for batch in run.batches())
    assert worst_error(sweep(run), full_gradient(g, model)) < 1e-8


def test_the_sums_of_cmc4rec_stay_true() -> None:
    g = random_graph()
    model = recgcn(g)
    run = bound(CMC4Rec, g, model, redraw=True)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for refresh in (False, True):
        if refresh:
            run.refresh()
        for _ in range(3):
            for batch in run.batches():
                run.accumulate(batch)
                optimiser.step()
                model.project()
        for rows, sums in ((run.H[1].data().relu(), "M"), (run.V[1].data(), "U")):
            want = run.problem.P.to_dense() @ rows
            torch.testing.assert_close(run.tables[sums][1].data(), want, rtol=1e-10, atol=1e-12)


def test_sse_drifts_to_the_fixed_point_and_its_adjoint_is_one_step() -> None:
    g = random_graph()
    model = recgcn(g)
    run = bound(SSE, g, model, momentum=0.5)
    for _ in range(250):
        for batch in run.batches():
            run.accumulate(batch)
    assert staleness(run).H[1] < 1e-6
    batch = next(run.batches())
    found = run.method.solve(run.method_step(batch, keep=False, dropout=False))
    P, D = run.problem.P.to_dense()[batch.core][:, batch.core], (found.z > 0).double()
    h = found.z.relu().requires_grad_()
    core = batch.core
    losses = row_losses(run.problem, model.decode(h, Pass()), run.graph.y[core], run.graph.train[core])  # type: ignore[arg-type]
    (G,) = torch.autograd.grad(losses.sum(), h)
    torch.testing.assert_close(found.v, D * (P @ (D * G) @ model.W.detach() + G))


@pytest.mark.parametrize("how", ["metis", "random"])
def test_estimated_errors_are_ordered_as_in_the_paper(how: str) -> None:
    # histories after a few epochs of training: LMC4Rec < GAS < Cluster-GCN, and below SSE, on V
    g = random_graph(n=120)
    errors: dict[str, float] = {}
    for cls in (CMC4Rec, LMC4Rec, GAS, ClusterGCN, SSE):
        model = recgcn(g)
        run = cls(num_parts=6, clusters_per_batch=1, partition=how).bind(g, model)
        run.refresh()
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(3):
            for batch in run.batches():
                optimiser.zero_grad()
                run.accumulate(batch)
                optimiser.step()
                model.project()
        measured = [estimated_errors(run, batch).V for batch in run.batches()]
        errors[cls.__name__] = sum(measured) / len(measured)
    assert errors["CMC4Rec"] < errors["LMC4Rec"] < errors["GAS"] < errors["ClusterGCN"], errors
    assert errors["LMC4Rec"] < errors["SSE"], errors


def test_exact_passes_by_chunks_are_those_of_the_whole() -> None:
    g = random_graph()
    run = bound(LMC4Rec, g, recgcn(g))
    whole: list[Tensor] = []
    for chunks in ([slice(0, 40)], [slice(0, 15), slice(15, 40)], [torch.arange(0, 40, 2), torch.arange(1, 40, 2)]):
        (states,) = (table for _, table in exact_states(run.problem, chunks, lambda _, width: run.problem.table(width)))
        (adjoints,) = (
            table
            for _, table in exact_adjoints(run.problem, chunks, [states], lambda _, width: run.problem.table(width))
        )
        found = torch.cat([states.data(), adjoints.data()])
        if whole:
            torch.testing.assert_close(found, whole[0], rtol=1e-9, atol=1e-11)
        whole.append(found)


def test_gradient_error_knows_recurrent_models() -> None:
    g = random_graph()
    run = bound(LMC4Rec, g, recgcn(g))
    run.refresh()
    batch = next(run.batches())
    assert max(gradient_error(run, batch).backward_sgd.values()) < 1e-8
    assert min(gradient_error(run, batch).full_batch.values()) > 1e-3
    exact = estimated_errors(run, batch)
    assert max(exact.H, exact.V) < 1e-10


@pytest.mark.parametrize("name", [name for name in CONVOLUTIONAL if name not in RECURRENT])
def test_methods_for_layers_refuse_a_fixed_point(name: str) -> None:
    g = random_graph()
    with pytest.raises(ConfigError, match=r"layers.*\(got RecGCN\): use LMC4Rec"):
        CONVOLUTIONAL[name]().bind(g, recgcn(g))


@pytest.mark.parametrize("name", [name for name in RECURRENT if name not in CONVOLUTIONAL])
def test_methods_for_fixed_points_refuse_layers(name: str) -> None:
    g = random_graph()
    with pytest.raises(ConfigError, match=r"a fixed point.*\(got GCN\): use LMC4Conv"):
        RECURRENT[name]().bind(g, MODELS["gcn"](g))
