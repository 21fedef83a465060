"""Identities 3 and 5: what the histories hold, where they converge, and that their place does not matter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import (
    MODELS,
    Gradients,
    full_gradient,
    full_loss,
    make,
    parts_of,
    random_graph,
    scrambled,
    sweep,
    total_error,
    worst_error,
)
from lmc.engine import Problem, Run
from lmc.engine.exact import chunks_of, exact_adjoints, exact_logits, exact_states
from lmc.graph import Aggregation, Graph, gcn_norm
from lmc.methods import GAS, GraphFM, HistoryMethod, LMC4Conv
from lmc.methods.protocol import Cut, Setup
from lmc.models import GCN, Model, Pass
from lmc.stores import Device, Placement, Table


def states_and_adjoints(g: Graph, model: Model, cut: str) -> tuple[list[Tensor], list[Tensor]]:
    """s^l and dL/ds^l of every node by plain autograd on the whole graph, in the user's numbering."""
    P = Aggregation.exact(gcn_norm(g.adj, torch.float64))
    model.eval()
    h = h0 = model.encode(g.x, Pass())
    states = []
    for l in range(1, model.num_layers + 1):
        s = model.layer(l)(h, P, Pass(), h0)
        h = model.layer(l).activate(s, Pass())
        states.append(s if cut == "before" else h)
    loss = full_loss(g, model, model.decode(h, Pass()))
    return [s.detach() for s in states], list(torch.autograd.grad(loss, states))


def assert_rows(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("first_layer", ["complete", "pruned"])
@pytest.mark.parametrize("model", MODELS)
def test_refreshed_histories_are_the_states_and_adjoints_of_plain_autograd(
    model: str, first_layer: str, cut: str
) -> None:
    g = random_graph()
    module = make(model, g)
    run = LMC4Conv(alpha=0.0, clusters_per_batch=1, redraw=True, first_layer=first_layer, cut=cut).bind(
        g, module, parts_of(g)
    )
    run.refresh()
    states, adjoints = states_and_adjoints(g, module, cut)
    order = run.clusters.order
    first = 2 if run.first_layer == "complete" else 1
    L = module.num_layers
    assert (list(run.H), sorted(run.V)) == (list(range(first, L + 1)), list(range(first, L)))
    for l in run.H:
        assert_rows(run.H[l].data(), states[l - 1][order])
    for l in run.V:
        assert_rows(run.V[l].data(), adjoints[l - 1][order])


@pytest.mark.parametrize("model", ["gcn", "gcnii"])
def test_steps_store_the_adjoints_of_plain_autograd(model: str) -> None:
    # what the steps push themselves, not what refresh wrote; without the factor b/c
    g = random_graph()
    module = make(model, g)
    run = LMC4Conv(alpha=0.0, clusters_per_batch=1, first_layer="pruned").bind(g, module, parts_of(g))
    for _ in range(2 * module.num_layers):
        sweep(run)
    states, adjoints = states_and_adjoints(g, module, "before")
    order = run.clusters.order
    for l in run.H:
        assert_rows(run.H[l].data(), states[l - 1][order])
    for l in run.V:
        assert_rows(run.V[l].data(), adjoints[l - 1][order])


@pytest.mark.parametrize("redraw", [False, True])
@pytest.mark.parametrize("first_layer", ["complete", "pruned"])
@pytest.mark.parametrize("model", [m for m in MODELS if m != "gcn-one-layer"])
def test_lmc_is_exact_after_2l_sweeps_from_empty_histories(model: str, first_layer: str, redraw: bool) -> None:
    g = random_graph()
    module = make(model, g)
    want = full_gradient(g, module)
    run = LMC4Conv(alpha=0.0, clusters_per_batch=1, first_layer=first_layer, redraw=redraw).bind(g, module, parts_of(g))
    assert total_error(sweep(run), want) > 1e-3
    for _ in range(2 * module.num_layers - 1):
        sweep(run)
    assert worst_error(sweep(run), want) < 1e-10


@pytest.mark.parametrize("kind", [GAS, GraphFM])
def test_refreshed_states_of_the_other_methods_are_exact(kind: type[HistoryMethod]) -> None:
    g = random_graph()
    module = make("gcn", g)
    run = kind(clusters_per_batch=1).bind(g, module, parts_of(g))
    run.refresh()
    states, _ = states_and_adjoints(g, module, "before")
    assert list(run.H) == [1, 2]
    for l in run.H:
        assert_rows(run.H[l].data(), states[l - 1][run.clusters.order])


def test_refresh_leaves_parameters_gradients_and_mode_alone() -> None:
    g = random_graph()
    model = scrambled(GCN(6, 7, 4, num_layers=3, norm="batch", dropout=0.5))
    run = LMC4Conv(clusters_per_batch=1).bind(g, model, parts_of(g))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    for training in (True, False):
        model.train(training)
        run.refresh()
        assert model.training is training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("tier", ["device", "host"])
def test_refresh_fills_the_same_tables(tier: str) -> None:
    # a step recorded for replay on a GPU holds on to their memory: a new table would never be read
    g = random_graph()
    run = LMC4Conv(clusters_per_batch=1).bind(g, make("gcn-residual", g), parts_of(g), Placement(history=tier))
    where = [table.data().data_ptr() for table in (*run.H.values(), *run.V.values())]
    for _ in range(2):  # and a second time: adjoints are summed over chunks, so the old sums must go
        run.refresh()
        assert [table.data().data_ptr() for table in (*run.H.values(), *run.V.values())] == where
        _, adjoints = states_and_adjoints(g, run.problem.model, "before")
        for l in run.V:
            assert_rows(run.V[l].data(), adjoints[l - 1][run.clusters.order])


def two_epochs(method: HistoryMethod, tier: str, g: Graph, model: Model) -> tuple[list[Gradients], Run]:
    """Every gradient of two epochs of training from refreshed histories."""
    run = method.bind(g, model, parts_of(g), Placement(history=tier))
    run.refresh()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for _ in range(2):
        for batch in run.batches():
            optimiser.zero_grad()
            run.accumulate(batch)
            seen.append({k: p.grad.clone() for k, p in model.named_parameters()})
            optimiser.step()
    return seen, run


@pytest.mark.parametrize("redraw", [False, True])
@pytest.mark.parametrize("kind", [LMC4Conv, GAS, GraphFM])
def test_host_and_device_stores_give_identical_runs(kind: type[HistoryMethod], redraw: bool) -> None:
    g = random_graph()
    results = [
        two_epochs(
            kind(clusters_per_batch=1, redraw=redraw),
            tier,
            g,
            GCN(6, 7, 4, num_layers=3, dropout=0.5, norm="layer").double(),
        )
        for tier in ("device", "host")
    ]
    (on_device, run_a), (on_host, run_b) = results
    assert len(on_device) == 8
    for a, b in zip(on_device, on_host, strict=True):
        assert all(torch.equal(a[k], b[k]) for k in a)
    for tables_a, tables_b in ((run_a.H, run_b.H), (run_a.V, run_b.V)):
        assert all(torch.equal(tables_a[l].data(), tables_b[l].data()) for l in tables_a)


def tables(problem: Problem, chunks: list) -> tuple[list[Tensor], dict[int, Tensor], Tensor]:
    def new(_: int, width: int) -> Table:
        return Device().table(problem.graph.num_nodes, width, torch.float64, torch.device("cpu"))

    H = [table for _, table in exact_states(problem, chunks, new)]
    V = {l: table.data() for l, table in exact_adjoints(problem, chunks, H, new)}
    logits = torch.empty(problem.graph.num_nodes, problem.graph.num_classes, dtype=torch.float64)
    for rows, values in exact_logits(problem, chunks, H[-1:]):
        logits[rows] = values
    return [t.data() for t in H], V, logits


@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("aggregate", [True, False])
@pytest.mark.parametrize("sparse_features", [False, True])
@pytest.mark.parametrize("model", ["gcn", "gcn-linear-in-out", "gcnii-two-matrices"])
def test_exact_passes_in_chunks_are_those_in_one(model: str, sparse_features: bool, aggregate: bool, cut: Cut) -> None:
    g = random_graph(sparse_features=sparse_features)
    module = make(model, g)
    problem = Problem.of(g, module, Placement(device="cpu"), Setup(precompute=aggregate, cut=cut))
    states, adjoints = states_and_adjoints(g, module, cut)
    logits = module(g.x, Aggregation.exact(gcn_norm(g.adj, torch.float64)))
    mixed = parts_of(g, 3)
    divisions = [
        [slice(0, 40)],
        [slice(0, 13), slice(13, 14), slice(14, 40)],
        [(mixed == k).nonzero().squeeze(1) for k in range(3)],
    ]
    for chunks in divisions:
        H, V, out = tables(problem, chunks)
        for l in range(module.num_layers):
            assert_rows(H[l], states[l])
            assert_rows(V[l + 1], adjoints[l])
        assert_rows(out, logits.detach())


def test_chunks_cover_the_rows_and_keep_to_the_limit() -> None:
    g = random_graph()
    problem = Problem.of(g, make("gcn", g), Placement(device="cpu"))  # widest state: 7
    chunks = chunks_of(problem, max_elements=70)
    assert [r for c in chunks for r in range(c.start, c.stop)] == list(range(40))
    reads = [int(problem.P.indptr[c.stop] - problem.P.indptr[c.start]) for c in chunks]
    assert max(reads) <= 70 // 7
    # and none is smaller than it has to be: with the next row it would read too much
    assert all(int(problem.P.indptr[c.stop + 1] - problem.P.indptr[c.start]) > 70 // 7 for c in chunks[:-1])
