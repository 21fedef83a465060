"""Redrawn batches of fixed capacity: padding changes neither the estimate nor the tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from helpers import parts_of, random_graph, scrambled, weighted_graph
from lmc.engine import Run
from lmc.engine.padding import Padding
from lmc.graph import Batch, Graph
from lmc.methods import CMC, GAS, IMC, ClusterGCN, LMC4Conv, Method
from lmc.models import GCN, GCNII, SAGE, Model
from lmc.stores import Placement

METHODS = [
    ClusterGCN(clusters_per_batch=2, redraw=True),
    GAS(clusters_per_batch=2, redraw=True),
    LMC4Conv(clusters_per_batch=2, redraw=True, alpha=0.4),
    LMC4Conv(clusters_per_batch=2, redraw=True, alpha=0.0),
    CMC(clusters_per_batch=2, redraw=True),
    IMC(clusters_per_batch=2, redraw=True),
]
MODELS = [
    lambda g: GCN(g.num_features, 7, g.num_classes, num_layers=3, norm="layer"),
    lambda g: GCNII(g.num_features, 7, g.num_classes, num_layers=3),
    lambda g: SAGE(g.num_features, 7, g.num_classes, num_layers=2),
]


def bound(method: Method, model: Model, directed: bool = False) -> Run:
    g = weighted_graph(directed=True, weighted=False) if directed else random_graph()
    run = method.bind(g, scrambled(model), parts_of(g, 6))
    run.refresh()
    return run


def estimate(run: Run, batch: Batch, keep: bool) -> list[torch.Tensor]:
    grads, loss = run.problem.kind.estimate(run, batch, keep=keep, dropout=False)
    return [*grads, loss]


@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("model", MODELS, ids=["gcn", "gcnii", "sage"])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.traits.name}-{getattr(m, 'alpha', '')}")
def test_a_step_on_the_copy_is_a_step_on_the_batch(
    method: Method, model: Callable[[Graph], Model], directed: bool
) -> None:
    plain, padded = (bound(method, model(random_graph()), directed) for _ in range(2))
    padding, copies = Padding(padded.source), 0
    for epoch in range(3):
        for batch in padding.epoch(epoch, 0):
            copy = padding.copy_of(batch)
            copies += copy is not None
            got, want = (estimate(run, of, keep=True) for run, of in ((padded, copy or batch), (plain, batch)))
            for a, b in zip(got, want, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
            for name, table in padded.named_tables().items():
                torch.testing.assert_close(table.data(), plain.named_tables()[name].data(), rtol=1e-10, atol=1e-12)
    assert copies >= 6


def test_a_copy_keeps_its_addresses_and_serves_its_batch_alone() -> None:
    run = bound(METHODS[2], MODELS[0](random_graph()))
    padding = Padding(run.source)
    first, second = (next(iter(padding.epoch(epoch, 0))) for epoch in range(2))
    assert padding.copy_of(first) is None
    copy = padding.copy_of(second)
    assert copy is not None
    matrix, address = copy.operators[-1].forward, copy.operators[-1].forward.data.data_ptr()
    third = next(iter(padding.epoch(2, 0)))
    assert padding.copy_of(third) is copy
    assert copy.operators[-1].forward is matrix
    assert matrix.data.data_ptr() == address


def test_a_batch_that_needs_more_room_is_not_padded() -> None:
    run = bound(METHODS[2], MODELS[0](random_graph()))
    padding = Padding(run.source)
    padding._halo = 1
    batches = list(padding.epoch(0, 0))
    assert [padding.copy_of(batch) for batch in batches] == [None] * len(batches)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float64", "bfloat16"])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.traits.name}-{getattr(m, 'alpha', '')}")
def test_recorded_copies_train_as_the_batches_do(
    method: Method, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    g, losses = random_graph(200), []
    for padded in (True, False):
        if not padded:
            monkeypatch.setattr("lmc.engine.pipeline.can_pad", lambda *_: False)
        model = GCN(g.num_features, 32, g.num_classes, num_layers=3, norm="layer")
        model = scrambled(model) if precision == "float64" else model.float()
        placement = {"float64": "float32", "bfloat16": "bfloat16"}[precision]
        run = method.bind(g, model, parts_of(g, 8), Placement("cuda", precision=placement))
        run.refresh()
        assert (run.pipeline._padding is not None) == padded
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        losses.append(torch.stack([run.step(b, optimizer).loss for e in range(4) for b in run.batches(e)]).double())
    torch.testing.assert_close(*losses, rtol=1e-8 if precision == "float64" else 2e-2, atol=1e-9)
