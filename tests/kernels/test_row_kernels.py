"""The kernels of dropout and column sums against plain torch."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from helpers import parts_of, random_graph
from lmc.kernels.dropout import dropout, relu_dropout
from lmc.kernels.sums import column_sums, total_of
from lmc.methods import LMC4Conv
from lmc.models import GCN, GCNII, Model

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (1000, 40), (20_000, 256)])
@pytest.mark.parametrize("used", ["dropped", "clean", "both"])
def test_relu_with_dropout_is_relu_then_dropout(shape: tuple[int, int], used: str) -> None:
    s = torch.randn(shape, dtype=torch.float64, device="cuda", requires_grad=True)
    v = torch.randn(shape, dtype=torch.float64, device="cuda")
    rows, grads = [], []
    for together in (True, False):
        generator = torch.Generator("cuda").manual_seed(3)
        if together:
            h, t = relu_dropout(s, 0.3, generator)
            assert t is not None
        else:
            h = s.relu()
            t = dropout(h, 0.3, generator)
        out: Tensor = {"dropped": t, "clean": h, "both": t + h * h}[used]
        rows.append((h, t))
        grads.append(torch.autograd.grad(out, s, v)[0])
    assert all(torch.equal(a, b) for a, b in zip(*rows, strict=True))
    assert torch.allclose(*grads, rtol=0, atol=1e-14)
    assert float((rows[0][1] == 0).double().mean()) > 0 or s.numel() == 1


def test_relu_with_dropout_keeps_nan_and_infinity() -> None:
    s = torch.tensor([[float("nan"), float("inf"), -1.0]], device="cuda")
    h, _ = relu_dropout(s, 0.5, None)
    assert h.isnan().tolist() == [[True, False, False]]
    assert h.isinf().tolist() == [[False, True, False]]


@pytest.mark.parametrize("shape", [(1, 3), (15, 40), (513, 256), (40_000, 33)])
def test_column_sums_are_those_of_plain_torch(shape: tuple[int, int]) -> None:
    v = torch.randn(2 * shape[0], shape[1], dtype=torch.float64, device="cuda")
    for rows in (v[: shape[0]], v[::2]):
        assert torch.allclose(column_sums(rows), rows.sum(0), rtol=0, atol=1e-10)
        assert torch.allclose(column_sums(rows, squared=True), rows.square().sum(0), rtol=1e-12, atol=0)
    assert torch.equal(column_sums(v), column_sums(v))
    half = v.bfloat16()
    assert torch.allclose(column_sums(half), half.double().sum(0).float(), rtol=0, atol=1e-4 * shape[0] ** 0.5)
    assert torch.equal(column_sums(v[:0]), torch.zeros(shape[1], dtype=torch.float64, device="cuda"))


@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 512, 40), (1, 2_112, 2, 256), (2, 700, 2, 33)])
def test_sums_of_programs_are_those_of_plain_torch(shape: tuple[int, ...]) -> None:
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-3)):
        parts = torch.randn(shape, dtype=dtype, device="cuda")
        torch.testing.assert_close(total_of(parts), parts.sum(1), rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", [GCN, GCNII])
def test_steps_do_not_depend_on_fusing_relu_and_dropout(
    kind: type[GCN | GCNII], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks are drawn in the same order from the same generator, so the steps agree."""
    g = random_graph()

    def gradients(model: Model) -> list[Tensor]:
        run = LMC4Conv(clusters_per_batch=2).bind(g, model, parts=parts_of(g), device="cuda")
        for batch in run.batches():
            run.accumulate(batch)
        return [p.grad for p in model.parameters() if p.grad is not None]

    def model_of() -> Model:
        return kind(g.num_features, 8, g.num_classes, num_layers=3, dropout=0.4, residual=True).double()

    together = gradients(model_of())
    apart = model_of()
    for module in apart.modules():
        if hasattr(module, "_dropout"):
            monkeypatch.setattr(module, "_dropout", 0.0)
    for ours, theirs in zip(together, gradients(apart), strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)


def test_a_recording_survives_the_end_of_other_runs() -> None:
    """Python's garbage collector frees the recorded steps of a deleted run, and must not do so during a recording."""
    g = random_graph()
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for seed in range(3):
            model = GCN(g.num_features, 8, g.num_classes, num_layers=3, seed=seed)
            run = LMC4Conv(clusters_per_batch=2).bind(g, model, parts=parts_of(g), device="cuda")
            model.cycle = [run]  # type: ignore[assignment]
            for _ in range(3):
                for batch in run.batches():
                    model.zero_grad()
                    run.accumulate(batch)
    finally:
        gc.set_threshold(*before)
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
