"""Edge weights and directions: the identities of other suites where P has weights and is not its own transpose.

The conformance suite checks the facts of every method on such graphs, and tests/reference a dense second version.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from helpers import (
    RECURRENT,
    SPECIAL_GRAPHS,
    chance,
    full_gradient,
    make,
    parts_of,
    sweep,
    weighted_graph,
    worst_error,
)
from lmc.engine import Run
from lmc.engine.exact import exact_adjoints, exact_states
from lmc.engine.problem import row_losses
from lmc.errors import ConfigError, GraphError
from lmc.graph import Graph, normalise
from lmc.methods import CMC, GAS, LADIES, SSE, ClusterGCN, CMC4Rec, DropEdge, LMC4Conv, LMC4Rec, Method
from lmc.models import GAT, GCN, GIN, Pass, RecGCN
from lmc.stores import Placement

ONE_PART = [name for name, cls in RECURRENT.items() if "exact on one part" in cls.traits.facts]
EXACT = [name for name, cls in RECURRENT.items() if "exact with exact histories" in cls.traits.facts and name != "full"]


@pytest.fixture
def g() -> Graph:
    return weighted_graph(directed=True)


def recgcn(g: Graph) -> RecGCN:
    model = RecGCN(g.num_features, 7, g.num_classes, tol=1e-13, kappa=0.8).double()
    noise = chance(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.4 * torch.randn(p.shape, generator=noise, dtype=torch.float64))
        model.W.copy_(torch.rand(7, 7, generator=noise, dtype=torch.float64))
    model.project()
    return model


def imbalance(run: Run, P: Tensor) -> float:
    """The largest entry of M - P T and of U - P^T V over all layers; the rows of recurrent models are relu(Z)."""
    found, recurrent = [], "T" not in run.tables
    for rows, sums, matrix in (("H" if recurrent else "T", "M", P), ("V", "U", P.t())):
        for l, table in run.tables[rows].items():
            t = table.data().relu() if rows == "H" else table.data()
            found.append(float((run.tables[sums][l].data() - matrix @ t).abs().max()))
    return max(found)


@pytest.mark.parametrize("dropped", [False, True])
def test_sums_of_cmc_follow_p_and_its_transpose(g: Graph, dropped: bool) -> None:
    model = GCN(6, 7, 4, num_layers=3, dropout=0.5, norm="layer").double()
    method = CMC(clusters_per_batch=2, adjoints=True, redraw=True)
    schedule = DropEdge(method, p=0.3)
    run = (schedule if dropped else method).bind(g, model, parts_of(g), seed=1)
    adjacencies = schedule.adjacencies(run.graph, seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        P = normalise(adjacencies(epoch), "gcn", torch.float64) if dropped else run.problem.P
        for batch in run.batches(epoch):
            optimizer.zero_grad()
            run.accumulate(batch)
            optimizer.step()
            assert imbalance(run, P.to_dense()) < 1e-12


@pytest.mark.parametrize("model", ["gcn", "sage", "gin", "appnp"])
def test_cmc_with_exact_tables_is_exact(g: Graph, model: str) -> None:
    module = make(model, g)
    run = CMC(clusters_per_batch=1, adjoints=True).bind(g, module, parts_of(g))
    run.refresh()
    assert worst_error(sweep(run), full_gradient(g, module)) < 1e-9


@pytest.mark.parametrize("model", ["gat", "pna"])
def test_models_that_compare_messages_read_directed_edges(model: str) -> None:
    g = SPECIAL_GRAPHS["directed"]()
    module = make(model, g)
    one_part = LMC4Conv().bind(g, module, torch.zeros(g.num_nodes, dtype=torch.int64))
    assert worst_error(sweep(one_part), full_gradient(g, module)) < 1e-12
    if module.exact:
        run = LMC4Conv(alpha=0.0, clusters_per_batch=1).bind(g, module, parts_of(g))
        run.refresh()
        assert worst_error(sweep(run), full_gradient(g, module)) < 1e-9


def test_models_that_cannot_weigh_messages_refuse_weights() -> None:
    g = weighted_graph()
    with pytest.raises(ConfigError, match=r"expected a model that reads edge_weight .*GAT.*GCN"):
        LMC4Conv().bind(g, GAT(6, 6, 4))


def test_negative_weights_are_summed_and_refused_where_degrees_are_sums() -> None:
    base = weighted_graph()
    g = replace(base, adj=replace(base.adj, values=1 - base.adj.data))
    with pytest.raises(GraphError, match="expected edge weights of at least 0 for the normalisation 'gcn'"):
        LMC4Conv().bind(g, make("gcn", g))
    gin = GIN(6, 7, 4).double()
    run = LMC4Conv(alpha=0.0, clusters_per_batch=1).bind(g, gin, parts_of(g))
    run.refresh()
    assert worst_error(sweep(run), full_gradient(g, gin)) < 1e-9
    with pytest.raises(ConfigError, match=r"at least 0 for LADIES.*normalise=False"):
        LADIES().bind(g, gin)


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin"])
def test_cluster_gcn_normalises_the_subgraph_with_its_own_weights(g: Graph, kind: str) -> None:
    module = make(kind, g)
    run = ClusterGCN(clusters_per_batch=2).bind(g, module, parts_of(g))
    batch = next(run.batches())
    nodes = batch.n_id[: batch.num_core]
    W = g.adj.to_dense()[nodes][:, nodes]
    loops = W + torch.eye(nodes.numel(), dtype=torch.float64)
    scale, inverse = loops.sum(1).rsqrt(), W.sum(1).reciprocal().nan_to_num(posinf=0)
    want = {"gcn": scale[:, None] * loops * scale, "sage": inverse[:, None] * W, "gin": loops}[kind]
    torch.testing.assert_close(batch.operators[-1].forward.to_dense(), want)  # type: ignore[union-attr]


def test_the_halo_holds_what_the_core_reads_and_what_reads_it(g: Graph) -> None:
    model = make("gcn", g)
    A = g.adj.to_dense()
    for method, both in ((LMC4Conv(clusters_per_batch=1), True), (GAS(clusters_per_batch=1), False)):
        batch = next(method.bind(g, model, parts_of(g)).batches())
        core, halo = batch.n_id[: batch.num_core], batch.n_id[batch.num_core :]
        near = A[core].any(0) | (A[:, core].any(1) & both)
        near[core] = False
        assert torch.equal(halo.sort().values, near.nonzero().squeeze(1))


@pytest.mark.parametrize("graph", ["weighted", "directed-weighted"])
@pytest.mark.parametrize("name", ONE_PART)
def test_recurrent_models_on_one_part_give_the_full_gradient(name: str, graph: str) -> None:
    g = SPECIAL_GRAPHS[graph]()
    model = recgcn(g)
    run = RECURRENT[name]().bind(g, model, torch.zeros(g.num_nodes, dtype=torch.int64))
    run.refresh()
    assert worst_error(sweep(run), full_gradient(g, model)) < 1e-8


@pytest.mark.parametrize("name", EXACT)
def test_recurrent_models_with_exact_histories_give_the_full_gradient(g: Graph, name: str) -> None:
    model = recgcn(g)
    run = RECURRENT[name](clusters_per_batch=1).bind(g, model, parts_of(g))  # type: ignore[call-arg]
    run.refresh()
    want = full_gradient(g, model)
    for _ in range(2):
        assert worst_error(sweep(run), want) < 1e-8


def test_recurrent_steps_read_p_forward_and_its_transpose_backward(g: Graph) -> None:
    """(21) and (23) of LMC4Rec, and the one step of SSE, with histories of anything."""
    for cls in (LMC4Rec, SSE):
        model = recgcn(g)
        settings = {"undo_drift": False} if cls is LMC4Rec else {}
        run = cls(clusters_per_batch=1, **settings).bind(g, model, parts_of(g))
        noise = chance(5)
        for table in run.named_tables().values():
            table.data().copy_(torch.randn(table.data().shape, generator=noise, dtype=torch.float64))
        batch = next(run.batches())
        core, W, P = batch.core, model.W.detach(), run.problem.P.to_dense()
        found = run.method.solve(run.method_step(batch, keep=False, dropout=False))  # type: ignore[attr-defined]
        h, active = found.z.relu().requires_grad_(), found.z > 0
        losses = row_losses(run.problem, model.decode(h, Pass()), run.graph.y[core], run.graph.train[core])
        (G,) = torch.autograd.grad(losses.sum(), h)
        if cls is SSE:
            want = active * (P[core][:, core].t() @ (active * G) @ W + G)
        else:
            Z, V = run.H[1].data().clone(), run.V[1].data().clone()
            Z[core], V[core] = found.z, found.v
            b = model.encode(run.graph.x, Pass())[core].detach()  # type: ignore[index]
            torch.testing.assert_close(P[core] @ Z.relu() @ W.t() + b, found.z, rtol=1e-10, atol=1e-10)
            want = active * (P.t()[core] @ V @ W + G)
        torch.testing.assert_close(found.v, want, rtol=1e-10, atol=1e-10)


def test_the_sums_of_cmc4rec_stay_true(g: Graph) -> None:
    model = recgcn(g)
    run = CMC4Rec(clusters_per_batch=1, redraw=True).bind(g, model, parts_of(g))
    run.refresh()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in run.batches():
        run.accumulate(batch)
        optimiser.step()
        model.project()
        assert imbalance(run, run.problem.P.to_dense()) < 1e-11


def test_exact_passes_of_recurrent_models_by_chunks_are_those_of_the_whole(g: Graph) -> None:
    run = LMC4Rec(clusters_per_batch=1).bind(g, recgcn(g), parts_of(g))
    found = []
    for chunks in ([slice(0, 40)], [slice(0, 15), slice(15, 40)]):
        (states,) = (t for _, t in exact_states(run.problem, chunks, lambda _, width: run.problem.table(width)))
        passes = exact_adjoints(run.problem, chunks, [states], lambda _, width: run.problem.table(width))
        found.append(torch.cat([states.data(), *(table.data() for _, table in passes)]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method", [LMC4Conv(clusters_per_batch=1, redraw=True), ClusterGCN(clusters_per_batch=1)])
def test_weights_and_transposes_are_read_from_the_host(g: Graph, method: Method) -> None:
    found = []
    for placement in (Placement("cpu"), Placement("cpu", "host", "host", "host")):
        run = method.bind(g, make("gcn", g), parts_of(g), placement)
        run.refresh()
        found.append(sweep(run))
    assert all(torch.equal(a, found[1][k]) for k, a in found[0].items())
