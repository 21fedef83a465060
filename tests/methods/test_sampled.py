"""The sampling methods: batches, variance, lonely nodes, refusals, DropEdge, taking up a run."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import ChebConv

import lmc
from helpers import (
    CONVOLUTIONAL,
    Gradients,
    chance,
    full_gradient,
    lonely_graph,
    make,
    model_for,
    parts_of,
    random_graph,
    scrambled,
    sweep,
    through_operators,
    weights_of,
    worst_error,
)
from lmc.diagnostics import GradientProbe, gradient_error, messages_kept
from lmc.errors import ConfigError
from lmc.graph import CSR, Aggregation, Batch, Graph, Precomputed, normalise
from lmc.methods import (
    CMC,
    GAS,
    LADIES,
    SIGN,
    VRGCN,
    BackwardSGD,
    ClusterMethod,
    DropEdge,
    FastGCN,
    FullBatch,
    GraphFMIB,
    GraphSAGE,
    GraphSAINT,
    LMC4Conv,
    Method,
    ShaDow,
)
from lmc.models import GCN, Model, Pass
from lmc.stores import Placement

SAMPLED: dict[str, Method] = {
    "graphsage": GraphSAGE(batch_size=5, fanouts=2),
    "graphsage-complete": GraphSAGE(batch_size=5, fanouts=(3, 2, 1), first_layer="complete"),
    "vrgcn": VRGCN(batch_size=5, fanouts=1),
    "vrgcn-host": VRGCN(batch_size=5, fanouts=2, first_layer="sampled"),
    "fm-ib": GraphFMIB(batch_size=5, fanouts=2),
    "fastgcn": FastGCN(batch_size=5, layer_size=4),
    "ladies": LADIES(batch_size=5, layer_size=4),
    "saint-walk": GraphSAINT("walk", size=3),
    "saint-edge": GraphSAINT("edge", size=4),
    "saint-node": GraphSAINT("node", size=6),
    "shadow": ShaDow(batch_size=5, fanouts=(2, 1)),
    "sign": SIGN(batch_size=5),
    "dropedge": DropEdge(),
    "dropedge-lmc": DropEdge(LMC4Conv(4, 1), p=0.5),
    "dropedge-cmc": DropEdge(CMC(4, 2), p=0.3),
    "dropedge-graphsage": DropEdge(GraphSAGE(batch_size=5, fanouts=2), p=0.3),
    "dropedge-saint": DropEdge(GraphSAINT(size=3, coverage=5), p=0.3),
}
each = pytest.mark.parametrize("name", SAMPLED)
WITH_TABLES = ("vrgcn", "fm-ib", "dropedge-lmc", "dropedge-cmc")
EVERYTHING: list[Method] = [
    GraphSAGE(99, batch_size=9),
    VRGCN(99, batch_size=9),
    GraphFMIB(99, batch_size=9),
    FastGCN(10**6, batch_size=9),
    LADIES(10**6, batch_size=9),
    GraphSAINT("node", size=20_000, coverage=1),
    ShaDow(3, 99, "graph", batch_size=9),
    SIGN(batch_size=9),
    DropEdge(LMC4Conv(4, 1, alpha=0.0), p=0.0),
    DropEdge(CMC(4, 2, adjoints=True), p=0.0),
]
"""Samples of everything that there is to sample."""


def placement_of(name: str, device: str = "cpu") -> Placement:
    return Placement(device, history="host" if name == "vrgcn-host" else "device")


def model_name(name: str) -> str:
    return model_for(name, "gcn-layer-norm")


def contents(batch: Batch) -> list[torch.Tensor]:
    matrices = [op.forward.to_dense() for op in batch.operators if isinstance(op, Aggregation)]
    return [batch.core, batch.halo, batch.y, batch.n_id, *matrices]


@each
def test_an_epoch_can_be_taken_up_anywhere(name: str) -> None:
    g = random_graph()
    runs = [SAMPLED[name].bind(g, make(model_name(name), g), placement=placement_of(name), seed=7) for _ in range(2)]
    whole = list(runs[0].batches(3))
    assert len(whole) == runs[0].num_batches
    rest = list(runs[1].batches(3, start=1))
    assert len(rest) == len(whole) - 1
    for a, b in zip(whole[1:], rest, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(contents(a), contents(b), strict=True))


@each
def test_epochs_differ_and_seeds_differ(name: str) -> None:
    g = random_graph()
    first, second = (
        SAMPLED[name].bind(g, make(model_for(name), g), placement=placement_of(name), seed=seed) for seed in (7, 8)
    )

    def drawn(batch: Batch) -> torch.Tensor:
        return torch.cat([part.double().flatten() for part in contents(batch)])

    a, b, c = (drawn(next(run.batches(epoch))) for run, epoch in ((first, 0), (first, 1), (second, 0)))
    assert not torch.equal(a, b)
    assert not torch.equal(a, c)


@pytest.mark.parametrize("name", [n for n in SAMPLED if not n.startswith(("saint", "dropedge"))])
def test_seeds_are_the_training_nodes_each_once(name: str) -> None:
    g = random_graph()
    run = SAMPLED[name].bind(g, make(model_for(name), g), placement=placement_of(name))
    batches = list(run.batches())
    assert max(batch.num_core for batch in batches) <= 5
    seeds = torch.cat([batch.n_id[: batch.num_core] for batch in batches])
    assert torch.equal(seeds.sort().values, g.train.nonzero().squeeze(1))
    for batch in batches:
        assert bool(batch.labelled[: batch.num_core].all())
        assert batch.operators[-1].num_outputs == batch.num_core
        for below, above in itertools.pairwise(batch.operators):
            assert below.num_outputs == above.num_inputs
        assert batch.operators[0].num_inputs == batch.num_core + batch.num_halo


def test_a_sample_is_no_larger_than_asked_for() -> None:
    g = random_graph()
    model = make("gcn", g)
    (batch, *_) = GraphSAGE(batch_size=5, fanouts=(3, 2, 1)).bind(g, model).batches()
    # the hop of the seeds first: it is that of the last layer
    for operator, fanout in zip(reversed(batch.operators), (3, 2, 1), strict=True):
        assert isinstance(operator, Aggregation)
        assert int(operator.forward.degrees().max()) <= fanout + 1
    for method in (FastGCN(batch_size=5, layer_size=4), LADIES(batch_size=5, layer_size=4)):
        (batch, *_) = method.bind(g, model).batches()
        for operator in batch.operators:
            assert operator.num_inputs - operator.num_outputs <= 4


def test_the_first_layer_is_complete_or_sampled() -> None:
    g = random_graph()
    dropping = GCN(6, 7, 4, num_layers=2, input_dropout=0.3)
    for method, model, complete in (
        (GraphSAGE(), make("gcn", g), False),
        (GraphSAGE(first_layer="complete"), make("gcn", g), True),
        (GraphSAGE(first_layer="complete"), dropping, False),
        (VRGCN(), make("gcn", g), True),
        (VRGCN(), dropping, True),  # the paper's preprocessing: the dropout falls on P X
        (VRGCN(first_layer="sampled"), make("gcn", g), False),
        (VRGCN(), make("gcnii", g), False),
    ):
        run = method.bind(g, model)
        assert (run.first_layer == "complete") is complete
        assert isinstance(next(run.batches()).operators[0], Precomputed) is complete


def test_preprocessing_with_dropout_changes_training_alone() -> None:
    g = random_graph()
    model = scrambled(GCN(6, 7, 4, num_layers=2, input_dropout=0.5))
    run = VRGCN(fanouts=100).bind(g, model)
    run.refresh()
    assert worst_error(run.gradient(next(run.batches())), full_gradient(g, model)) < 1e-12
    before = sweep(run)
    assert worst_error(sweep(run), before) > 1e-3


def test_control_variates_reduce_the_variance() -> None:
    """At the same fan-out and after the same steps, VR-GCN's gradients are nearer to the truth than GraphSAGE's."""
    g = lmc.load("tiny-like", scale=0.3)
    errors = {}
    for method in (GraphSAGE(batch_size=40, fanouts=2, first_layer="complete"), VRGCN(batch_size=40, fanouts=2)):
        model = GCN(g.num_features, 16, g.num_classes, num_layers=3)
        run = method.bind(g, model)
        run.refresh()
        probe = GradientProbe(run)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        measured = []
        for epoch in range(4):
            for batch in run.batches():
                if epoch:
                    measured.append(probe(batch).mean)
                optimizer.zero_grad()
                run.accumulate(batch)
                optimizer.step()
        errors[method.traits.name] = sum(measured) / len(measured)
    assert errors["vrgcn"] < 0.85 * errors["graphsage"]


def test_the_variance_of_an_aggregation_goes_with_the_age_of_its_history() -> None:
    """|P_hat t - P t|^2 of GraphSAGE, and of VR-GCN with histories that are off by a tenth and by nothing."""
    g = random_graph()
    t = torch.randn(g.num_nodes, 7, generator=chance(1), dtype=torch.float64)
    noise = torch.randn(t.shape, generator=chance(2), dtype=torch.float64)
    off = {}
    for label, method, age in (
        ("sage", GraphSAGE(1), 0.0),
        ("old", VRGCN(1), 0.1),
        ("new", VRGCN(1), 0.0),
    ):
        run = method.bind(g, make("gcn", g))
        for table in run.named_tables().values():
            table.data().copy_(t + age * noise)
        exact, errors = run.problem.P.to_dense() @ t, []
        for epoch in range(20):
            for batch in run.batches(epoch):
                P = run.method.operator(run.method_step(batch, keep=False, dropout=False), 3)
                errors.append((P(t[batch.ext[: P.num_inputs]]) - exact[batch.core]).square().mean())
        off[label] = float(torch.stack(errors).mean())
    assert off["new"] < 1e-25
    assert off["new"] < off["old"] < 0.05 * off["sage"]


def test_exact_histories_make_the_forward_pass_exact() -> None:
    g = random_graph()
    model = make("gcn", g)
    run = VRGCN(batch_size=100, fanouts=1).bind(g, model)
    run.refresh()
    (batch,) = run.batches()
    full = FullBatch().bind(g, model)
    want = full.accumulate(next(full.batches())).loss
    torch.testing.assert_close(run.accumulate(batch).loss, want, rtol=1e-12, atol=0)


def test_ladies_samples_from_the_neighbours_of_the_layer_above() -> None:
    """FastGCN also draws nodes that no row reads."""
    g = random_graph()
    read = {}
    for method in (LADIES(batch_size=2, layer_size=8), FastGCN(batch_size=2, layer_size=8)):
        run = method.bind(g, make("gcn", g), seed=3)
        useful = []
        for batch in run.batches():
            for P in batch.operators:
                rows, drawn = batch.ext[: P.num_outputs], batch.ext[P.num_outputs : P.num_inputs]
                neighbours = run.graph.adj.to_dense()[rows].any(0)
                useful.append(neighbours[drawn])
        read[method.traits.name] = torch.cat(useful)
    assert read["ladies"].numel() > 50
    assert bool(read["ladies"].all())
    assert not bool(read["fastgcn"].all())


def test_ladies_scales_sampled_rows_to_the_sums_of_the_rows_of_P() -> None:
    """The diagonal is not sampled and stays as it is; a row of which nothing was sampled has nothing else."""
    g = random_graph()
    run = LADIES(batch_size=5, layer_size=4).bind(g, make("gcn", g), seed=3)
    whole, scaled = run.problem.P.to_dense(), 0
    for batch in run.batches():
        for P in batch.operators:
            got, rows = P.forward.to_dense(), batch.ext[: P.num_outputs]
            torch.testing.assert_close(got.diagonal(), whole.diagonal()[rows], rtol=1e-12, atol=0)
            sums, want = got.sum(1) - got.diagonal(), (whole.sum(1) - whole.diagonal())[rows]
            some = sums > 1e-12
            torch.testing.assert_close(sums[some], want[some], rtol=1e-12, atol=0)
            scaled += int(some.sum())
    assert scaled > 50


def test_ladies_scales_rows_of_negative_entries() -> None:
    """The matrix of a ChebConv is -D^-1/2 A D^-1/2."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = ChebConv(6, 7, K=2), ChebConv(7, 4, K=2)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.second(self.first(x, edge_index).relu(), edge_index)

    g = random_graph()
    run = LADIES(batch_size=5, layer_size=4).bind(g, lmc.wrap(Network().double()), seed=3)
    whole, scaled = run.problem.P.to_dense(), 0
    for batch in run.batches():
        P = batch.operators[-1]
        got, want = P.forward.to_dense().sum(1), whole.sum(1)[batch.core]
        torch.testing.assert_close(got[got != 0], want[got != 0], rtol=1e-6, atol=0)
        scaled += int((got != 0).sum())
    assert scaled > 10
    assert float(whole.max()) <= 0


@pytest.mark.parametrize("normalise", ["subgraph", "graph"])
def test_shadow_normalises_inside_each_subgraph_or_keeps_the_entries_of_P(normalise: str) -> None:
    g = random_graph()
    run = ShaDow(2, 2, normalise, batch_size=5).bind(g, make("gcn", g))
    whole = run.problem.P.to_dense()
    for batch in run.batches():
        P = batch.operators[0].forward.to_dense()
        inside = (P > 0).double()
        degrees = inside.sum(1)
        of_subgraph = inside / (degrees[:, None] * degrees[None, :]).sqrt()
        of_graph = inside * whole[batch.ext][:, batch.ext]
        assert float((of_subgraph - of_graph).abs().max()) > 0.01
        torch.testing.assert_close(P, of_subgraph if normalise == "subgraph" else of_graph, rtol=1e-12, atol=0)


def test_momentum_averages_the_samples() -> None:
    """At fixed parameters the history of GraphFM-IB comes nearer to the exact states than one sample does."""
    g = random_graph()
    model = make("gcn", g)
    distances = {}
    for momentum in (1.0, 0.1):
        run = GraphFMIB(batch_size=100, fanouts=1, momentum=momentum).bind(g, model)
        run.refresh()
        exact = run.H[1].data().clone()
        for _ in range(60):
            sweep(run)
        distances[momentum] = float((run.H[1].data() - exact).norm())
    assert distances[0.1] < 0.5 * distances[1.0]


def test_momentum_one_is_the_sample_itself() -> None:
    """GraphFM-IB without memory is GraphSAGE, batch by batch, whatever its history holds."""
    g = random_graph()
    model = make("gcn", g)
    momentum, plain = (
        method.bind(g, model, seed=2)
        for method in (GraphFMIB(fanouts=2, batch_size=6, momentum=1.0), GraphSAGE(fanouts=2, batch_size=6))
    )
    for a, b in zip(momentum.batches(), plain.batches(), strict=True):
        assert worst_error(momentum.gradient(a), plain.gradient(b)) < 1e-12


def test_the_adjoint_of_a_mixed_row_is_whole() -> None:
    """With exact histories and nothing sampled GraphFM-IB is exact for every momentum; an adjoint times momentum would
    leave the first layer momentum^2 of its gradient."""
    g = random_graph()
    model = make("gcn", g)
    run = GraphFMIB(fanouts=100, batch_size=100, momentum=0.2).bind(g, model)
    run.refresh()
    assert worst_error(sweep(run), full_gradient(g, model)) < 1e-10


def parts_for(method: Method, g: Graph) -> Tensor | None:
    """Four random parts for a method that divides the graph."""
    inner = method.inner if isinstance(method, DropEdge) else method
    return parts_of(g) if isinstance(inner, ClusterMethod) else None


def gradient_of_nodes(g: Graph, model: Model, weights: Tensor) -> Gradients:
    """The gradient of sum_v weights_v loss_v / |V_L| by plain autograd on the whole graph."""
    P = Aggregation.exact(normalise(g.adj, "gcn", torch.float64))
    model.train()
    logits = model(g.x.to_dense() if isinstance(g.x, CSR) else g.x, P, Pass(dropout=False))
    if g.multi_label:
        losses = F.binary_cross_entropy_with_logits(logits, g.y.double(), reduction="none").mean(1)
    else:
        losses = F.cross_entropy(logits, g.y, reduction="none")
    loss = (losses * weights * g.train).sum() / g.num_labelled
    named = dict(model.named_parameters())
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


@each
def test_a_node_without_neighbours_has_its_exact_gradient_whatever_is_sampled(name: str) -> None:
    """Only the two nodes without neighbours are labelled: nothing that a sample leaves out reaches them."""
    star = lonely_graph()
    lonely = star.adj.degrees() == 0
    g = dataclasses.replace(star, train=lonely, val=~lonely, test=torch.zeros_like(lonely))
    assert g.num_labelled == 2
    model = scrambled(lmc.models.SIGN(3, 4, 2) if name == "sign" else GCN(3, 4, 2, num_layers=3))
    run = SAMPLED[name].bind(g, model, parts_for(SAMPLED[name], g), placement=placement_of(name))
    run.refresh()
    seen = 0
    for epoch in range(12):
        for batch in run.batches(epoch):
            weights = weights_of(batch, g)
            want = gradient_of_nodes(g, model, weights)
            model.zero_grad()
            run.accumulate(batch)
            got = {k: p.grad for k, p in model.named_parameters()}
            if bool((weights * g.train).any()):
                assert worst_error(got, want) < 1e-10
                seen += 1
            else:
                assert not any(bool(v.any()) for v in got.values())
    # a sampler of edges never meets a node that has none
    assert seen == 0 if name == "saint-edge" else seen >= 3


@pytest.mark.parametrize("method", [GraphSAGE(fanouts=9), VRGCN(fanouts=9), LADIES(), FastGCN(), SIGN()], ids=str)
def test_fan_outs_above_the_degrees_are_exact_with_lonely_nodes(method: Method) -> None:
    g = lonely_graph()
    model = scrambled(lmc.models.SIGN(3, 4, 2) if isinstance(method, SIGN) else GCN(3, 4, 2, num_layers=3))
    run = method.bind(g, model)
    run.refresh()
    assert worst_error(sweep(run), full_gradient(g, model)) < 1e-12


@pytest.mark.parametrize(("multi_label", "sparse_features"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", [n for n in SAMPLED if not n.startswith(WITH_TABLES) and n != "sign"])
def test_every_kind_of_data_without_tables(name: str, multi_label: bool, sparse_features: bool) -> None:
    g = random_graph(multi_label=multi_label, sparse_features=sparse_features)
    model = make("gcn-layer-norm", g)
    run = SAMPLED[name].bind(g, model)
    for batch in run.batches():
        assert worst_error(run.gradient(batch), through_operators(g, model, batch)) < 1e-10


@each
@pytest.mark.parametrize("multi_label", [False, True])
def test_sparse_features_give_the_gradients_of_dense_ones(name: str, multi_label: bool) -> None:
    g = random_graph(multi_label=multi_label, sparse_features=True)
    assert isinstance(g.x, CSR)
    dense = dataclasses.replace(g, x=g.x.to_dense())
    runs = [SAMPLED[name].bind(each, make(model_name(name), each), placement=placement_of(name)) for each in (g, dense)]
    for run in runs:
        run.refresh()
    for _ in range(2):
        got, want = (sweep(run) for run in runs)
        assert worst_error(got, want) < 1e-10
        assert all(bool(v.any()) for v in got.values())


@pytest.mark.parametrize(("multi_label", "sparse_features"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("method", EVERYTHING, ids=repr)
def test_everything_sampled_is_the_full_gradient_of_every_kind_of_data(
    method: Method, multi_label: bool, sparse_features: bool
) -> None:
    g = random_graph(multi_label=multi_label, sparse_features=sparse_features)
    # where edges come and go P X is not constant: CMC completes the messages of halo rows if they are encoded first
    model = make(model_for(method.traits.name, "gcn-linear-in-out"), g)
    run = method.bind(g, model, parts_for(method, g))
    run.refresh()
    assert worst_error(sweep(run), full_gradient(g, model)) < 1e-10


@each
def test_the_gradient_error_is_measured_against_the_same_losses(name: str) -> None:
    """Against plain autograd of the losses of the batch on the whole graph; parts are measured against backward SGD."""
    g = random_graph()
    model = make(model_name(name), g)
    run = SAMPLED[name].bind(g, model, parts_for(SAMPLED[name], g), placement=placement_of(name))
    run.refresh()
    batch = next(run.batches())
    got = run.gradient(batch)
    if run.method.traits.grad_from_all_rows:
        exact = gradient_of_nodes(g, model, weights_of(batch, g))
    else:
        oracle = BackwardSGD(clusters_per_batch=1).bind(g, model, run_parts(batch, g))
        (exact,) = (oracle.gradient(b) for b in oracle.batches() if same_nodes(b, batch))
        exact = {k: v * batch.weight / oracle.num_batches for k, v in exact.items()}
    error = gradient_error(run, batch)
    for k, truth in exact.items():
        assert error.backward_sgd[k] == pytest.approx(
            float((got[k] - truth).norm() / truth.norm()), rel=1e-6, abs=1e-12
        )
    assert error.mean == pytest.approx(sum(error.backward_sgd.values()) / len(exact))
    assert (error.mean < 1e-12) == (name == "sign")  # which alone leaves nothing out


def run_parts(batch: Batch, g: Graph) -> Tensor:
    """Two parts: the core of a batch, and the rest (where there is one)."""
    inside = torch.zeros(g.num_nodes, dtype=torch.int64)
    inside[batch.n_id[: batch.num_core]] = 1
    return 1 - inside


def same_nodes(a: Batch, b: Batch) -> bool:
    return set(a.n_id[: a.num_core].tolist()) == set(b.n_id[: b.num_core].tolist())


def test_the_gradient_error_of_a_large_sample_is_zero() -> None:
    g = random_graph()
    for method in (GraphSAGE(99, batch_size=5), ShaDow(3, 99, "graph", batch_size=5), LADIES(batch_size=5)):
        run = method.bind(g, make("gcn", g))
        error = gradient_error(run, next(run.batches()))
        assert error.mean < 1e-12
        assert min(error.full_batch.values()) > 1e-3


def test_messages_kept_are_counted() -> None:
    g = random_graph()
    few = messages_kept(GraphSAGE(fanouts=1).bind(g, make("gcn", g))).forward
    many = messages_kept(GraphSAGE(fanouts=3).bind(g, make("gcn", g))).forward
    assert 0 < few < many < 1


class _Attention(GCN):
    @property
    def linear(self) -> bool:
        return False


@pytest.mark.parametrize("method", [VRGCN(), FastGCN(), LADIES(), GraphSAINT(), DropEdge(VRGCN())], ids=str)
def test_sums_are_needed_where_sums_are_weighed(method: Method) -> None:
    g = random_graph()
    with pytest.raises(ConfigError, match=r"linear aggregation \(got _Attention.*use "):
        method.bind(g, _Attention(6, 7, 4))
    GraphSAGE().bind(g, _Attention(6, 7, 4))


def test_what_does_not_fit_the_model_is_refused() -> None:
    g = random_graph()
    with pytest.raises(ConfigError, match=r"one fan-out for each of 3 layers \(got 2\)"):
        GraphSAGE(fanouts=(5, 5)).bind(g, make("gcn", g))
    with pytest.raises(ConfigError, match=r"lmc.models.SIGN \(got GCN\)"):
        SIGN().bind(g, make("gcn", g))


class TestDropEdge:
    @pytest.mark.parametrize(
        "inner", [GAS(4, 1), LMC4Conv(4, 2), BackwardSGD(4, 1), GraphSAGE(2, batch_size=5)], ids=str
    )
    def test_nothing_dropped_is_the_method_itself(self, inner: Method) -> None:
        g = random_graph()
        model = make("gcn-linear-in-out", g)  # nothing to precompute, so both compute alike
        a, b = (m.bind(g, model, seed=3) for m in (inner, DropEdge(inner, p=0.0)))
        for run in (a, b):
            run.refresh()
        assert worst_error(sweep(b), sweep(a)) < 1e-14

    def test_the_graph_that_is_left_is_normalised_anew(self) -> None:
        g = random_graph()
        run = DropEdge(p=0.4).bind(g, make("gcn", g))
        for epoch in (0, 1):
            (batch,) = run.batches(epoch)
            P = batch.operators[0].forward.to_dense()
            kept = (P > 0).double()
            degrees = kept.sum(1)
            torch.testing.assert_close(P, kept / (degrees[:, None] * degrees[None, :]).sqrt())
            assert torch.equal(P, P.t())
            assert int(kept.sum()) < run.problem.P.nnz
        assert not batch.fixed

    def test_evaluation_sees_every_edge(self) -> None:
        g = random_graph()
        run = DropEdge(GAS(4, 1), p=0.4).bind(g, make("gcn", g))
        list(run.batches())
        assert run.problem.P.nnz == g.adj.nnz + g.num_nodes

    def test_its_settings_are_recorded(self) -> None:
        g = random_graph()
        record = lmc.fit(g, GCN(6, 7, 4), DropEdge(GAS(4, 1), p=0.25), epochs=1, device="cpu")
        method = record.config["method"]
        assert (method["name"], method["p"], method["inner"]["name"]) == ("dropedge", 0.25, "gas")


@pytest.mark.parametrize(
    "name", ["graphsage", "vrgcn", "fm-ib", "ladies", "saint-walk", "shadow", "sign", "dropedge-lmc"]
)
def test_a_stopped_run_ends_as_one_that_never_stopped(name: str, tmp_path: Path) -> None:
    g = random_graph()

    def model() -> nn.Module:
        kind = lmc.models.SIGN if name == "sign" else GCN
        return kind(6, 7, 4, num_layers=3, dropout=0.5, input_dropout=0.2)

    one, two = model(), model()
    lmc.fit(g, one, SAMPLED[name], epochs=4, placement=placement_of(name), seed=1)
    lmc.fit(g, two, SAMPLED[name], epochs=2, placement=placement_of(name), seed=1, run_dir=tmp_path / "run")
    two = model()
    lmc.fit(
        g, two, SAMPLED[name], epochs=4, placement=placement_of(name), seed=1, run_dir=tmp_path / "run", resume=True
    )
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@each
def test_samples_are_drawn_on_the_gpu(name: str) -> None:
    g = random_graph()
    run = SAMPLED[name].bind(g, make(model_name(name), g), placement=placement_of(name, "cuda"))
    run.refresh()
    for _ in range(2):
        grads = sweep(run)
    assert all(v.is_cuda and bool(v.isfinite().all()) for v in grads.values())
    assert all(batch.core.is_cuda for batch in run.batches())


def test_every_sampling_method_is_here() -> None:
    divided = {"full", "backward-sgd", "cluster", "gas", "fm", "lmc", "cmc", "imc", "top"}
    here = {method.traits.name for method in SAMPLED.values()}
    assert {name for name in CONVOLUTIONAL if name not in divided} <= here
