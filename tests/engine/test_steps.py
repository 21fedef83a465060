"""One step of GAS, GraphFM and LMC4Conv, and the state of a run."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from helpers import (
    PARTS,
    chance,
    full_gradient,
    full_loss,
    hand_graph,
    make,
    parts_of,
    random_graph,
    scrambled,
    sweep,
    worst_error,
)
from lmc.engine import Run
from lmc.errors import CheckpointError, ConfigError
from lmc.graph import Aggregation, Graph, gcn_norm
from lmc.methods import GAS, BackwardSGD, ClusterGCN, DropEdge, FullBatch, GraphFM, HistoryMethod, LMC4Conv
from lmc.models import GCN, Model
from lmc.stores import Placement
from lmc.train import fit


def fill(run: Run, seed: int = 0) -> None:
    """Histories of a run as no refresh would leave them."""
    g = chance(seed)
    for tables in (run.H, run.V):
        for table in tables.values():
            table.data().copy_(torch.randn(table.data().shape, generator=g, dtype=torch.float64))


def train(run: Run, epochs: int, lr: float = 0.1) -> None:
    params = list(run.problem.model.parameters())
    optimiser = torch.optim.SGD(params, lr=lr)
    for _ in range(epochs):
        for batch in run.batches():
            optimiser.zero_grad()
            run.accumulate(batch)
            optimiser.step()


@pytest.mark.parametrize("model", ["gcn", "gcn-residual", "gcnii-two-matrices"])
def test_gas_is_lmc_without_compensation_at_stale_histories(model: str) -> None:
    g = random_graph()
    module, parts = make(model, g), parts_of(g)
    gas = GAS(clusters_per_batch=1).bind(g, module, parts)
    lmc = LMC4Conv(clusters_per_batch=1, forward=False, backward=False, first_layer="pruned").bind(g, module, parts)
    fill(gas)
    for l, table in gas.H.items():
        lmc.H[l].data().copy_(table.data())
    for a, b in zip(gas.batches(), lmc.batches(), strict=True):
        assert worst_error(lmc.gradient(b), gas.gradient(a)) < 1e-13


@pytest.mark.parametrize("first_layer", ["complete", "pruned"])
def test_gas_is_lmc_without_compensation_at_exact_histories(first_layer: str) -> None:
    # a complete first layer needs no history of it, so the two agree where that history is up to date
    g = random_graph()
    module, parts = make("gcn", g), parts_of(g)
    gas = GAS(clusters_per_batch=2).bind(g, module, parts)
    lmc = LMC4Conv(clusters_per_batch=2, forward=False, backward=False, first_layer=first_layer).bind(g, module, parts)
    gas.refresh()
    lmc.refresh()
    assert lmc.first_layer == first_layer
    for a, b in zip(gas.batches(), lmc.batches(), strict=True):
        assert worst_error(lmc.gradient(b), gas.gradient(a)) < 1e-13


def test_gas_and_lmc_without_compensation_train_alike() -> None:
    g = random_graph()
    models = make("gcn", g), make("gcn", g)
    methods = (
        GAS(clusters_per_batch=1),
        LMC4Conv(clusters_per_batch=1, forward=False, backward=False, first_layer="pruned"),
    )
    for method, model in zip(methods, models, strict=True):
        run = method.bind(g, model, parts_of(g))
        run.refresh()
        train(run, epochs=3)
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)


def test_each_compensation_changes_the_gradient() -> None:
    g = random_graph()
    module = make("gcn", g)
    grads = []
    for forward, backward in [(False, False), (True, False), (False, True), (True, True)]:
        run = LMC4Conv(alpha=0.5, clusters_per_batch=1, forward=forward, backward=backward).bind(g, module, parts_of(g))
        fill(run)
        grads.append(run.gradient(next(iter(run.batches()))))
    for i, a in enumerate(grads):
        for b in grads[i + 1 :]:
            assert worst_error(a, b) > 1e-3


def layer(model: Model, l: int, m: Tensor) -> Tensor:
    lin = model.layer(l).lin
    return m @ lin.weight.t() + lin.bias


def test_graph_fm_writes_the_momentum_step_of_the_halo_back() -> None:
    g = hand_graph()
    model = make("gcn", g)
    P = gcn_norm(g.adj, torch.float64).to_dense()
    run = GraphFM(momentum=0.3, clusters_per_batch=1).bind(g, model, PARTS)
    fill(run)
    order = run.clusters.order
    for batch in run.batches():
        c, n_id = batch.num_core, batch.n_id
        before = {l: t.data().clone() for l, t in run.H.items()}
        run.accumulate(batch)
        # halo rows see core rows and themselves, no other halo row
        local = P[n_id][:, n_id].clone()
        local[c:, c:] *= torch.eye(len(n_id) - c, dtype=torch.float64)
        h = g.x[n_id]
        for l in (1, 2):
            with torch.no_grad():
                s = layer(model, l, local @ h)
            s[c:] = 0.7 * before[l][batch.halo] + 0.3 * s[c:]
            torch.testing.assert_close(run.H[l].data()[batch.ext], s, rtol=1e-12, atol=1e-13)
            untouched = ~torch.isin(order, n_id)
            assert torch.equal(run.H[l].data()[untouched], before[l][untouched])
            h = s.relu()


def test_graph_fm_without_momentum_is_gas() -> None:
    g = random_graph()
    module, parts = make("gcn", g), parts_of(g)
    fm = GraphFM(momentum=0.0, clusters_per_batch=1).bind(g, module, parts)
    gas = GAS(clusters_per_batch=1).bind(g, module, parts)
    fill(fm)
    fill(gas)
    for a, b in zip(fm.batches(), gas.batches(), strict=True):
        assert worst_error(fm.gradient(a), gas.gradient(b)) < 1e-13


def test_cluster_gcn_is_full_batch_on_the_graph_without_edges_between_batches() -> None:
    # renormalised: the degrees are those inside the batch
    g = random_graph()
    parts, model = parts_of(g), make("gcn", g)
    row, col = g.adj.row_index(), g.adj.indices.long()
    inside = parts[row] == parts[col]
    cut = Graph.from_edges(
        torch.stack([row, col])[:, inside], g.x, g.y, train=g.train, val=g.val, test=g.test, num_classes=g.num_classes
    )
    run = ClusterGCN(clusters_per_batch=1).bind(g, model, parts)
    assert 0 < cut.num_edges < g.num_edges
    assert worst_error(sweep(run), full_gradient(cut, model)) < 1e-12


@pytest.mark.parametrize("kind", [GAS, LMC4Conv])
def test_core_states_are_pushed_and_halo_rows_left(kind: type[HistoryMethod]) -> None:
    g = hand_graph()
    run = kind(clusters_per_batch=1).bind(g, make("gcn", g), PARTS)
    fill(run)
    batch = next(iter(run.batches()))
    before = {l: t.data().clone() for l, t in run.H.items()}
    run.accumulate(batch)
    others = torch.ones(8, dtype=torch.bool)
    others[batch.core] = False
    for l, table in run.H.items():
        assert torch.equal(table.data()[others], before[l][others])
        assert not torch.isclose(table.data()[batch.core], before[l][batch.core]).any()


def lmc_by_hand(g: Graph, model: GCN, run: Run, n_id: Tensor, c: int, beta: Tensor) -> dict[str, Tensor]:
    """(12)-(19) for a plain GCN with a pruned first layer, written out with dense matrices."""
    L = model.num_layers
    P = gcn_norm(g.adj, torch.float64).to_dense()[n_id][:, n_id]
    halo = run.clusters.order.argsort()[n_id[c:]]  # the halo's rows in the run
    W = {l: model.layer(l).lin.weight.detach() for l in range(1, L + 1)}

    def mended(tmp: Tensor, stored: Tensor) -> Tensor:
        return torch.cat([tmp[:c], (1 - beta) * stored + beta * tmp[c:]])

    h, m, s = g.x[n_id], {}, {}
    for l in range(1, L + 1):
        m[l] = P @ h
        tmp = m[l] @ W[l].t() + model.layer(l).lin.bias.detach()  # (12) for the core, (14) for the halo
        s[l] = mended(tmp, run.H[l].data()[halo])  # (13)
        h = s[l].relu()

    target = torch.nn.functional.one_hot(g.y[n_id], g.num_classes).double()
    v = (s[L].softmax(1) - target) * g.train[n_id].unsqueeze(1) / g.num_labelled
    grads = {}
    for l in range(L, 0, -1):
        grads[f"layers.{l - 1}.lin.weight"] = run.num_batches * v[:c].t() @ m[l][:c]  # (18)
        grads[f"layers.{l - 1}.lin.bias"] = run.num_batches * v[:c].sum(0)
        if l > 1:
            tmp = (P.t() @ v @ W[l]) * (s[l - 1] > 0)  # (15) for the core, (17) for the halo
            v = mended(tmp, run.V[l - 1].data()[halo])  # (16)
    return grads


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("score", ["x", "1"])
def test_a_step_of_lmc_is_the_equations_written_out(alpha: float, score: str) -> None:
    g = hand_graph()
    # three layers: the mended adjoints of the halo reach a parameter two layers below
    model = scrambled(GCN(5, 4, 3, num_layers=3))
    run = LMC4Conv(alpha=alpha, score=score, clusters_per_batch=1, first_layer="pruned").bind(g, model, PARTS)
    fill(run)
    A = g.adj.to_dense().double()
    for batch in run.batches():
        n_id, c = batch.n_id, batch.num_core
        x = A[n_id[c:]][:, n_id].sum(1, keepdim=True) / A[n_id[c:]].sum(1, keepdim=True)
        beta = alpha * (x if score == "x" else torch.ones_like(x))
        want = lmc_by_hand(g, model, run, n_id, c, beta)
        assert worst_error(run.gradient(batch), want) < 1e-13


def test_loss_of_an_epoch_estimates_the_loss_of_the_graph() -> None:
    g = random_graph()
    model = make("gcn", g)
    P = Aggregation.exact(gcn_norm(g.adj, torch.float64))
    want = full_loss(g, model, model(g.x, P)).item()
    for method in (FullBatch(), BackwardSGD(clusters_per_batch=1), LMC4Conv(clusters_per_batch=1, alpha=0.0)):
        run = method.bind(g, model, parts_of(g))
        run.refresh()
        losses = [float(run.accumulate(batch).loss) for batch in run.batches()]
        assert sum(losses) / len(losses) == pytest.approx(want, rel=1e-12)


def test_stats_count_the_rows() -> None:
    g = hand_graph()
    run = LMC4Conv(clusters_per_batch=1).bind(g, make("gcn", g), PARTS)
    for batch in run.batches():
        stats = run.accumulate(batch)
        assert (stats.num_core, stats.num_halo) == (batch.num_core, batch.num_halo)


@pytest.mark.parametrize("kind", [GAS, LMC4Conv])
def test_a_batch_without_labels_gives_finite_gradients(kind: type[HistoryMethod]) -> None:
    g = hand_graph()
    parts = torch.tensor([0, 1, 0, 0, 1, 0, 0, 1])  # nodes 1, 4 and 7 are not in the training split
    run = kind(clusters_per_batch=1).bind(g, make("gcn", g), parts)
    run.refresh()
    (batch,) = (b for b in run.batches() if 1 in b.n_id[: b.num_core])
    assert not batch.labelled[: batch.num_core].any()
    grads = run.gradient(batch)
    assert all(bool(v.isfinite().all()) for v in grads.values())
    # the last bias sees its own rows' losses alone; the labelled halo gives a gradient to earlier weights in LMC
    assert not grads["layers.2.lin.bias"].any()
    assert bool(grads["layers.0.lin.weight"].any()) == (kind is LMC4Conv)


def test_nodes_without_edges_outside_make_no_halo() -> None:
    # two components, one part each: every method sees the whole truth
    edges = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3]])
    g = Graph.from_edges(
        edges,
        torch.randn(6, 4, generator=chance(), dtype=torch.float64),
        torch.tensor([0, 1, 0, 1, 1, 0]),
        train=[0, 1, 3, 4],
        val=[2],
        test=[5],
        symmetrise=True,
    )
    model = make("gcn", g)
    run = LMC4Conv(alpha=0.7, clusters_per_batch=1).bind(g, model, torch.tensor([0, 0, 0, 1, 1, 1]))
    total = [run.gradient(batch) for batch in run.batches()]
    mean = {k: (total[0][k] + total[1][k]) / 2 for k in total[0]}
    assert worst_error(mean, full_gradient(g, model)) < 1e-12


@pytest.mark.parametrize("redraw", [False, True])
def test_a_run_taken_up_from_its_state_goes_on_bit_for_bit(redraw: bool) -> None:
    g = random_graph()
    method = LMC4Conv(clusters_per_batch=1, redraw=redraw)

    def fresh(seed: int) -> Run:
        return method.bind(g, GCN(6, 7, 4, num_layers=3, dropout=0.5, norm="batch", seed=seed), parts_of(g), seed=1)

    first = fresh(0)
    train(first, epochs=2)
    state, weights = copy.deepcopy(first.state_dict()), copy.deepcopy(first.problem.model.state_dict())
    train(first, epochs=2)

    second = fresh(9)
    second.problem.model.load_state_dict(weights)
    second.load_state_dict(state)
    train(second, epochs=2)
    for (k, a), b in zip(
        first.problem.model.state_dict().items(), second.problem.model.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), k
    for k, v in first.state_dict().items():
        assert torch.equal(v, second.state_dict()[k]), k


def test_dropout_masks_depend_on_the_runs_seed() -> None:
    g = random_graph()
    model = GCN(6, 7, 4, dropout=0.5).double()
    grads = []
    for seed in (1, 1, 2):
        model.zero_grad()
        run = FullBatch().bind(g, model, seed=seed)
        run.accumulate(next(iter(run.batches())))
        grads.append(model.layer(2).lin.weight.grad.clone())
    assert torch.equal(grads[0], grads[1])
    assert not torch.equal(grads[0], grads[2])


@pytest.mark.parametrize(
    "parts",
    [
        parts_of(random_graph(), 4, seed=1),
        # node for node the same order, cut elsewhere
        torch.tensor([0] * 10 + [1] * 30),
    ],
    ids=["another order", "another cut"],
)
def test_the_state_of_another_partition_is_refused(parts: Tensor) -> None:
    g = random_graph()
    method = LMC4Conv(clusters_per_batch=1)
    model = make("gcn", g)
    saved = torch.tensor([0] * 20 + [1] * 20) if int(parts.max()) == 1 else parts_of(g)
    state = copy.deepcopy(method.bind(g, model, saved).state_dict())
    with pytest.raises(CheckpointError, match="partition"):
        method.bind(g, model, parts).load_state_dict(state)


def test_the_state_of_another_model_is_refused() -> None:
    g = random_graph()
    method = LMC4Conv(clusters_per_batch=1)
    state = method.bind(g, make("gcn", g), parts_of(g)).state_dict()
    other = scrambled(GCN(6, 9, 4, num_layers=3))
    with pytest.raises(CheckpointError, match=r"history H\[2\] has shape \[40, 9\] but the state holds \[40, 7\]"):
        method.bind(g, other, parts_of(g)).load_state_dict(state)


@pytest.mark.parametrize("other", ["seed", "graph", "no batch", "drop edge"])
def test_a_batch_of_another_run_is_refused(other: str) -> None:
    g = random_graph()
    model = make("gcn", g)
    method = DropEdge(GAS(4, 1)) if other == "drop edge" else GAS(4, 1)
    run = method.bind(g, model, parts_of(g))
    foreign = method.bind(
        random_graph(seed=1) if other == "graph" else g, model, parts_of(g), seed=int(other == "seed")
    )
    batch = "batch" if other == "no batch" else next(foreign.batches())
    for use in (run.accumulate, run.gradient):
        with pytest.raises(ConfigError, match=r"expected a batch of this run \(got .*\): take it from run\.batches"):
            use(batch)
    assert all(p.grad is None for p in model.parameters())
    run.accumulate(next(run.batches()))


def test_bind_and_fit_choose_the_same_device_by_default() -> None:
    g = random_graph()
    on_gpu = torch.cuda.is_available()
    run = GAS(2, 1).bind(g, GCN(6, 7, 4))
    record = fit(g, GCN(6, 7, 4), GAS(2, 1), epochs=1)
    assert Placement().device == "auto"
    assert run.problem.device.type == record.config["device"] == ("cuda" if on_gpu else "cpu")
