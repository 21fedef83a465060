"""Parameters that a model gets after ``bind`` are not trained, so the next step refuses them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch_geometric.nn import models

from helpers import hand_graph
from lmc.engine import Run
from lmc.errors import ConfigError
from lmc.methods import LMC4Conv
from lmc.models import GCN, Linear, Model
from lmc.pyg import wrap


def native() -> Run:
    model = GCN(5, 4, 3, num_layers=2, linear_out=True)
    return LMC4Conv(num_parts=2, clusters_per_batch=1).bind(hand_graph(), model, device="cpu")


def wrapped() -> Run:
    model = wrap(models.GCN(5, 4, 2, 3))
    return LMC4Conv(num_parts=2, clusters_per_batch=1).bind(hand_graph(), model, device="cpu")


def replace_layer(model: Model) -> None:
    model.lin_out = Linear(4, 3)


def reassign(model: Model) -> None:
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)


def lin_of(model: Model) -> nn.Module:
    return next(m for m in model.modules() if isinstance(getattr(m, "weight", None), nn.Parameter))


CHANGES: dict[str, Callable[[Model], object]] = {
    "parameter": lambda m: setattr(lin_of(m), "weight", nn.Parameter(lin_of(m).weight.detach().clone())),
    "assigned state": reassign,
    "parametrised": lambda m: parametrizations.weight_norm(lin_of(m)),
    "added": lambda m: m.register_parameter("extra", nn.Parameter(torch.zeros(1))),
    "frozen": lambda m: lin_of(m).weight.requires_grad_(False),
}


@pytest.mark.parametrize("bind", [native, wrapped])
@pytest.mark.parametrize("change", CHANGES)
def test_a_step_refuses_parameters_that_were_not_bound(bind: Callable[[], Run], change: str) -> None:
    run = bind()
    batch = next(run.batches())
    run.accumulate(batch)
    CHANGES[change](run.problem.model)
    for step in (run.accumulate, run.gradient):
        with pytest.raises(ConfigError, match=r"bound to .* bind the method again"):
            step(batch)


def test_a_step_refuses_a_replaced_layer() -> None:
    run = native()
    replace_layer(run.problem.model)
    with pytest.raises(ConfigError, match="bind the method again"):
        run.accumulate(next(run.batches()))


def test_a_step_refuses_a_parameter_that_is_unfrozen_after_bind() -> None:
    model = GCN(5, 4, 3, num_layers=2)
    lin_of(model).weight.requires_grad_(False)
    run = LMC4Conv(num_parts=2, clusters_per_batch=1).bind(hand_graph(), model, device="cpu")
    batch = next(run.batches())
    run.accumulate(batch)
    lin_of(model).weight.requires_grad_(True)
    with pytest.raises(ConfigError, match="bind the method again"):
        run.accumulate(batch)


def test_values_may_change_after_bind() -> None:
    run = wrapped()
    model = run.problem.model
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()})
    assert torch.isfinite(run.accumulate(next(run.batches())).loss)
