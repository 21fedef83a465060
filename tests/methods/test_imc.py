"""IMC and TOP: what a fresh sweep makes exact, when sweeps happen, and what is refused."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import models as pyg_models

import lmc
from helpers import parts_of, random_graph, scrambled, sparse, sweep, worst_error
from lmc.diagnostics import bias, gradient_error
from lmc.engine import Run
from lmc.engine.exact import chunks_of, exact_states, sweep_chunks
from lmc.engine.run import source_on
from lmc.errors import ConfigError
from lmc.graph import Graph, spmm
from lmc.methods import GAS, IMC, TOP, BackwardSGD, ClusterGCN, DropEdge, FullBatch, moments
from lmc.methods.invariance import unexplained
from lmc.models import GAT, GCN, GCNII, SAGE, BatchNorm, Model
from lmc.stores import Placement


def bound(method: Any, model: Model | None = None, g: Graph | None = None, num_parts: int = 4, **options: Any) -> Run:
    g = g or random_graph(80)
    model = model or scrambled(GCN(6, 7, 4, num_layers=3))
    return method.bind(g, model, parts_of(g, num_parts), seed=3, **options)


MODELS = {
    "gcn": lambda: GCN(6, 7, 4, num_layers=3),
    "gcn-linear-in": lambda: GCN(6, 7, 4, num_layers=2, linear_in=True, linear_out=True, norm="layer"),
    "gcn-batch-norm": lambda: GCN(6, 7, 4, num_layers=3, norm="batch"),
    "residual-batch-norm": lambda: GCN(6, 7, 4, num_layers=3, norm="batch", residual=True),
    "sage-batch-norm": lambda: SAGE(6, 7, 4, num_layers=3, norm="batch"),
    "gcnii": lambda: GCNII(6, 7, 4, num_layers=3),
    "sage": lambda: SAGE(6, 7, 4, num_layers=3),
}


@pytest.mark.parametrize("ridge", [1e-13, 0.1])
@pytest.mark.parametrize("redraw", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_the_forward_pass_is_exact_at_a_fresh_sweep_with_any_ridge(name: str, redraw: bool, ridge: float) -> None:
    """100 rows a batch and 7 columns: Q[B] has full column rank, and h = T lies in its span. The ridge pulls the map
    towards the identity, which is the map of a fresh sweep."""
    model = MODELS[name]().double()  # biases are 0, so that no unit is dead within a batch
    run = bound(IMC(clusters_per_batch=1, ridge=ridge, basis="T", redraw=redraw, halo=0.0), model, random_graph(400))
    run.refresh()
    problem = run.problem
    states = [t for _, t in exact_states(problem, chunks_of(problem), lambda _, width: problem.table(width))]
    seen: dict[int, Tensor] = {}

    class Watching(IMC):
        def compensate(self, step: Any, l: int, s: Tensor) -> Tensor:
            seen[l] = s.detach()
            return s

    run.method = Watching(clusters_per_batch=1, ridge=ridge, basis="T", redraw=redraw, halo=0.0)
    for batch in run.batches(0):
        run.gradient(batch)
        for l, s in seen.items():
            exact = states[l - 1].pull(batch.rows)
            assert float((s - exact).norm() / exact.norm()) < 1e-8


@pytest.mark.parametrize("name", MODELS)
def test_halo_rows_are_exact_at_a_fresh_sweep_and_reduce_the_bias(name: str) -> None:
    found = []
    for halo in (0.0, 1.0):
        run = bound(IMC(clusters_per_batch=1, basis="T", halo=halo), MODELS[name]().double(), random_graph(400))
        run.refresh()
        sizes = [(batch.num_core, batch.num_halo) for batch in run.batches(0)]
        assert all(halo_rows <= min(halo * core, 20 * 7 - core) for core, halo_rows in sizes)
        full = bound(FullBatch(), run.problem.model, random_graph(400), num_parts=1)
        losses = [float(run.accumulate(batch).loss) for batch in run.batches(0)]  # of core rows, with exact messages
        assert fmean(losses) == pytest.approx(float(full.accumulate(next(full.batches())).loss))
        found.append(sum(bias(run).values()))
    if name != "sage-batch-norm":  # on a random graph, halo rows change its bias by less than a hundredth
        assert found[1] < found[0]


@pytest.mark.parametrize(
    ("options", "features", "nodes", "halo"),
    [
        ({}, 6, 16 * 13 * 4, 0.0),  # P X adds 6 columns to 7, and a batch has a quarter of the nodes
        ({}, 6, 16 * 13 * 4 - 4, 20 * 13 / (16 * 13 - 1) - 1),  # as many rows as 20 for each column allow
        ({}, 6, 10 * 13 * 4, 1.0),
        ({}, 6, 4, 1.0),
        ({}, 300, 16 * 14 * 4, 0.0),
        ({}, 300, 15 * 14 * 4, 20 / 15 - 1),
        ({"basis": "T"}, 6, 16 * 7 * 4, 0.0),
        ({"basis": "T"}, 6, 10 * 7 * 4, 1.0),
        ({}, 0, 10 * 7 * 4, 1.0),  # P X is not computed once
        ({"redraw": True}, 6, 100, 0.0),
        ({"halo": 0.0}, 6, 100, 0.0),
        ({"halo": 0.5}, 6, 10**6, 0.5),
    ],
)
def test_small_fixed_batches_compute_halo_rows_by_default(
    options: dict[str, Any], features: int, nodes: int, halo: float
) -> None:
    method = IMC(clusters_per_batch=2, **options)
    settled = method.settled(GCN(6, 7, 4, num_layers=3), features, nodes, 8)
    assert settled.halo == pytest.approx(halo)
    assert settled == replace(method, halo=settled.halo)


def test_a_run_has_settled_its_halo() -> None:
    run, core_alone = (bound(method(clusters_per_batch=1)) for method in (IMC, TOP))
    assert run.method == IMC(clusters_per_batch=1, halo=1.0)
    assert all(batch.num_halo for batch in run.batches(0))
    assert not any(batch.num_halo for batch in core_alone.batches(0))
    assert set(bound(IMC(clusters_per_batch=1), g=random_graph(2000)).tables) == {"Q", "S"}
    dropped = bound(DropEdge(IMC(clusters_per_batch=1)))
    assert dropped.schedule is not None
    assert dropped.schedule.inner == dropped.method == IMC(clusters_per_batch=1, halo=1.0)


def test_maps_that_a_sweep_stores_are_those_that_a_step_computes() -> None:
    """Batches with a halo on graphs of DropEdge compute K in every step; the others read it, kept or not."""
    method = IMC(clusters_per_batch=1, halo=1.0, sweep_every=0)
    kept, made = (bound(method, placement=Placement(keep_batches=keep)) for keep in (True, False))
    for run in (kept, made):
        run.refresh()
        assert run.numbers.keys() >= {"K2", "K3"}
    for _ in range(2):
        a, b = (sweep(run) for run in (kept, made))
        assert worst_error(a, b) < 1e-12
    batch = next(kept.batches(2))
    before = kept.gradient(batch)
    kept.numbers["K2"].mul_(2)
    assert worst_error(kept.gradient(batch), before) > 1e-3, "the stored one is read"
    assert worst_error(kept.gradient(replace(batch, graph=replace(batch.graph))), before) < 1e-12


@pytest.mark.parametrize("halo", [0.0, 1.0])
def test_gram_matrices_live_until_the_stream_that_reads_them_is_waited_for(
    halo: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gram matrices are read on a second stream: freed before it is waited for, their memory would be used again."""
    alive: list[bool] = []

    def late(device: torch.device, call: Any) -> Any:
        refs = [weakref.ref(grams) for grams in call.args[1].values()] if len(call.args) == 3 else []
        call()
        del call
        return lambda: alive.extend(ref() is not None for ref in refs)

    run = bound(IMC(clusters_per_batch=1, halo=halo))
    monkeypatch.setattr("lmc.methods.imc.beside", late)
    run.refresh()
    assert len(alive) == len(run.tables["Q"])
    assert all(alive)


@pytest.mark.parametrize("name", [*(name for name in MODELS if "batch-norm" not in name), "wrapped"])
def test_with_all_other_rows_in_the_halo_the_estimate_is_exact(name: str) -> None:
    """But for batch norms, whose statistics follow from the map, not from the rows."""
    g = random_graph(24)
    every = torch.arange(24)
    edges = torch.stack([every.repeat_interleave(24), every.repeat(24)])
    g = Graph.from_edges(edges[:, edges[0] != edges[1]], g.x, g.y, train=g.train, num_classes=4)
    model = lmc.wrap(pyg_models.GraphSAGE(6, 7, 3, 4)) if name == "wrapped" else MODELS[name]()
    run = bound(IMC(clusters_per_batch=1, halo=3.0), scrambled(model), g)
    assert all(batch.num_halo == 18 for batch in run.batches(0))
    for batch in run.batches(0):
        run.step(batch, torch.optim.SGD(model.parameters(), lr=0.1))
    assert max(bias(run).values()) < 1e-10  # whatever the age of the sweep


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "halo"), [("gcn", 1.0), ("gcn-batch-norm", 1.0), ("gcn-batch-norm", 0.0)])
def test_recorded_steps_train_as_on_a_cpu(name: str, halo: float) -> None:
    g, losses = random_graph(400), []
    for device in ("cpu", "cuda"):
        method, model = IMC(clusters_per_batch=1, halo=halo, sweep_every=2), MODELS[name]().double()
        run = method.bind(g, model, parts_of(g, 8), device=device)
        assert all(bool(batch.num_halo) == bool(halo) for batch in run.batches(0))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        steps = [run.step(batch, optimizer).loss for epoch in range(5) for batch in run.batches(epoch)]
        losses.append(torch.stack(steps).cpu())
    torch.testing.assert_close(*losses, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("halo", [0.0, 1.0])
@pytest.mark.parametrize("name", MODELS)
def test_the_estimate_is_the_derivative_of_the_loss_of_the_core_rows(name: str, halo: float) -> None:
    """Along a random direction of all parameters, some steps after the sweep, by central differences."""
    model = scrambled(MODELS[name]())
    run = bound(IMC(clusters_per_batch=1, halo=halo, sweep_every=0), model, random_graph(400))
    for batch in run.batches(0):
        run.step(batch, torch.optim.SGD(model.parameters(), lr=0.1))
    batch, at = next(run.batches(1)), [p.detach().clone() for p in model.parameters()]
    source, grads = torch.Generator().manual_seed(0), run.gradient(batch)
    along = [torch.randn(p.shape, generator=source, dtype=p.dtype) for p in at]

    def loss(step: float) -> float:
        with torch.no_grad():
            for p, was, direction in zip(model.parameters(), at, along, strict=True):
                p.copy_(was + step * direction)
        return float(run.accumulate(batch).loss)

    slope = (loss(1e-7) - loss(-1e-7)) / 2e-7  # a larger step may cross the kink of a ReLU
    assert slope == pytest.approx(
        sum(float((g * d).sum()) for g, d in zip(grads.values(), along, strict=True)), rel=1e-5
    )


@pytest.mark.parametrize("name", ["gcn", "gcn-batch-norm"])
def test_a_step_leaves_nothing_to_the_garbage_collector(name: str) -> None:
    """What outlives a step would be read when the next one is recorded."""
    run, made = bound(IMC(clusters_per_batch=1, halo=0.0), MODELS[name]().double()), []

    class Watching(IMC):
        def operator(self, step: Any, l: int) -> Any:
            found = super().operator(step, l)
            made.append(weakref.ref(found))
            return found

    run.method = Watching(clusters_per_batch=1, halo=0.0)
    batch = next(run.batches(0))
    gc.disable()
    try:
        run.accumulate(batch)
        alive = [ref() for ref in made]
        assert len(made) == 3
        assert all(op is None or op in batch.operators for op in alive)
    finally:
        gc.enable()


def test_moments_are_those_of_the_graph_of_an_epoch() -> None:
    """DropEdge: the sums of all nodes, and their mean and covariance, are those with the edges of the epoch."""
    run = bound(DropEdge(IMC(clusters_per_batch=1, basis="T"), p=0.5), MODELS["gcn-batch-norm"]().double())
    run.refresh()
    before = run.numbers["moments2"].clone()
    batches = run.batches(0)
    next(batches)
    source = source_on(run, 0)
    Q = run.tables["Q"][2].data()
    sums = spmm(source.problem.P, Q)
    mean, covariance = sums.mean(0, keepdim=True), sums.T.cov(correction=0)
    torch.testing.assert_close(run.numbers["moments2"], torch.cat([mean, covariance]))
    assert not torch.allclose(run.numbers["moments2"], before)


@pytest.mark.parametrize("of", [lambda x: x, sparse], ids=["dense", "sparse"])
def test_moments_of_the_first_layer_are_those_of_all_nodes(
    of: Callable[[Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "NUMBERS", {"cpu": 66})  # 11 rows at a time
    g = random_graph(80)
    run = bound(IMC(clusters_per_batch=1), MODELS["gcn-batch-norm"]().double(), replace(g, x=of(g.x + 100)))
    run.refresh()
    sums, found = run.problem.P.to_dense() @ (g.x + 100)[run.nodes], run.numbers["moments1"]
    torch.testing.assert_close(found, torch.cat([sums.mean(0, keepdim=True), sums.T.cov(correction=0)]))
    found[0] += 1
    run.refresh()  # they are constant, so that no other sweep computes them
    torch.testing.assert_close(found[0], sums.mean(0) + 1)


def test_columns_of_the_features_are_computed_by_the_first_sweep_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    run = bound(IMC(clusters_per_batch=1, basis="T+X1", halo=0.0))
    run.refresh()
    before = {l: table.data().clone() for l, table in run.tables["Q"].items()}
    with torch.no_grad():
        for parameter in run.parameters.values():
            parameter.mul_(1.5)
    monkeypatch.setattr("lmc.methods.imc._first_sums", lambda *_: pytest.fail("computed again"))
    run.refresh()
    for l, table in run.tables["Q"].items():
        assert torch.equal(table.data()[:, 7:], before[l][:, 7:])
        assert not torch.allclose(table.data()[:, :7], before[l][:, :7])


def test_statistics_are_read_by_the_norm_that_follows_and_by_no_other() -> None:
    """A norm without parameters, and one inside of the next layer, keep the statistics of the batch."""
    model = MODELS["gcn-batch-norm"]().double()
    model.layers[0].activation.norm = BatchNorm(7, affine=False).double()
    last, inner, plain = model.layers[2], BatchNorm(7).double(), model.layers[2].forward
    last.inner, last.forward = inner, lambda h, P, p, h0: plain(inner(h, p), P, p, h0)
    run = bound(IMC(clusters_per_batch=1), model)
    assert "moments1" not in run.numbers
    assert "moments2" in run.numbers
    run.refresh()
    run.accumulate(next(run.batches(0)))
    assert not torch.allclose(inner.running_mean, model.layers[1].activation.norm.running_mean)


@pytest.mark.parametrize("settings", [{}, {"halo": 0.0}, {"redraw": True}, {"basis": "T"}], ids=str)
@pytest.mark.parametrize("cls", [IMC, TOP])
def test_rows_that_are_all_zero_at_the_sweep_leave_the_map_finite(cls: type[IMC], settings: dict[str, Any]) -> None:
    """The first layer is dead, so that the Gram matrices of its rows are zero; the other rows are complete."""
    model = GCN(6, 128, 4, num_layers=3)
    with torch.no_grad():
        model.layers[0].lin.bias.fill_(-1000)
    settings = settings if cls is IMC else {name: value for name, value in settings.items() if name == "redraw"}
    run = bound(cls(clusters_per_batch=1, **settings), model)
    full = FullBatch().bind(run.graph, model)
    run.refresh()
    assert all(bool(value.isfinite().all()) for name, value in run.numbers.items() if name[0] == "K")
    losses = [float(run.accumulate(batch).loss) for batch in run.batches(0)]
    assert sum(losses) / len(losses) == pytest.approx(float(full.accumulate(next(full.batches())).loss), rel=1e-5)
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("cls", [GCN, SAGE])
@pytest.mark.parametrize("edges_dropped", [0.0, 0.3])
def test_dropout_on_features_falls_on_their_sums(cls: type[Model], edges_dropped: float) -> None:
    """Also where P X is another one in every epoch, and where a layer reads the features beside it."""
    g = random_graph(400)
    plain, dropping = (cls(6, 7, 4, num_layers=2, input_dropout=rate, seed=1).double() for rate in (0.0, 0.5))
    runs = []
    for model in (plain, dropping):
        method = IMC(clusters_per_batch=1, halo=0.0, basis="T")
        run = bound(DropEdge(method, p=edges_dropped) if edges_dropped else method, model, g)
        run.refresh()
        runs.append((run, next(run.batches(0))))
    exact, undropped = (run.gradient(batch) for run, batch in runs)
    run, batch = runs[1]
    drawn = [run.problem.kind.estimate(run, batch, keep=False, dropout=True)[0][0] for _ in range(200)]
    weight = next(iter(run.parameters))
    assert worst_error({weight: undropped[weight]}, {weight: exact[weight]}) < 1e-12
    spread = torch.stack(drawn).std(0).norm() / torch.stack(drawn).mean(0).norm()
    assert 0.1 < spread < 3


def test_running_statistics_of_a_sweep_lose_no_bits_beside_a_large_mean() -> None:
    g, found = random_graph(400), []
    for dtype in (torch.float32, torch.float64):
        model = GCN(6, 7, 4, num_layers=3, norm="batch").to(dtype)
        with torch.no_grad():
            model.layers[1].lin.bias += 1000
        bound(IMC(clusters_per_batch=1), model, g).refresh()
        found.append(model.layers[1].activation.norm.running_var.double())
    torch.testing.assert_close(*found, rtol=1e-3, atol=0)


def test_the_unexplained_share_does_not_depend_on_the_order_of_batches() -> None:
    """Ranks list the batches in other orders, and all of them have to sweep at the same time."""
    source = torch.Generator().manual_seed(0)
    explained = 10 ** (4 * torch.rand(4, 101, 2, generator=source))
    shuffled = [explained[:, torch.randperm(101, generator=source)] for _ in range(50)]
    assert len({unexplained(each) for each in shuffled}) == 1


def test_statistics_of_bfloat16_rows_are_computed_in_float32() -> None:
    """Biases that are large beside the spread of the rows would leave few bits of it."""
    g, found = random_graph(400), []
    for precision in ("float32", "bfloat16"):
        model = GCN(6, 7, 4, num_layers=3, norm="batch")
        with torch.no_grad():
            model.layers[1].lin.bias += 50
        run = bound(IMC(clusters_per_batch=1), model, g, placement=Placement(precision=precision))
        run.refresh()
        run.accumulate(next(run.batches(0)))
        found.append(model.layers[1].activation.norm.running_var.clone())
    torch.testing.assert_close(*found, rtol=0.05, atol=1e-3)


def test_the_backward_pass_is_inexact_at_a_fresh_sweep() -> None:
    run = bound(IMC(clusters_per_batch=1, ridge=0.1, basis="T"))
    run.refresh()
    assert max(gradient_error(run, next(run.batches(0))).backward_sgd.values()) > 1e-3


def test_its_bias_is_below_that_of_methods_which_drop_adjoints() -> None:
    def mean(method: Any) -> float:
        run = bound(method, scrambled(GCN(6, 7, 4, num_layers=3)), random_graph(400))
        run.refresh()
        return sum(bias(run).values()) / 6

    imc = mean(IMC(clusters_per_batch=1))
    assert 1e-6 < imc < 0.8 * min(mean(GAS(clusters_per_batch=1)), mean(ClusterGCN(clusters_per_batch=1)))
    assert mean(BackwardSGD(clusters_per_batch=1)) < 1e-10


def swept_before(run: Run, epochs: int) -> list[tuple[int, int]]:
    """(epoch, step) before which the tables were filled, of a run whose tables are fresh at its beginning."""
    run.refresh()
    found, fill = [], run.refresh

    def counted() -> None:
        found.append((epoch, step))
        fill()

    run.refresh = counted  # type: ignore[method-assign]
    for epoch in range(epochs):
        batches = run.batches(epoch)
        for step in range(run.num_batches):  # noqa: B007 - counted() reads it
            run.accumulate(next(batches))
            with torch.no_grad():
                for p in run.parameters.values():
                    p.add_(0.1 * torch.sin(torch.arange(p.numel()).view_as(p) + epoch))
    return found


@pytest.mark.parametrize("redraw", [False, True])
@pytest.mark.parametrize("name", ["gcn", "gcnii", "sage", "residual-batch-norm"])
def test_a_sweep_activates_every_row_once(name: str, redraw: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that a layer aggregates are those of the basis, which are not computed again for its state."""
    model, rows = scrambled(MODELS[name]()), dict[int, int]()
    run = bound(IMC(clusters_per_batch=2, redraw=redraw, halo=0.0), model)
    for l in range(1, model.num_layers + 1):
        layer = model.layer(l)

        def activate(s: Tensor, p: Any, l: int = l, was: Any = layer.activate) -> Tensor:
            rows[l] = rows.get(l, 0) + s.shape[0]
            return was(s, p)

        monkeypatch.setattr(layer, "activate", activate)
    run.refresh()
    assert rows == dict.fromkeys(range(1, model.num_layers), run.graph.num_nodes)


@pytest.mark.parametrize(
    ("every", "want"),
    [
        (2, [(2, 0), (4, 0)]),
        ("3steps", [(0, 3), (1, 2), (2, 1), (3, 0), (3, 3), (4, 2)]),
        (0, []),
    ],
)
def test_sweeps_happen_when_they_are_due(every: int | str, want: list[tuple[int, int]]) -> None:
    run = bound(IMC(clusters_per_batch=1, sweep_every=every))
    assert swept_before(run, 5) == want


def test_automatic_sweeps_wait_until_the_rows_have_moved() -> None:
    moving = bound(IMC(clusters_per_batch=1, basis="T"), g=random_graph(400))
    assert 1 <= len(swept_before(moving, 5)) <= 4
    still = bound(IMC(clusters_per_batch=1))
    still.refresh()
    before = still.tables["Q"][2].data().clone()
    for p in still.parameters.values():
        p.data.mul_(1.0001)
    for _ in range(3):
        sweep(still)
    assert torch.equal(still.tables["Q"][2].data(), before)


def test_automatic_sweeps_take_for_noise_what_a_sweep_does_not_remove() -> None:
    method = IMC(clusters_per_batch=1)
    numbers = {"explained": torch.tensor([[[0.1, 1.0]]]), "unexplained": torch.tensor([torch.inf, 0.0])}

    def due(epoch: int, share: float, step: int = 0) -> bool:
        numbers["explained"][..., 0] = share**0.5
        return method.due(numbers, epoch, step, 4)

    assert not due(1, 0.01, step=1)
    assert due(1, 0.01)  # the first epoch, in which rows move most, has no baseline
    numbers["unexplained"][0] = torch.inf  # a sweep, after which the share is as before: that of dropout
    assert [due(2, 0.012), due(3, 0.01), due(4, 0.0144), due(5, 0.0146)] == [False, False, False, True]
    numbers["unexplained"][0] = torch.inf  # a sweep that removes the share: it was that of the sweep's age
    assert [due(6, 0.0019), due(7, 0.0021)] == [False, True]
    numbers["unexplained"] = torch.tensor([torch.inf, 0.2])  # a sweep that removed age and left the share of dropout
    assert [due(8, 0.05), due(9, 0.06), due(10, 0.07)] == [False, False, True]


def test_top_keeps_its_random_basis() -> None:
    run = bound(TOP(clusters_per_batch=1))
    run.refresh()
    before = run.tables["Q"][2].data().clone()
    other = bound(IMC(clusters_per_batch=1, basis="T"))
    other.refresh()
    assert not torch.equal(before, other.tables["Q"][2].data())
    for p in run.parameters.values():
        p.data.mul_(1.5)
    for _ in range(3):
        sweep(run)
    run.refresh()
    assert torch.equal(run.tables["Q"][2].data(), before)


def test_dropped_edges_are_missing_from_the_sums() -> None:
    g, model = random_graph(80), scrambled(GCN(6, 7, 4, num_layers=3))
    run = DropEdge(IMC(clusters_per_batch=1, sweep_every=2, halo=0.0), p=0.5).bind(g, model, parts_of(g), seed=3)
    run.refresh()
    whole = run.tables["S"][2].data().clone()
    batches = run.batches(0)
    batch = next(batches)
    assert not torch.equal(run.tables["S"][2].data(), whole)
    run.accumulate(batch)
    # without dropout the first layer reads P X of the epoch's graph, also from outside of the batch
    assert (set(run.tables["M"]), set(run.tables["S"])) == ({1}, {2, 3})
    Q, P, core = run.tables["Q"][2].data(), batch.operators[1].forward, batch.rows
    assert isinstance(core, slice)
    assert run.adjacency is not None
    (whole_P,), _ = model.matrices(run.adjacency(0), Q.dtype)
    outside = spmm(whole_P, Q)[core] - spmm(P, Q[core])
    torch.testing.assert_close(run.tables["S"][2].data()[core], outside, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("halo", [0.0, 0.5])
@pytest.mark.parametrize("tier", ["host", "disk"])
def test_tables_on_other_tiers_give_the_same_gradient(tier: str, halo: float) -> None:
    method = IMC(clusters_per_batch=1, sweep_every=1, halo=halo)
    runs = [bound(method, placement=Placement(history=t)) for t in ("device", tier)]
    for run in runs:
        run.refresh()
    for _ in range(3):
        a, b = (sweep(run) for run in runs)
        assert worst_error(a, b) < 1e-12


@pytest.mark.parametrize("entries", [2**20, 30])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("tier", ["device", "disk"])
@pytest.mark.parametrize("options", [{"halo": 0.0}, {"halo": 1.0}, {"redraw": True}], ids=["cores", "halo", "redrawn"])
def test_a_sweep_in_chunks_fills_what_one_over_all_rows_does(
    options: dict[str, Any], tier: str, kept: bool, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunks divide batches, and matrices are read a few entries at a time."""
    placement = Placement(history=tier, keep_batches=kept)
    filled = []
    for most in (2**28, 400):
        monkeypatch.setattr("lmc.engine.exact.MAX_ELEMENTS", most)
        monkeypatch.setattr("lmc.engine.exact.IN_CACHE", most // 4)
        monkeypatch.setattr("lmc.graph.csr.CHUNK", entries)
        run = bound(IMC(clusters_per_batch=1, **options), MODELS["gcn-batch-norm"]().double(), placement=placement)
        for _ in range(2):  # the second time with the entries that the first one has kept
            run.refresh()
        filled.append({name: table.data().clone() for name, table in run.named_tables().items()} | run.numbers)
        assert (len(sweep_chunks(run.problem)) > 1) == (most == 400)
        own = most == 400 and tier == "disk"
        assert bool(run.source.entries) == (kept and options == {"halo": 0.0} and not own)
    for name, value in filled[0].items():
        assert torch.allclose(filled[1][name], value, equal_nan=True), name


def test_a_sweep_in_chunks_converts_the_rows_that_a_chunk_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of bfloat16 rows copies them to float32: those of one chunk at a time, not all rows for every chunk."""
    monkeypatch.setattr("lmc.engine.exact.MAX_ELEMENTS", 100)
    product, read = torch.addmm, list[int]()

    def watched(start: Tensor, A: Tensor, x: Tensor, **options: Any) -> Tensor:
        if A.layout == torch.sparse_csr:
            read.append(x.shape[0])
        return product(start, A, x, **options)

    model = GCN(6, 7, 4, num_layers=3)
    run = bound(IMC(clusters_per_batch=1, halo=0.0), model, random_graph(80), placement=Placement(precision="bfloat16"))
    monkeypatch.setattr("torch.addmm", watched)
    run.refresh()
    assert len(read) > 2 * len(sweep_chunks(run.problem)) > 2
    assert max(read) < 80


def test_rows_in_bfloat16_give_nearly_the_same_gradient() -> None:
    g = random_graph(400)
    found = []
    for precision in ("float32", "bfloat16"):
        run = bound(
            IMC(clusters_per_batch=1), GCN(6, 7, 4, num_layers=3, seed=1).float(), g,
            placement=Placement(precision=precision),
        )  # fmt: skip
        run.refresh()
        found.append(sweep(run))
    flat = [torch.cat([v.flatten() for v in grads.values()]) for grads in found]
    assert 1e-5 < float((flat[0] - flat[1]).norm() / flat[0].norm()) < 0.03


def test_wrong_settings_are_refused() -> None:
    for wrong, word in (
        ({"sweep_every": "often"}, "sweep_every"),
        ({"sweep_every": -1}, "sweep_every"),
        ({"ridge": 0.0}, "ridge"),
        ({"basis": "H"}, "basis"),
        ({"halo": -1.0}, "halo"),
        ({"halo": "all"}, "halo"),
        ({"halo": 1.0, "redraw": True}, "halo"),
    ):
        with pytest.raises(ConfigError, match=word):
            IMC(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="linear aggregation"):
        bound(IMC(clusters_per_batch=1), GAT(6, 7, 4, num_layers=2).double())
    with pytest.raises(ConfigError, match="dense features"):
        bound(DropEdge(IMC(clusters_per_batch=1)), g=random_graph(sparse_features=True))


@pytest.mark.gpu
@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("redraw", [False, True])
@pytest.mark.parametrize("basis", ["T", "T+X1"])
def test_a_recorded_sweep_fills_what_an_eager_one_does(basis: str, redraw: bool, norm: str) -> None:
    """Both follow the parameters, which change between sweeps; the eager one is that of a run without a recorder."""
    g, parts = random_graph(400), 4
    runs = []
    for recorded in (True, False):
        model = scrambled(GCN(6, 7, 4, num_layers=3, norm=norm)).double()
        run = bound(IMC(clusters_per_batch=1, basis=basis, redraw=redraw), model, g, parts, placement=Placement("cuda"))
        assert run.pipeline.recorder is not None
        if not recorded:
            run.pipeline.recorder = None
        for factor in (1.0, 0.5, 2.0):
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(factor)
            run.refresh()
        runs.append(run)
    assert runs[0].pipeline.recorder is not None
    assert runs[0].pipeline.recorder.recorded_fill is not None
    eager, recorded_state = runs[1].state_dict(), runs[0].state_dict()
    for name, value in recorded_state.items():
        torch.testing.assert_close(value, eager[name], rtol=1e-9, atol=1e-11)
    buffers = zip(*(run.problem.model.buffers() for run in runs), strict=True)
    for a, b in buffers:
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("redraw", [False, True])
def test_a_step_never_asks_for_a_whole_table(redraw: bool) -> None:
    """A table on a slower tier writes back everything and drops what it has fetched where it is read as a whole."""
    run = bound(IMC(clusters_per_batch=1, redraw=redraw))
    run.refresh()
    for layers in run.tables.values():
        for table in layers.values():
            memory = table.data()
            table.pull = memory.__getitem__  # type: ignore[method-assign]
            table.data = None  # type: ignore[assignment, method-assign]
    for batch in run.batches(0):
        run.gradient(batch)


@pytest.mark.parametrize("halo", [0.0, 1.0])
@pytest.mark.parametrize("trained", ["lin_out", "layers"])
def test_whatever_runs_beside_a_sweep_or_a_step_ends_with_it(
    trained: str, halo: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no gradient reaches the layers that measure, whose backward pass then does not run."""
    begun, joined = [], set()

    def beside(device: torch.device, call: Any) -> Any:
        number, result = len(begun), call()
        begun.append(number)

        def join() -> Any:
            joined.update(range(number + 1))  # one stream: a later join waits for what was begun before
            return result

        return join

    for module in ("engine.exact", "methods.imc", "methods.invariance"):
        monkeypatch.setattr(f"lmc.{module}.beside", beside)
    model = GCN(6, 7, 4, num_layers=3, linear_out=True).double()
    for name, p in model.named_parameters():
        p.requires_grad_(name.startswith(trained))
    run = bound(IMC(clusters_per_batch=1, halo=halo), model)
    run.refresh()
    assert len(begun) == (1 if halo else 1 + len(run.tables["Q"]))
    assert joined == set(begun)
    begun.clear()
    joined.clear()
    for batch in run.batches(0):
        run.accumulate(batch)
        assert joined == set(begun)
    assert len(begun) > 4
