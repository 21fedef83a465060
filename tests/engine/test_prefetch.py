"""Batches drawn before their turn are those that would be drawn in turn."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from helpers import random_graph
from lmc.engine import prefetch
from lmc.graph import Aggregation, Batch
from lmc.methods import LADIES, VRGCN, FastGCN, GraphFMIB, GraphSAGE, GraphSAINT, Method
from lmc.models import GCN

METHODS: dict[str, Method] = {
    "graphsage": GraphSAGE(2, batch_size=7),
    "graphsage-complete": GraphSAGE(2, batch_size=7, first_layer="complete"),
    "vrgcn": VRGCN(batch_size=7),
    "fm-ib": GraphFMIB(2, batch_size=7),
    "fastgcn": FastGCN(8, batch_size=7),
    "ladies": LADIES(8, batch_size=7),
    "graphsaint": GraphSAINT(coverage=5),
}


def bound(method: Method, device: str = "cpu") -> Any:
    g = random_graph()
    return method.bind(g, GCN(6, 7, 4, num_layers=3, dropout=0.5).double(), device=device, seed=1)


class _Stream:
    """A stream of a machine without a GPU."""

    def wait_stream(self, other: object) -> None:
        pass


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads as on a GPU, streams that do nothing."""
    monkeypatch.setattr(prefetch, "_draw_stream", lambda _: _Stream())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _=None: _Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(prefetch, "tensors", lambda _: ())


def same(a: Batch, b: Batch) -> bool:
    operators = [
        torch.equal(p.forward.to_dense(), q.forward.to_dense())
        for p, q in zip(a.operators, b.operators, strict=True)
        if isinstance(p, Aggregation) and isinstance(q, Aggregation)
    ]
    return torch.equal(a.ext, b.ext) and all(operators)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("name", METHODS)
def test_a_second_thread_draws_the_same_batches(name: str) -> None:
    method = METHODS[name]
    one, other = bound(method), bound(method)
    in_turn = list(one.source.epoch(0, 0))
    drawing = prefetch.ConcurrentDraw(other.source.epoch(0, 0), torch.device("cpu"))
    beside = []
    for batch in drawing:
        drawing.step_begins()
        beside.append(batch)
        drawing.step_ends()
        drawing.step_ends()  # twice does no harm
    assert len(beside) == len(in_turn) == one.num_batches > 1
    assert all(same(a, b) for a, b in zip(in_turn, beside, strict=True))


@pytest.mark.usefixtures("no_gpu")
def test_a_draw_that_fails_fails_the_loop() -> None:
    def draws() -> Iterator[Batch]:
        yield next(bound(METHODS["graphsage"]).source.epoch(0, 0))
        raise RuntimeError("no more")

    drawing = prefetch.ConcurrentDraw(draws(), torch.device("cpu"))
    next(drawing)
    drawing.step_begins()
    with pytest.raises(RuntimeError, match="no more"):
        next(drawing)


def test_every_tensor_of_a_batch_is_found() -> None:
    run = bound(VRGCN(batch_size=7))
    batch = next(run.source.epoch(0, 0))
    found = {t.data_ptr() for t in prefetch.tensors(batch)}
    first = batch.operators[1]
    for tensor in (batch.core, batch.y, batch.n_id, first.forward.indptr, first.forward.data, first.whole.indices):
        assert tensor.data_ptr() in found
    assert run.graph.adj.indices.data_ptr() not in found
    assert list(prefetch.tensors(None)) == []


@pytest.mark.gpu
@pytest.mark.parametrize("name", METHODS)
def test_training_beside_the_draws_is_training_in_turn(name: str) -> None:
    losses = []
    for beside in (False, True):
        run = bound(METHODS[name], "cuda")
        optimizer = torch.optim.SGD(run.problem.model.parameters(), lr=0.05)
        seen = []
        for epoch in range(3):
            batches = run.batches(epoch) if beside else run.source.epoch(epoch, 0)
            for batch in batches:
                optimizer.zero_grad()
                seen.append(run.accumulate(batch).loss)
                optimizer.step()
            # draws in turn come from the method itself: the run has no source of its own
            assert isinstance(run.pipeline._source, prefetch.ConcurrentDraw) == beside
        losses.append(torch.stack(seen).cpu())
    assert torch.allclose(losses[0], losses[1], rtol=0, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "most"), [("graphsage", 3), ("vrgcn", 2), ("fm-ib", 3), ("ladies", 9), ("fastgcn", 9)]
)
def test_a_hop_waits_for_the_device_as_often_as_said(name: str, most: int) -> None:
    run = bound(METHODS[name], "cuda")
    draws = run.source.epoch(0, 0)
    next(draws)
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            next(draws)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len([w for w in caught if "called a synchronizing" in str(w.message)]) <= most
