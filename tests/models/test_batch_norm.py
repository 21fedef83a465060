"""Batch norm: statistics of the core for the core, of the halo for the halo."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lmc
from helpers import chance, parts_of, random_graph
from lmc.errors import ConfigError
from lmc.methods import CMC, IMC, BackwardSGD, FullBatch, LMC4Conv, Method
from lmc.models import GCN, Pass
from lmc.models.activation import D_MAX, R_MAX, BatchNorm, BatchNormWithHalo
from lmc.pyg.core_rows_mode import CoreRowsMode

N, CORE, WIDTH = 9, 5, 4
TOLERANCE = {"rtol": 1e-12, "atol": 1e-13}


def rows(n: int = N, seed: int = 0) -> Tensor:
    # core and halo have different distributions, so that shared statistics would be noticed
    x = torch.randn(n, WIDTH, generator=chance(seed), dtype=torch.float64)
    x[CORE:] = 3 * x[CORE:] + 2
    return x


def norm() -> BatchNorm:
    bn = BatchNorm(WIDTH).double()
    with torch.no_grad():
        bn.weight.copy_(torch.tensor([0.5, 1.5, -1.0, 2.0]))
        bn.bias.copy_(torch.tensor([0.1, -0.2, 0.3, 0.0]))
        bn.running_mean.copy_(torch.tensor([0.2, -0.1, 0.4, 1.0]))
        bn.running_var.copy_(torch.tensor([1.5, 0.5, 2.0, 1.0]))
    return bn


def ordinary() -> nn.BatchNorm1d:
    bn = nn.BatchNorm1d(WIDTH).double()
    bn.load_state_dict(norm().state_dict())
    return bn


def assert_same_statistics(a: nn.BatchNorm1d, b: nn.BatchNorm1d) -> None:
    torch.testing.assert_close(a.running_mean, b.running_mean, **TOLERANCE)
    torch.testing.assert_close(a.running_var, b.running_var, **TOLERANCE)
    assert a.num_batches_tracked == b.num_batches_tracked


def test_core_rows_use_the_cores_statistics() -> None:
    got = norm()(rows(), Pass(num_core=CORE))
    torch.testing.assert_close(got[:CORE], ordinary()(rows()[:CORE]), **TOLERANCE)


def test_halo_rows_use_their_own_statistics() -> None:
    got = norm()(rows(), Pass(num_core=CORE))
    torch.testing.assert_close(got[CORE:], ordinary()(rows()[CORE:]), **TOLERANCE)


def test_running_statistics_are_those_of_core_rows() -> None:
    bn, plain = norm(), ordinary()
    bn(rows(), Pass(num_core=CORE))
    plain(rows()[:CORE])
    assert_same_statistics(bn, plain)


def test_affine_parameters_take_their_gradient_from_core_rows() -> None:
    bn, plain = norm(), ordinary()
    v = rows(seed=1)
    got = torch.autograd.grad(bn(rows(), Pass(num_core=CORE)), [bn.weight, bn.bias], v)
    want = torch.autograd.grad(plain(rows()[:CORE]), [plain.weight, plain.bias], v[:CORE])
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, **TOLERANCE)


def test_core_and_halo_rows_are_differentiated_separately() -> None:
    v, x = rows(seed=1), rows().requires_grad_()
    (got,) = torch.autograd.grad(norm()(x, Pass(num_core=CORE)), x, v)
    plain = torch.cat([ordinary()(x[:CORE]), ordinary()(x[CORE:])])
    (want,) = torch.autograd.grad(plain, x, v)
    torch.testing.assert_close(got, want, **TOLERANCE)


def test_no_halo_is_ordinary_batch_norm() -> None:
    bn, plain = norm(), ordinary()
    torch.testing.assert_close(bn(rows(), Pass()), plain(rows()), **TOLERANCE)
    assert_same_statistics(bn, plain)


def test_pooled_rows_share_statistics_and_parameters_take_their_gradient_from_core_rows() -> None:
    bn, plain = norm(), ordinary()
    v, x, y = rows(seed=1), rows().requires_grad_(), rows().requires_grad_()
    got, want = bn(x, Pass(num_core=CORE, pooled=True)), plain(y)
    torch.testing.assert_close(got, want, **TOLERANCE)
    assert_same_statistics(bn, plain)
    dx, dw, db = torch.autograd.grad(got, [x, bn.weight, bn.bias], v)
    unit = (want - plain.bias) / plain.weight
    torch.testing.assert_close(dx, torch.autograd.grad(want, y, v, retain_graph=True)[0], **TOLERANCE)
    torch.testing.assert_close(dw, (v * unit)[:CORE].sum(0), **TOLERANCE)
    torch.testing.assert_close(db, v[:CORE].sum(0), **TOLERANCE)


def test_a_single_halo_row_takes_the_running_statistics() -> None:
    bn = norm()
    bn.momentum = 0.0  # the running statistics stay put, so "before or after this step" is no question
    x = rows()[: CORE + 1]
    got = bn(x, Pass(num_core=CORE))
    want = F.batch_norm(x[CORE:], bn.running_mean, bn.running_var, bn.weight, bn.bias, eps=bn.eps)
    torch.testing.assert_close(got[CORE:], want, **TOLERANCE)


def test_evaluation_uses_running_statistics_for_every_row() -> None:
    bn, plain = norm().eval(), ordinary().eval()
    torch.testing.assert_close(bn(rows(), Pass(num_core=CORE)), plain(rows()), **TOLERANCE)
    assert_same_statistics(bn, ordinary())


def test_a_single_core_row_takes_the_running_statistics() -> None:
    norm = BatchNorm(3).double()
    norm.running_mean.fill_(0.5)
    norm.running_var.fill_(4.0)
    x = torch.arange(9.0, dtype=torch.float64).view(3, 3)
    before = norm.running_mean.clone()
    y = norm(x, Pass(num_core=1))
    assert torch.allclose(y[0], (x[0] - 0.5) / (4.0 + norm.eps) ** 0.5)
    assert torch.equal(norm.running_mean, before)


def test_batch_renorm_near_the_running_statistics_uses_them() -> None:
    """Where nothing is limited, y = (x - m) / S, for core and halo alike."""
    bn, x = norm(), rows()
    bn.running_var.copy_(x[:CORE].var(0, correction=0) * torch.tensor([1.1, 0.9, 1.2, 1.0]))
    bn.running_mean.copy_(x[:CORE].mean(0) + 0.1 * bn.running_var.sqrt())
    bn.num_batches_tracked.fill_(99)
    got = bn(x, Pass(num_core=CORE, batch_renorm=True))
    unit = (x - bn.running_mean) / (bn.running_var + bn.eps).sqrt()
    torch.testing.assert_close(got, unit * bn.weight + bn.bias, **TOLERANCE)


def test_batch_renorm_far_from_the_running_statistics_is_limited() -> None:
    bn, x = norm(), rows()
    bn.running_mean.fill_(50)
    bn.running_var.fill_(1e4)
    bn.num_batches_tracked.fill_(10**6)
    got = bn(x, Pass(num_core=CORE, batch_renorm=True))
    own = (x - x[:CORE].mean(0)) / (x[:CORE].var(0, correction=0) + bn.eps).sqrt()
    torch.testing.assert_close(got, (own / R_MAX - D_MAX) * bn.weight + bn.bias, **TOLERANCE)


def test_running_statistics_of_batch_renorm_are_those_of_all_core_rows() -> None:
    bn, halo = norm(), rows()[CORE:]
    cores = [rows(seed=k)[:CORE] + k for k in range(4)]
    for core in cores:
        bn(torch.cat([core, halo]), Pass(num_core=CORE, batch_renorm=True))
    every = torch.cat(cores)
    torch.testing.assert_close(bn.running_mean, every.mean(0), **TOLERANCE)
    torch.testing.assert_close(bn.running_var, every.var(0, correction=0), **TOLERANCE)


def test_gradients_of_batch_renorm_are_those_of_batch_norm_and_a_constant_map() -> None:
    bn, x, v = norm(), rows().requires_grad_(), rows(seed=1)
    got = torch.autograd.grad(bn(x, Pass(num_core=CORE, batch_renorm=True)), [x, bn.weight, bn.bias], v)
    mean, var = x[:CORE].detach().mean(0), x[:CORE].detach().var(0, correction=0)
    scale = (bn.running_var + bn.eps).rsqrt()
    r = ((var + bn.eps).sqrt() * scale).clamp(1 / R_MAX, R_MAX)
    d = ((mean - bn.running_mean) * scale).clamp(-D_MAX, D_MAX)
    plain = nn.BatchNorm1d(WIDTH, affine=False).double()
    core = (plain(x[:CORE]) * r + d) * bn.weight + bn.bias
    halo = ((x[CORE:] - mean) / (var + bn.eps).sqrt() * r + d) * bn.weight.detach() + bn.bias.detach()
    want = torch.autograd.grad(torch.cat([core, halo]), [x, bn.weight, bn.bias], v)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, **TOLERANCE)


def test_a_core_of_one_row_takes_the_running_statistics() -> None:
    bn, x = norm(), rows()
    want = ordinary().eval()(x)
    torch.testing.assert_close(bn(x, Pass(num_core=1, batch_renorm=True)), want, **TOLERANCE)
    torch.testing.assert_close(bn.running_mean, norm().running_mean, **TOLERANCE)


def test_batch_norm_of_a_wrapped_network_is_renormalised_in_the_same_way() -> None:
    bn, other = norm(), ordinary()
    p = Pass(num_core=CORE, batch_renorm=True)
    for seed in range(3):
        x = rows(seed=seed)
        with CoreRowsMode([*other.parameters(), *other.buffers()], N, p, other.modules()):
            got = other(x)
        torch.testing.assert_close(got, bn(x, p), **TOLERANCE)
    assert_same_statistics(bn, other)


def test_a_core_of_one_row_does_not_count_as_a_batch() -> None:
    bn = norm()
    bn(rows(), Pass(num_core=1, batch_renorm=True))
    bn(rows(), Pass(num_core=CORE, batch_renorm=True))
    torch.testing.assert_close(bn.running_mean, rows()[:CORE].mean(0), **TOLERANCE)


def test_a_halo_norm_of_its_own_is_the_equation_of_the_appendix() -> None:
    """Core rows go to one batch norm, halo rows to another: (x - mu) / sqrt(var + eps) * gamma' + b'."""
    bn, plain, x = BatchNormWithHalo(WIDTH).double(), ordinary(), rows().requires_grad_()
    bn.load_state_dict(bn.state_dict() | norm().state_dict())
    with torch.no_grad():
        bn.halo.weight.copy_(torch.tensor([2.0, -0.5, 1.0, 0.25]))
        bn.halo.bias.copy_(torch.tensor([1.0, 0.0, -1.0, 0.5]))
    got, v = bn(x, Pass(num_core=CORE)), rows(seed=1)
    outer = rows()[CORE:]
    mu, var = outer.mean(0), ((outer - outer.mean(0)) ** 2).mean(0)
    unit = (outer - mu) / (var + bn.eps).sqrt()
    torch.testing.assert_close(got[:CORE], plain(rows()[:CORE]), **TOLERANCE)
    torch.testing.assert_close(got[CORE:], unit * bn.halo.weight + bn.halo.bias, **TOLERANCE)
    got.backward(v)
    torch.testing.assert_close(bn.halo.weight.grad, (unit * v[CORE:]).sum(0), **TOLERANCE)
    torch.testing.assert_close(bn.halo.bias.grad, v[CORE:].sum(0), **TOLERANCE)
    plain.zero_grad()
    plain(rows()[:CORE]).backward(v[:CORE])
    torch.testing.assert_close(bn.weight.grad, plain.weight.grad, **TOLERANCE)
    torch.testing.assert_close(bn.bias.grad, plain.bias.grad, **TOLERANCE)
    torch.testing.assert_close(bn.halo.running_mean, bn.momentum * mu, **TOLERANCE)


def test_a_halo_norm_of_its_own_is_trained_by_halo_rows_and_read_by_nothing_else() -> None:
    g = random_graph()
    shape = g.num_features, 4, g.num_classes
    models = {name: GCN(*shape, num_layers=3, norm=name).double() for name in ("batch", "batch-halo")}
    runs = {name: LMC4Conv(clusters_per_batch=1).bind(g, model, parts_of(g)) for name, model in models.items()}
    gradients = {name: run.gradient(next(run.batches())) for name, run in runs.items()}
    for name, gradient in gradients["batch"].items():  # before the first step both norms have the same parameters
        torch.testing.assert_close(gradients["batch-halo"][name], gradient, rtol=1e-10, atol=1e-12)
    own = gradients["batch-halo"].keys() - gradients["batch"].keys()
    assert len(own) == 4
    assert any(bool(gradients["batch-halo"][name].any()) for name in own)
    full = FullBatch().bind(g, models["batch-halo"])
    exact = full.gradient(next(full.batches()))
    assert not any(bool(exact[name].any()) for name in own)
    before = lmc.predict(models["batch-halo"], g)
    with torch.no_grad():
        for name, p in models["batch-halo"].named_parameters():
            p.add_(1.0 if name in own else 0.0)
    assert torch.equal(lmc.predict(models["batch-halo"], g), before)


@pytest.mark.parametrize("method", [CMC(), IMC(), BackwardSGD()], ids=lambda method: method.traits.name)
def test_a_halo_norm_of_its_own_is_refused_where_halo_rows_are_not_normalised_by_themselves(method: Method) -> None:
    g = random_graph()
    with pytest.raises(ConfigError, match=r'expected norm="batch" for .* \(got "batch-halo"\)'):
        method.bind(g, GCN(g.num_features, 4, g.num_classes, norm="batch-halo"))
