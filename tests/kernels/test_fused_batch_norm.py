"""Batch norm, ReLU and dropout in one kernel against the plain version, with the same draws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lmc.models import Pass
from lmc.models.activation import Activation, BatchNorm

pytestmark = pytest.mark.gpu

SIZES = [(2, 2, 1), (7, 5, 6), (900, 300, 40), (5_000, 5_000, 256), (3_000, 800, 256), (40, 9, 700)]


def outcome(s: Tensor, core: int, renorm: bool, rate: float, used: str) -> tuple[list[Tensor], list[Tensor]]:
    """(results, gradients) of two steps of one activation, of which the second meets other running statistics."""
    kind = torch.float64 if s.dtype == torch.float64 else torch.float32
    activation = Activation(s.shape[1], "batch", rate).to("cuda", kind)
    norm, chance = activation.norm, torch.Generator("cuda").manual_seed(3)
    assert isinstance(norm, BatchNorm)
    with torch.no_grad():
        norm.weight.normal_(1, 0.5, generator=chance)
        norm.bias.normal_(0, 0.5, generator=chance)
    s = s.clone().requires_grad_()
    p = Pass(num_core=core, batch_renorm=renorm, generator=torch.Generator("cuda").manual_seed(5))
    found, total = [], s.new_zeros(())
    for _ in range(2):
        h = activation(s, p)
        t = h.dropped if rate else h
        made = {"clean": [h.as_subclass(Tensor)], "dropped": [t], "both": [h.as_subclass(Tensor), t]}[used]
        weights = torch.randn(2, *s.shape, generator=chance, device="cuda", dtype=kind)
        total = total + sum((w * each).sum() for w, each in zip(weights, made, strict=False))
        found += [each.detach().to(kind) for each in (h.as_subclass(Tensor), t)]
    grads = torch.autograd.grad(total, [s, norm.weight, norm.bias])
    running = [norm.running_mean, norm.running_var, norm.num_batches_tracked]
    return found + [value.to(kind) for value in running if value is not None], [g.to(kind) for g in grads]


@pytest.mark.parametrize("used", ["clean", "dropped", "both"])
@pytest.mark.parametrize("renorm", [False, True], ids=["own", "renorm"])
@pytest.mark.parametrize(("n", "core", "d"), SIZES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_one_pass_is_the_three_steps(
    n: int, core: int, d: int, renorm: bool, used: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    s = torch.randn(n, d, generator=torch.Generator("cuda").manual_seed(1), device="cuda", dtype=kind)
    s[core:] = 3 * s[core:] + 2  # core and halo differ, so that statistics of the other group would be noticed
    s = (s + 5).to(dtype)
    arguments = s, core, renorm, 0.0 if used == "clean" else 0.5, used
    fused = outcome(*arguments)
    monkeypatch.setattr(BatchNorm, "fuses", lambda *_: False)
    plain = outcome(*arguments)
    tolerance = {torch.float64: 1e-10, torch.float32: 5e-5, torch.bfloat16: 3e-2}[dtype]
    for got, want in zip(fused[0], plain[0], strict=True):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=10 * tolerance)
    for got, want in zip(fused[1], plain[1], strict=True):
        assert float((got - want).abs().max()) <= 10 * tolerance * max(float(want.abs().max()), 1.0)


def test_nan_stays_nan() -> None:
    activation = Activation(2, "batch").cuda()
    h = activation(torch.tensor([[float("nan"), 1.0], [1.0, 2.0]], device="cuda"), Pass())
    assert h.isnan().tolist() == [[True, False], [True, False]]
