"""amazon-like: labels reach many hops; a fixed point learns them from few labelled nodes, and two layers do not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import lmc
from lmc.data import lookalikes
from lmc.methods import FullBatch, LMC4Rec, Method
from lmc.models import GCN, Model, RecGCN


def small(seed: int) -> lmc.Graph:
    """The lookalike with six labels instead of 58, so that 1,800 nodes are enough for them."""
    spec = dataclasses.replace(lookalikes.LOOKALIKES["amazon-like"], classes=6)
    return lookalikes.on_a_line(spec, "small", 1_800, 4_980, np.random.default_rng(seed))


def score(g: lmc.Graph, model: Model, method: Method, epochs: int) -> float:
    record = lmc.fit(g, model, method, epochs, lr=0.01, eval_every=4, device="cpu")
    assert record.config["metrics"] == ["top-k-micro-f1"]
    assert record.test is not None
    return record.test


@pytest.mark.parametrize("method", [FullBatch(), LMC4Rec(4, 1)], ids=["full", "lmc4rec"])
def test_a_fixed_point_beats_two_layers(method: Method) -> None:
    g = small(seed=0)
    recurrent = RecGCN(g.num_features, 16, g.num_classes, start="identity", input="embedding")
    convolutional = GCN(g.num_features, 16, g.num_classes, num_layers=2)
    assert score(g, recurrent, method, 16) > score(g, convolutional, FullBatch(), 60) + 0.15


@pytest.mark.slow
def test_a_fixed_point_beats_two_layers_on_the_lookalike() -> None:
    g = lmc.load("amazon-like@0.05")
    recurrent = lmc.presets.get("lmc4rec/recgcn/amazon").model(g)
    convolutional = GCN(g.num_features, 64, g.num_classes, num_layers=2)
    assert score(g, recurrent, FullBatch(), 40) > score(g, convolutional, FullBatch(), 200) + 0.15
