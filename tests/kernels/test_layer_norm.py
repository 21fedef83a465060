"""Layer norm, ReLU and dropout in one kernel against plain torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lmc.kernels.layer_norm import layer_norm_relu_dropout
from lmc.models import Pass
from lmc.models.activation import Activation, drop, every
from lmc.models.rows import weigh_adjoints

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("used", ["clean", "dropped", "both"])
@pytest.mark.parametrize(("n", "core", "d"), [(1, 1, 1), (7, 5, 6), (900, 300, 40), (5_000, 5_000, 256), (40, 9, 700)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_one_pass_is_the_three_steps(n: int, core: int, d: int, used: str, dtype: torch.dtype) -> None:
    chance = torch.Generator("cuda").manual_seed(1)
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    s = torch.randn(n, d, generator=chance, device="cuda", dtype=kind).to(dtype).requires_grad_()
    w, b = (torch.randn(d, generator=chance, device="cuda", dtype=kind).requires_grad_() for _ in range(2))
    p = 0.0 if used == "clean" else 0.5
    h, t = layer_norm_relu_dropout(s, w, b, 1e-5, core, p, torch.Generator("cuda").manual_seed(2))
    weights = torch.randn(2, n, d, generator=chance, device="cuda", dtype=kind)
    x = s.detach().to(kind).requires_grad_()
    unit = F.layer_norm(x, (d,))
    in_core = (torch.arange(n, device="cuda") < core)[:, None]
    # the parameters take their gradient from core rows
    y = torch.where(in_core, unit * w + b, unit * w.detach() + b.detach()).relu()
    tolerance = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2e-2}[dtype]
    close = {"rtol": tolerance, "atol": tolerance * 10}
    torch.testing.assert_close(h.to(kind), y, **close)
    out, want = weights[0] * h, weights[0] * y
    if p:
        assert t is not None
        kept = t != 0
        torch.testing.assert_close(t.to(kind), torch.where(kept, y / (1 - p), 0), **close)
        if n * d > 1000:
            assert abs(float((kept & (h > 0)).sum() / (h > 0).sum()) - 0.5) < 0.05
        extra, wanted = weights[1] * t, weights[1] * torch.where(kept, y / (1 - p), 0)
        out, want = (extra, wanted) if used == "dropped" else (out + extra, want + wanted)
    else:
        assert t is None
    grads = torch.autograd.grad(out.sum(), [s, w, b]), torch.autograd.grad(want.sum(), [x, w, b])
    for got, true in zip(*grads, strict=True):
        scale = float(true.abs().max()) + 1e-30
        assert float((got.to(kind) - true).abs().max()) <= 10 * tolerance * max(scale, 1.0)


def test_nan_stays_nan() -> None:
    s = torch.tensor([[float("nan"), 1.0], [1.0, 2.0]], device="cuda")
    one = torch.ones(2, device="cuda")
    h, _ = layer_norm_relu_dropout(s, one, one, 1e-5, 2, 0.0, None)
    assert h.isnan().tolist() == [[True, True], [False, False]]


@pytest.mark.parametrize("readers", [1, 2])
@pytest.mark.parametrize(("n", "d", "stride"), [(1, 1, 2), (7, 6, 3), (900, 40, 4), (901, 256, 900)])
def test_adjoints_of_some_rows_are_those_of_a_slice(n: int, d: int, stride: int, readers: int) -> None:
    activation = Activation(d, "layer", 0.5).cuda().double()
    chance = torch.Generator("cuda").manual_seed(1)
    s = torch.randn(n, d, generator=chance, device="cuda", dtype=torch.float64).requires_grad_()
    weights = torch.randn(3, n, d, generator=chance, device="cuda", dtype=torch.float64)
    found = []
    for rows_of in (every, lambda h, k: h[::k]):
        p = Pass(generator=torch.Generator("cuda").manual_seed(2))
        h = activation(s, p)
        loss = (drop(h, 0.5, p, True) * weights[0]).sum()
        for k in range(1, 1 + readers):
            some = rows_of(h, stride)
            loss = loss + (some * weights[k][: len(some)]).sum()
        found.append(torch.autograd.grad(loss, [s, *activation.parameters()]))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize(("n", "core", "d"), [(1, 1, 1), (7, 5, 6), (900, 300, 40), (901, 301, 256)])
def test_the_kernel_weighs_adjoints_as_autograd_does(n: int, core: int, d: int, others: bool) -> None:
    """Also where other operations read the same rows, whose adjoints the kernel does not see."""
    activation = Activation(d, "layer", 0.5).cuda().double()
    chance = torch.Generator("cuda").manual_seed(1)
    s = torch.randn(n, d, generator=chance, device="cuda", dtype=torch.float64).requires_grad_()
    tau, weights = torch.rand(n, 1, generator=chance, device="cuda"), torch.randn(2, n, d, device="cuda").double()
    found = []
    for unseen in (False, True):
        p, rows = Pass(num_core=core, generator=torch.Generator("cuda").manual_seed(2)), weigh_adjoints(s, lambda: tau)
        rows = rows.as_subclass(torch.Tensor) if unseen else rows  # the kernel is not told of the weights
        loss = (drop(activation(rows, p), 0.5, p, True) * weights[0]).sum()
        loss = loss + (rows * weights[1]).sum() if others else loss
        found.append(torch.autograd.grad(loss, [s, *activation.parameters()]))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert not torch.equal(found[0][0], torch.zeros_like(s)) or n == 1
