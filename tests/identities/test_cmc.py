"""CMC: the sums are those of the rows after every step, and what is missing is missing where it is said to be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import chance, full_gradient, make, parts_of, random_graph, sweep, worst_error
from lmc.engine import Run
from lmc.engine.exact import Passes
from lmc.errors import ConfigError
from lmc.graph import Graph, normalise
from lmc.methods import CMC, DropEdge
from lmc.methods.cmc import drift, trust
from lmc.models import GCN, GCNII, Model
from lmc.stores import Placement

MODELS = ["gcn", "gcn-layer-norm", "gcn-residual-in-out", "gcnii", "gcnii-two-weights"]


def build(name: str, g: Graph, depth: int = 3, dropout: float = 0.0) -> Model:
    if name == "gcn":
        model: Model = GCN(g.num_features, 6, g.num_classes, num_layers=depth, dropout=dropout)
    elif name == "gcn-layer-norm":
        model = GCN(g.num_features, 6, g.num_classes, num_layers=depth, norm="layer", dropout=dropout)
    elif name == "gcn-batch-norm":
        model = GCN(g.num_features, 6, g.num_classes, num_layers=depth, norm="batch", dropout=dropout)
    elif name == "gcn-residual-in-out":
        model = GCN(
            g.num_features, 6, g.num_classes, depth, dropout, "layer", residual=True, linear_in=True, linear_out=True
        )
    else:
        shared = name == "gcnii"
        model = GCNII(g.num_features, 6, g.num_classes, depth, dropout, shared_weights=shared)
    return model.double()


def imbalance(run: Run, P: Tensor | None = None) -> float:
    """The largest entry of M - P T and of U - P^T V over all layers; P is by default that of the whole graph."""
    P = run.problem.P.to_dense() if P is None else P
    pairs = [("T", "M"), ("V", "U")]
    return max(
        float((run.tables[sums][l].data() - P @ run.tables[rows][l].data()).abs().max())
        for rows, sums in pairs
        if rows in run.tables
        for l in run.tables[rows]
    )


@pytest.mark.parametrize("adjoints", [False, True])
def test_sums_follow_the_edges_of_every_epoch(adjoints: bool) -> None:
    """Where DropEdge changes P, the sums of all rows change with it, before the first step of the epoch."""
    g = random_graph()
    model = build("gcn-layer-norm", g)
    method = DropEdge(CMC(clusters_per_batch=1, adjoints=adjoints), p=0.4)
    run = method.bind(g, model, parts_of(g), seed=1)
    run.refresh()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    adjacencies, left = method.adjacencies(run.graph, seed=1), []
    for epoch in range(3):
        P = normalise(adjacencies(epoch), "gcn", torch.float64).to_dense()
        for batch in run.batches(epoch):
            assert imbalance(run, P) < 1e-12
            optimizer.zero_grad()
            run.accumulate(batch)
            optimizer.step()
            assert imbalance(run, P) < 1e-12
        left.append(P)
    assert imbalance(run, left[0]) > 1e-3  # another epoch has other edges


def test_ranks_fill_sums_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Filling them exchanges rows, which have the same shape for messages and for adjoints."""
    g = random_graph()
    run = DropEdge(CMC(clusters_per_batch=1, adjoints=True), p=0.4).bind(g, build("gcn", g), parts_of(g))
    filled: list[str] = []
    names = {table: name for name in "MU" for table in run.tables[name].values()}
    monkeypatch.setattr(Passes, "fill_sums", lambda _, l, rows, sums, **__: filled.append(names[sums]))
    next(run.batches())
    assert filled == ["M", "M", "U", "U"]


@pytest.mark.parametrize("redraw", [False, True])
@pytest.mark.parametrize("history", ["device", "host"])
@pytest.mark.parametrize("name", [*MODELS, "gcn-batch-norm"])
def test_sums_are_those_of_the_rows_after_every_step(name: str, history: str, redraw: bool) -> None:
    g = random_graph()
    model = build(name, g, dropout=0.5)
    method = CMC(clusters_per_batch=2, adjoints=True, redraw=redraw)
    run = method.bind(g, model, parts_of(g), Placement(history=history))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    steps = 0
    for _ in range(4):  # from empty tables, through steps that move every parameter
        for batch in run.batches():
            optimizer.zero_grad()
            run.accumulate(batch)
            optimizer.step()
            steps += 1
            assert imbalance(run) < 1e-12 * steps


@pytest.mark.parametrize("per_batch", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_exact_with_adjoints_after_refresh_and_after_sweeps(name: str, per_batch: int) -> None:
    g = random_graph()
    model = build(name, g)
    full = full_gradient(g, model)
    run = CMC(clusters_per_batch=per_batch, adjoints=True).bind(g, model, parts=parts_of(g))
    run.refresh()
    assert imbalance(run) < 1e-12
    assert worst_error(sweep(run), full) < 1e-10
    empty = CMC(clusters_per_batch=per_batch, adjoints=True).bind(g, model, parts=parts_of(g))
    assert worst_error(sweep(empty), full) > 1e-3
    for _ in range(2 * model.num_layers):
        for batch in empty.batches():
            empty.accumulate(batch)
    assert worst_error(sweep(empty), full) < 1e-10


@pytest.mark.parametrize("name", ["gcn", "gcn-layer-norm"])
def test_default_is_exact_with_two_layers(name: str) -> None:
    g = random_graph()
    model = build(name, g, depth=2)
    run = CMC(clusters_per_batch=1).bind(g, model, parts=parts_of(g))
    run.refresh()
    assert worst_error(sweep(run), full_gradient(g, model)) < 1e-10


@pytest.mark.parametrize("depth", [3, 4])
def test_bias_of_the_default_sits_below_the_last_two_layers(depth: int) -> None:
    g = random_graph()
    model = build("gcn", g, depth=depth)
    run = CMC(clusters_per_batch=1).bind(g, model, parts=parts_of(g))
    run.refresh()
    got, want = sweep(run), full_gradient(g, model)
    for name, exact in want.items():
        layer = int(name.split(".")[1]) + 1
        error = float((got[name] - exact).norm() / exact.norm())
        assert error > 1e-3 if layer <= depth - 2 else error < 1e-10


def test_one_part_is_the_full_gradient() -> None:
    g = random_graph()
    for name in MODELS:
        model = build(name, g)
        run = CMC().bind(g, model, parts=torch.zeros(g.num_nodes, dtype=torch.int64))
        assert worst_error(sweep(run), full_gradient(g, model)) < 1e-12


def test_pushed_rows_are_those_before_dropout() -> None:
    g = random_graph()
    model = build("gcn", g, depth=2, dropout=0.5)  # layer 1 is complete and drops nothing: its rows are exact
    run = CMC(clusters_per_batch=1).bind(g, model, parts=parts_of(g))
    for batch in run.batches():
        run.accumulate(batch)
    stored = run.tables["T"][2].data().clone()
    run.refresh()
    assert torch.allclose(stored, run.tables["T"][2].data(), rtol=0, atol=1e-12)


def test_trust_falls_with_the_error_of_the_tables_and_scales_halo_adjoints() -> None:
    g = random_graph()
    model = build("gcn", g)
    run = CMC(clusters_per_batch=2).bind(g, model, parts=parts_of(g))
    run.refresh()
    assert torch.equal(run.numbers["R2"], torch.ones_like(run.numbers["R2"]))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, dtype=p.dtype, generator=chance()))
    for batch in run.batches():
        run.accumulate(batch)
    R2 = run.numbers["R2"][2:]
    assert float(R2.max()) < 1
    # without any trust in the tables halo rows send nothing back: only core adjoints reach layer 1
    run.numbers["R2"].zero_()
    batch = next(run.batches(0))
    distrusting = run.gradient(batch)
    run.numbers["R2"].fill_(1)
    trusting = run.gradient(batch)
    assert not torch.allclose(distrusting["layers.0.lin.weight"], trusting["layers.0.lin.weight"])
    assert torch.equal(distrusting["layers.2.lin.weight"], trusting["layers.2.lin.weight"])


def test_drift_of_the_tables_is_undone() -> None:
    """Rows that all aged alike, column by column, are read as if they had not aged."""
    g = random_graph()
    model = build("gcn", g, depth=2)
    run = CMC(clusters_per_batch=2).bind(g, model, parts=parts_of(g))
    run.refresh()
    batch = next(run.batches(0))
    fresh = run.gradient(batch)
    factor = torch.tensor([0.6, 0.8, 0.9, 1.0, 1.2, 1.9], dtype=torch.float64)
    for name in ("T", "M"):
        run.tables[name][2].data().mul_(factor)
    aged = run.gradient(batch)
    assert worst_error(aged, fresh) < 1e-12
    for name in ("T", "M"):
        run.tables[name][2].data()[: g.num_nodes // 2] *= 0.3  # rows that aged differently are not
    assert worst_error(run.gradient(batch), fresh) > 1e-3


def test_batch_norm_has_no_drift_to_undo() -> None:
    g = random_graph()
    model = build("gcn-batch-norm", g, depth=2)
    run = CMC(clusters_per_batch=2).bind(g, model, parts=parts_of(g))
    run.refresh()
    batch = next(run.batches(0))
    before = run.gradient(batch)
    for name in ("T", "M"):
        run.tables[name][2].data().mul_(1.5)
    assert worst_error(run.gradient(batch), before) > 1e-3


def test_drift_is_the_least_squares_fit_of_each_column() -> None:
    fresh, stored = torch.randn(2, 50, 3, dtype=torch.float64, generator=chance())
    fresh[:, :2] += stored[:, :2]
    stored[:, 2] = 0
    a = drift(fresh, stored)
    for k in range(2):
        best = torch.linalg.lstsq(stored[:, k : k + 1], fresh[:, k : k + 1]).solution
        assert torch.allclose(a[k], best[0, 0])
    assert a[2] == 1


def test_trust_depends_on_what_a_halo_row_takes_from_the_tables() -> None:
    part = torch.tensor([[1.0], [0.25], [0.0]])
    R2, (first, second, third) = torch.tensor([1.0, 0.6, 0.8]), torch.arange(3).split(1)  # mean 0.8
    assert torch.equal(trust(R2, first, part), trust(R2, third, part))  # the mean is the lesser
    assert torch.equal(trust(R2, first, part), torch.tensor([[0.0], [1.0], [1.0]]))
    assert torch.allclose(trust(R2 - 0.1, second, part), torch.tensor([[0.0], [0.5], [1.0]]))
    assert torch.equal(trust(torch.ones(2), first, part), torch.ones(3, 1))


def test_under_batch_norm_few_halo_rows_are_trusted_further() -> None:
    """Statistics of a batch change rows from visit to visit, which R2 takes for staleness."""
    g, parts = random_graph(), parts_of(random_graph())
    plain, normed = (
        CMC(clusters_per_batch=1).bind(g, GCN(6, 7, 4, num_layers=3, norm=norm).double(), parts=parts)
        for norm in ("layer", "batch")
    )
    for one, other in zip(plain.batches(0), normed.batches(0), strict=True):
        assert one.coefficients is not None
        assert other.coefficients is not None
        ratio = one.num_halo / one.num_core
        assert 0 < ratio < 10
        assert torch.allclose(other.coefficients, one.coefficients * ratio / 10, rtol=1e-12)


def test_state_holds_the_trust() -> None:
    g = random_graph()
    model = build("gcn", g)
    run = CMC(clusters_per_batch=2).bind(g, model, parts=parts_of(g))
    for batch in run.batches():
        run.accumulate(batch)
    twin = CMC(clusters_per_batch=2).bind(g, model, parts=parts_of(g))
    twin.load_state_dict(run.state_dict())
    assert torch.equal(twin.numbers["R2"], run.numbers["R2"])
    assert imbalance(twin) < 1e-12


def test_an_aggregation_that_is_not_linear_is_refused() -> None:
    g = random_graph()
    model = make("gcn", g)
    model.layers[0].linear = False
    with pytest.raises(ConfigError, match="LMC4Conv"):
        CMC().bind(g, model, parts=parts_of(g))
