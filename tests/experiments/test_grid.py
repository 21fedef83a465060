"""What a cell of the grid measures, and how lines become rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from experiments.grid import Grid, GridRecord, exact_loss, grid_rows, halo_ratio
from helpers import full_loss, hand_graph, random_graph
from lmc.graph import Aggregation, gcn_norm
from lmc.methods import GAS, BackwardSGD, ClusterGCN, FullBatch, Method
from lmc.models import GCN, Pass

LINE = GridRecord("4/2", "none", 0.0, 0.1, 3, 0, "gas", 2.0, 2.0, 0.5, 1.0, 1.5, False)


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("norm", [None, "batch"])
def test_the_exact_loss_is_that_of_a_plain_pass(multi_label: bool, norm: str | None) -> None:
    graph = random_graph(multi_label=multi_label)
    model = GCN(graph.num_features, 7, graph.num_classes, num_layers=3, dropout=0.5, norm=norm).double()
    run = GAS(4, 1, partition="random").bind(graph, model)
    for batch in run.batches():  # running statistics of batch norm
        run.accumulate(batch)
    got = exact_loss(run)
    P = Aggregation.exact(gcn_norm(graph.adj, torch.float64))
    model.eval()
    assert isinstance(graph.x, torch.Tensor)
    want = full_loss(graph, model, model(graph.x, P, Pass())).detach()
    assert got == pytest.approx(float(want), rel=1e-12)


def test_the_objective_is_what_full_batch_training_minimises() -> None:
    """Batch norm with the statistics of all rows, dropout off: a training pass over the whole graph."""
    graph = random_graph()
    model = GCN(graph.num_features, 7, graph.num_classes, num_layers=3, dropout=0.5, norm="batch").double()
    run = GAS(4, 1, partition="random").bind(graph, model)
    for batch in run.batches():
        run.accumulate(batch)
    loss, objective = exact_loss(run), exact_loss(run, whole_graph=True)
    P = Aggregation.exact(gcn_norm(graph.adj, torch.float64))
    model.train()
    assert isinstance(graph.x, torch.Tensor)
    want = full_loss(graph, model, model(graph.x, P, Pass(dropout=False))).detach()
    assert objective == pytest.approx(float(want), rel=1e-12)
    assert abs(objective - loss) > 1e-3


def test_the_halo_ratio_counts_neighbours_whatever_the_method_reads() -> None:
    graph = hand_graph()
    parts = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])  # one bridge between the squares: each batch has one halo row
    methods: list[Method] = [GAS(2, 1), BackwardSGD(2, 1), ClusterGCN(2, 1)]
    model = GCN(graph.num_features, 4, graph.num_classes).double()
    assert [halo_ratio(m.bind(graph, model, parts=parts)) for m in methods] == [5 / 4] * 3
    assert halo_ratio(FullBatch().bind(graph, model)) is None


def test_seeds_are_the_outer_loop() -> None:
    grid = Grid(configs="4/2,4/1", epochs="3,2", norms="none,batch:0.5", lrs="0.1,0.2", methods="gas,lmc", seeds=2)
    cells = grid.cells()
    assert [c.seed for c in cells] == [0] * 16 + [1] * 16
    assert {(c.config, c.epochs) for c in cells} == {("4/2", 3), ("4/1", 2)}
    assert len(set(cells)) == 32


def test_a_cell_is_a_training_and_divergence_is_said() -> None:
    grid = Grid(
        dataset="tiny-like", scale=0.2, device="cpu", hidden=8, layers=2, configs="4/2", epochs="8",
        norms="layer:0.1", lrs="0.05", methods="gas", seeds=1,
    )  # fmt: skip
    (cell,) = grid.cells()
    (record,) = grid.measure(cell)
    assert record.loss is not None
    untrained = exact_loss(grid.testbed.bind(GAS(4, 2), 0, "layer", 0.1))
    assert record.loss < 0.9 * untrained
    (again,) = grid.measure(cell)
    assert record == replace(again, seconds=record.seconds)
    assert not record.diverged
    (wild,) = grid.measure(replace(cell, norm="none", lr=1e30))
    assert wild.diverged
    assert wild.loss is None


def test_rows_are_means_over_seeds() -> None:
    exact = replace(LINE, method="backward-sgd")
    lines = [replace(LINE, loss=3.0), replace(LINE, seed=1, loss=6.0)]
    lines += [replace(exact, loss=2.0), replace(exact, seed=1, loss=5.0), replace(LINE, lr=0.2)]
    first, second = grid_rows(lines)
    assert first.spread("gas") == (4.5, 3.0, 6.0)
    assert first.spread("gas", relative_to="backward-sgd") == (pytest.approx(1.35), 1.2, 1.5)
    assert (second.lr, second.seeds("gas"), second.spread("cmc")) == (0.2, 1, None)
    (row,) = grid_rows([LINE, replace(LINE, seed=1, loss=None, diverged=True)])
    assert (row.diverged("gas"), row.spread("gas")) == (1, None)
    running, whole = grid_rows([replace(LINE, norm="batch", dropout=0.5, objective=1.5)])
    assert (running.norm_name, running.spread("gas")) == ("batch:0.5", (2.0, 2.0, 2.0))
    assert (whole.norm_name, whole.spread("gas")) == ("batch:0.5, objective", (1.5, 1.5, 1.5))
