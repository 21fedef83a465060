"""What a run folder says about a run beside its settings and epochs."""

from __future__ import annotations

from functools import partial

import pytest

import lmc
from lmc.bench.about import about, with_memory
from lmc.engine.padding import DrawnBatch


def test_the_memory_of_a_batch_that_shares_a_copy_is_measured_on_the_batch_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    g = lmc.load("tiny-like", scale=0.2)
    run = lmc.methods.GAS(4, 1).bind(g, lmc.models.GCN(g.num_features, 8, g.num_classes), device="cpu")
    known = about(run, "gas")
    own = with_memory(known, run).memory
    whole = list(run.batches())
    shared = [
        DrawnBatch(partial(run.source.make, b.rows, b.weight, b.slot), None, b.slot, b.weight, run.graph, fixed=True)
        for b in whole
    ]
    monkeypatch.setattr(run, "batches", lambda: iter(shared))
    found = with_memory(known, run).memory
    assert own is not None
    assert found is not None
    assert found["measured step"] == own["measured step"] > 0
