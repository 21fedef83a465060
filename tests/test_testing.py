"""``check_model`` reports which properties hold and which do not."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import models

from helpers import hand_graph, one_thread, random_graph  # noqa: F401
from lmc.errors import ConfigError
from lmc.losses import huber
from lmc.models import GCN, Activation, Layer, Linear, Model, Operator, Pass
from lmc.testing import REQUIRED, ModelReport, check_model


@pytest.mark.parametrize(
    "model",
    [
        GCN(5, 8, 3, dropout=0.5, norm="batch"),
        models.GCN(5, 8, 2, 3, dropout=0.5),
        models.GAT(5, 8, 2, 3, heads=2, dropout=0.3),
        models.PNA(5, 8, 2, 3, aggregators=["mean", "max"], scalers=["identity"], deg=torch.tensor([0, 1, 3, 4])),
    ],
    ids=["own", "gcn", "gat", "pna"],
)
@pytest.mark.parametrize("graph", [None, hand_graph()], ids=["own graph", "hand"])
def test_good_models_pass(model: nn.Module, graph: object) -> None:
    before, rng = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    report = check_model(model, graph)  # type: ignore[arg-type]
    assert report.ok, str(report)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), rng)
    assert next(model.parameters()).dtype == torch.float32


def test_a_loss_and_weights_of_ones_own_are_measured() -> None:
    base = hand_graph()
    g = dataclasses.replace(base, y=torch.randn(8, 3), task="regression", weight=torch.rand(8) + 0.1)
    report = check_model(GCN(5, 8, 3), g, loss=huber(delta=0.5))
    assert report.ok, str(report)
    assert report["exact with exact histories"].holds


def test_properties_that_depend_on_the_model_are_reported() -> None:
    linear, attention, maximum = (
        check_model(m) for m in (models.GCN(5, 8, 2, 3), models.GAT(5, 8, 2, 3), models.EdgeCNN(5, 8, 2, 3))
    )
    name = "exact with exact histories"
    assert [r[name].holds for r in (linear, attention, maximum)] == [True, True, None]
    assert [r["CMC applies"].holds for r in (linear, attention, maximum)] == [True, None, None]
    assert attention["CMC applies"].note.endswith("use LMC4Conv or GAS")
    assert maximum["CMC applies"].note.endswith("max, ...): use GAS")
    assert maximum[name].error is not None
    assert maximum[name].error > 1e-3
    assert linear["P X computed once"].holds
    assert check_model(GCN(5, 8, 3, norm="batch"))[name].holds is None


def test_a_network_that_cannot_be_divided_is_reported_with_the_reason() -> None:
    report = check_model(models.GCN(5, 8, 2, 3, norm="GraphNorm"))
    assert not report.ok
    assert "row-wise" in str(report)


class BadLayer(Layer):
    """A layer with the given fault."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.lin, self.dropout, self.out_width, self.activation = Linear(5, 3), 0.0, 3, None
        self.scale = nn.Parameter(torch.ones(3))
        self.fault = fault

    def forward(self, h: Tensor, P: Operator, p: Pass, h0: Tensor) -> Tensor:  # type: ignore[override]
        if self.fault == "rows":
            h = h - h.mean(0)
        s = self.lin(P(h), p)
        if self.fault == "parameter":
            s = s * self.scale  # a row-wise map whose parameter takes gradient from all rows
        if self.fault == "affine":
            s = s * s.sigmoid()
        if self.fault == "chance" and self.training:
            s = s * torch.rand(1, dtype=s.dtype) ** 0
        return s


class Bad(Model):
    """Two layers, the second with the given fault."""

    lin_in = act_in = lin_out = None
    dropout = input_dropout = 0.0
    constant_input = True

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.in_width, self.out_width = 5, 3
        first, last = BadLayer("none"), BadLayer(fault)
        first.activation, last.lin = Activation(3, None), Linear(3, 3)
        self.layers = nn.ModuleList([first, last])
        self.reset_parameters(0)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("none", None),
        ("rows", "computed in chunks"),
        ("parameter", "gradient from core rows"),
        ("affine", "exact with exact histories"),
        ("chance", "generator of the run"),
    ],
)
def test_each_fault_is_found(fault: str, found: str | None) -> None:
    report = check_model(Bad(fault))
    failed = {c.name for c in report.checks if c.holds is False and c.name != "parameters used"}
    assert (found in failed) if found else not failed, str(report)
    assert report.ok is (found not in REQUIRED)


def test_the_report_is_a_table() -> None:
    report = check_model(models.GCN(5, 8, 2, 3))
    assert isinstance(report, ModelReport)
    lines = str(report).splitlines()
    assert len(lines) == len(report.checks) + 2
    assert all(check.name in line for check, line in zip(report.checks, lines[2:], strict=True))
    with pytest.raises(KeyError):
        report["nothing of the kind"]


def test_incorrect_arguments_are_errors() -> None:
    with pytest.raises(ConfigError, match=r"torch\.nn\.Module"):
        check_model("gcn")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="inputs"):
        check_model(GCN(5, 8, 4), random_graph())
