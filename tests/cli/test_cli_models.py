"""Every model of the library can be trained from the command line, and has its own options."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from helpers import random_graph
from lmc.cli.build import MODELS, build_model
from lmc.cli.choices import ModelChoice
from lmc.errors import ConfigError
from lmc.models import APPNP, GAT

Invoke = Callable[..., tuple[int, str]]


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"gcn", "gcnii"}))
def test_a_model_trains(invoke: Invoke, name: str) -> None:
    code, said = invoke("train", "tiny-like", "--scale", "0.2", "--model", name, "--hidden", "8", "--epochs", "1")
    assert code == 0, said


def test_options_reach_their_model_alone() -> None:
    g = random_graph()
    gat = build_model(ModelChoice("gat", hidden=8, heads=2, layers=3), g, seed=0)
    assert isinstance(gat, GAT)
    assert (gat.layer(1).heads, gat.num_layers) == (2, 3)
    appnp = build_model(ModelChoice("appnp", teleport=0.3), g, seed=0)
    assert isinstance(appnp, APPNP)
    assert (appnp.layer(1).alpha, appnp.num_layers) == (0.3, 10)
    for choice, flag in (
        (ModelChoice("gcn", heads=2), "--heads"),
        (ModelChoice("gcnii", teleport=0.3), "--teleport"),
        (ModelChoice("appnp", gcnii_alpha=0.3), "--gcnii-alpha"),
    ):
        with pytest.raises(ConfigError, match=f"got {flag}"):
            build_model(choice, g, seed=0)
