"""Dropout of dense and sparse rows, and rows that carry their dropped version."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import chance, random_graph, random_sparse
from lmc.graph import CSR, Aggregation, gcn_norm
from lmc.kernels.dropout import dropout
from lmc.models import GCN, GCNII, Model, Pass, activation
from lmc.models.activation import Activated, drop


@pytest.mark.parametrize(("p", "used"), [(0.5, 0.5), (0.3, round(0.3 * 2**16) / 2**16)])
def test_dropout_of_sparse_rows_drops_stored_elements(p: float, used: float) -> None:
    A = random_sparse(60, 50, density=0.9)
    out = drop(A, p, Pass(generator=chance(0)), training=True)
    assert isinstance(out, CSR)
    kept = out.data != 0
    assert torch.equal(out.indices, A.indices)
    torch.testing.assert_close(out.data[kept], A.data[kept] / (1 - used), rtol=1e-15, atol=0)
    assert abs(kept.double().mean().item() - (1 - p)) < 4 * (p * (1 - p) / A.nnz) ** 0.5


@pytest.mark.parametrize(("p", "training"), [(Pass(dropout=False), True), (Pass(), False)])
def test_nothing_is_dropped_in_evaluation_and_on_request(p: Pass, training: bool) -> None:
    x = torch.ones(5, 4)
    assert drop(x, 0.5, p, training) is x


def together(s: Tensor, p: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """What the kernel of a GPU does, in plain torch."""
    h = s.relu()
    return h, dropout(h, p, generator)


@pytest.mark.parametrize("kind", [GCN, GCNII])
def test_a_pass_does_not_depend_on_what_is_fused(kind: type[GCN | GCNII], monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks are drawn in the same order from the same generator, with the ReLU or after it."""
    g = random_graph()
    P = Aggregation.exact(gcn_norm(g.adj, torch.float64))

    def gradients(model: Model) -> list[Tensor]:
        x = g.x if isinstance(g.x, Tensor) else g.x.to_dense()
        model(x, P, Pass(generator=chance(3))).square().sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    def model() -> Model:
        return kind(g.num_features, 8, g.num_classes, num_layers=3, dropout=0.4, residual=True).double()

    apart = gradients(model())
    monkeypatch.setattr(activation, "relu_dropout", together)
    for ours, theirs in zip(gradients(model()), apart, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_activated_rows_carry_their_dropped_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation, "relu_dropout", together)
    act, p = activation.Activation(4, None, dropout=0.5), Pass(generator=chance(0))
    h = act(torch.randn(30, 4, generator=chance(1)), p)
    assert isinstance(h, Activated)
    assert drop(h, 0.5, p, training=True) is h.dropped
    assert not torch.equal(drop(h, 0.25, p, training=True), h.dropped)
    assert type(h + 1) is type(h[:3]) is Tensor
