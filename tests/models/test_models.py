"""GCN and GCNII against dense formulas and against PyG."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GCN2Conv
from torch_geometric.nn import models as pyg_models

from helpers import EDGES, both_directions, chance, hand_graph, random_graph, scrambled
from lmc.errors import ConfigError
from lmc.graph import CSR, Aggregation, Graph, gcn_norm
from lmc.models import GCN, GCNII, Model, Pass
from lmc.models.activation import Activation, BatchNorm, LayerNorm
from lmc.models.rows import Linear

TOLERANCE = {"rtol": 1e-11, "atol": 1e-13}


def operator(g: Graph) -> Aggregation:
    return Aggregation.exact(gcn_norm(g.adj, torch.float64))


def dense_features(g: Graph) -> Tensor:
    return g.x.to_dense() if isinstance(g.x, CSR) else g.x


def activate(a: Activation | None, s: Tensor) -> Tensor:
    if a is None:
        return s
    if isinstance(a.norm, LayerNorm):
        s = F.layer_norm(s, s.shape[1:], a.norm.weight, a.norm.bias)
    if isinstance(a.norm, BatchNorm):
        s = F.batch_norm(s, None, None, a.norm.weight, a.norm.bias, training=True)
    return s.relu()


def affine(lin: Linear, x: Tensor) -> Tensor:
    return F.linear(x, lin.weight, lin.bias)


def dense_gcn(model: GCN, x: Tensor, P: Tensor, hidden_residual: bool) -> Tensor:
    h = x if model.lin_in is None else activate(model.act_in, affine(model.lin_in, x))
    hidden_input = model.lin_in is not None
    for l in range(1, model.num_layers + 1):
        layer = model.layer(l)
        s = affine(layer.lin, P @ h)
        if hidden_residual and hidden_input and s.shape == h.shape:
            s = s + h
        h, hidden_input = activate(layer.activation, s), True
    return h if model.lin_out is None else affine(model.lin_out, h)


def dense_gcnii(model: GCNII, x: Tensor, P: Tensor, alpha: float, theta: float) -> Tensor:
    h0 = affine(model.lin_in, x).relu()
    h = h0
    for l in range(1, model.num_layers + 1):
        layer, beta = model.layer(l), math.log(theta / l + 1)
        m = (1 - alpha) * (P @ h)
        z = m + alpha * h0
        if layer.lin0 is None:
            zW = z @ layer.lin.weight.t()
        else:
            zW = m @ layer.lin.weight.t() + alpha * h0 @ layer.lin0.weight.t()
        s = (1 - beta) * z + beta * zW
        h = activate(layer.activation, s + h if layer.residual else s)
    return affine(model.lin_out, h)


def assert_same_values_and_gradients(model: Model, got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, **TOLERANCE)
    v = torch.randn(got.shape, generator=chance(8), dtype=torch.float64)
    params = list(model.parameters())
    for name, g, w in zip(
        dict(model.named_parameters()),
        torch.autograd.grad(got, params, v),
        torch.autograd.grad(want, params, v),
        strict=True,
    ):
        torch.testing.assert_close(g, w, **TOLERANCE, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize(("linear_in", "linear_out"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("norm", [None, "layer", "batch"])
def test_gcn_is_its_dense_formula(norm: str | None, residual: bool, linear_in: bool, linear_out: bool) -> None:
    g = random_graph(sparse_features=linear_out)
    model = GCN(
        g.num_features,
        7,
        g.num_classes,
        num_layers=3,
        norm=norm,
        residual=residual,
        linear_in=linear_in,
        linear_out=linear_out,
    )
    scrambled(model)
    want = dense_gcn(model, dense_features(g), operator(g).forward.to_dense(), residual)
    assert_same_values_and_gradients(model, model(g.x, operator(g)), want)


@pytest.mark.parametrize("num_layers", [1, 2, 5])
def test_gcn_of_any_depth_is_its_dense_formula(num_layers: int) -> None:
    g = random_graph()
    model = scrambled(GCN(g.num_features, 5, g.num_classes, num_layers=num_layers))
    assert model.widths == [5] * (num_layers - 1) + [g.num_classes]
    want = dense_gcn(model, dense_features(g), operator(g).forward.to_dense(), False)
    assert_same_values_and_gradients(model, model(g.x, operator(g)), want)


def test_gcn_agrees_with_pyg() -> None:
    g = hand_graph()
    ours = scrambled(GCN(5, 6, 3, num_layers=2))
    theirs = pyg_models.GCN(5, 6, num_layers=2, out_channels=3).double()
    with torch.no_grad():
        for l, conv in enumerate(theirs.convs, start=1):
            conv.lin.weight.copy_(ours.layer(l).lin.weight)
            conv.bias.copy_(ours.layer(l).lin.bias)
    want = theirs(g.x, both_directions(EDGES))
    torch.testing.assert_close(ours(g.x, operator(g)), want, **TOLERANCE)


@pytest.mark.parametrize("norm", [None, "layer", "batch"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("shared", [True, False])
def test_gcnii_is_its_dense_formula(shared: bool, residual: bool, norm: str | None) -> None:
    g = random_graph()
    options: dict[str, Any] = {"alpha": 0.3, "theta": 0.7}
    model = GCNII(6, 5, 4, num_layers=3, norm=norm, residual=residual, shared_weights=shared, **options)
    scrambled(model)
    want = dense_gcnii(model, dense_features(g), operator(g).forward.to_dense(), **options)
    assert_same_values_and_gradients(model, model(g.x, operator(g)), want)


@pytest.mark.parametrize("shared", [True, False])
def test_gcnii_layer_agrees_with_pyg(shared: bool) -> None:
    g = hand_graph()
    layer = scrambled(GCNII(5, 5, 3, num_layers=2, alpha=0.2, theta=0.6, shared_weights=shared)).layer(2)
    conv = GCN2Conv(5, alpha=0.2, theta=0.6, layer=2, shared_weights=shared).double()
    h, h0 = (torch.randn(8, 5, generator=chance(s), dtype=torch.float64) for s in (1, 2))
    with torch.no_grad():
        conv.weight1.copy_(layer.lin.weight.t())
        if not shared:
            conv.weight2.copy_(layer.lin0.weight.t())
    want = conv(h.clone(), h0.clone(), both_directions(EDGES))
    torch.testing.assert_close(layer(h, operator(g), Pass(), h0), want, **TOLERANCE)


@pytest.mark.parametrize("kind", [GCN, GCNII])
@pytest.mark.parametrize("input_dropout", [False, True, 0.2])
@pytest.mark.parametrize("sparse_features", [False, True])
def test_dropout_runs_forward_and_backward(
    kind: type[Model], input_dropout: float | bool, sparse_features: bool
) -> None:
    g = random_graph(sparse_features=sparse_features)
    model = kind(6, 5, 4, num_layers=3, dropout=0.4, input_dropout=input_dropout).double()  # type: ignore[call-arg]
    a, b, other = (model(g.x, operator(g), Pass(generator=chance(s))) for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, other)
    grads = torch.autograd.grad(a.square().sum(), list(model.parameters()))
    assert all(bool(d.isfinite().all()) and bool(d.any()) for d in grads)


@pytest.mark.parametrize("kind", [GCN, GCNII])
def test_dropout_is_off_in_evaluation_and_on_request(kind: type[Model]) -> None:
    g = random_graph()
    model = kind(6, 5, 4, num_layers=3, dropout=0.4, input_dropout=True).double()  # type: ignore[call-arg]
    off = model(g.x, operator(g), Pass(dropout=False))
    assert torch.equal(model.eval()(g.x, operator(g)), off)
    assert not torch.equal(model.train()(g.x, operator(g), Pass(generator=chance())), off)


def test_input_dropout_reaches_the_features() -> None:
    g = random_graph()
    model = GCN(6, 5, 4, num_layers=1, input_dropout=0.5).double()
    assert not torch.equal(
        model(g.x, operator(g), Pass(generator=chance(0))), model(g.x, operator(g), Pass(generator=chance(1)))
    )


def test_first_aggregation_is_constant_only_without_input_dropout_and_encoder() -> None:
    assert GCN(6, 5, 4, dropout=0.5).constant_input
    assert not GCN(6, 5, 4, dropout=0.5, input_dropout=True).constant_input
    assert not GCN(6, 5, 4, linear_in=True).constant_input
    assert not GCNII(6, 5, 4).constant_input


BAD: list[tuple[dict[str, Any], str]] = [
    ({"norm": "group"}, "expected norm in .*'group'"),
    ({"num_layers": 0}, r"num_layers of at least 1 \(got 0\)"),
    ({"hidden": 0}, "hidden of at least 1"),
    ({"in_width": 0}, "in_width of at least 1"),
    ({"out_width": -1}, "out_width of at least 1"),
    ({"dropout": 1.0}, r"dropout in \[0, 1\) \(got 1.0\)"),
    ({"dropout": -0.1}, r"dropout in \[0, 1\)"),
    ({"input_dropout": 1.5}, r"input_dropout in \[0, 1\)"),
]


@pytest.mark.parametrize("kind", [GCN, GCNII])
@pytest.mark.parametrize(("changed", "message"), BAD, ids=str)
def test_bad_arguments_are_refused(kind: type[Model], changed: dict[str, Any], message: str) -> None:
    sizes = {"in_width": 6, "hidden": 5, "out_width": 4, "num_layers": 2}
    with pytest.raises(ConfigError, match=message):
        kind(**(sizes | changed))


@pytest.mark.parametrize("changed", [{"alpha": 1.5}, {"alpha": -0.1}, {"theta": -1.0}], ids=str)
def test_gcnii_refuses_alpha_and_theta_out_of_range(changed: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changed))):
        GCNII(6, 5, 4, **changed)


@pytest.mark.parametrize("kind", [GCN, GCNII])
@pytest.mark.parametrize("norm", ["layer", "batch"])
class TestInitialParameters:
    def test_they_depend_on_the_seed_alone(self, kind: type[Model], norm: str) -> None:
        a, b, other = (kind(6, 5, 4, norm=norm, seed=s).state_dict() for s in (1, 1, 2))  # type: ignore[call-arg]
        assert all(torch.equal(a[k], b[k]) for k in a)
        assert not all(torch.equal(a[k], other[k]) for k in a)

    def test_reset_brings_them_back(self, kind: type[Model], norm: str) -> None:
        model = kind(6, 5, 4, norm=norm, seed=1)  # type: ignore[call-arg]
        fresh = {k: v.clone() for k, v in model.state_dict().items()}
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                tensor.add_(1)
        model.reset_parameters(1)
        assert all(torch.equal(v, fresh[k]) for k, v in model.state_dict().items())

    def test_no_global_generator_is_touched(self, kind: type[Model], norm: str) -> None:
        model = kind(6, 5, 4, norm=norm)  # type: ignore[call-arg]
        before = torch.get_rng_state()
        model.reset_parameters(3)
        assert torch.equal(torch.get_rng_state(), before)

    def test_building_a_model_touches_no_global_generator(self, kind: type[Model], norm: str) -> None:
        before = torch.get_rng_state()
        kind(6, 5, 4, norm=norm, seed=1)  # type: ignore[call-arg]
        assert torch.equal(torch.get_rng_state(), before)


def test_only_a_model_that_declares_it_has_a_constant_input() -> None:
    """A first layer that also reads the features themselves must not be given P X instead of them."""
    assert GCN(5, 4, 3).constant_input
    assert not GCN(5, 4, 3, linear_in=True).constant_input
    assert not GCN(5, 4, 3, dropout=0.5, input_dropout=True).constant_input
    assert not GCNII(5, 4, 3).constant_input

    class Bare(Model):
        lin_in = None
        input_dropout = 0.0

    assert not Bare().constant_input


def test_settings_distinguish_models_with_the_same_parameters() -> None:
    plain, residual = GCNII(5, 4, 3).settings, GCNII(5, 4, 3, residual=True).settings
    assert plain != residual
    assert plain == GCNII(5, 4, 3, seed=9).settings
