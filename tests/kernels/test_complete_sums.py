"""The kernels of a reading against the plain path, on the same steps."""

from __future__ import annotations

import pytest
import torch

from helpers import chance, parts_of, random_graph
from lmc.kernels.dropout import dropout
from lmc.methods import CMC
from lmc.methods.cmc import RowsAndSums, trust_of_rows
from lmc.models import GCN
from lmc.stores import Placement

pytestmark = pytest.mark.gpu


def take_path(monkeypatch: pytest.MonkeyPatch, plain: bool) -> None:
    """Readings by plain torch alone, or by the kernels alone."""

    def refuse(*_: object) -> None:
        raise AssertionError("expected the kernels to read (got plain torch)")

    monkeypatch.undo()
    if plain:
        monkeypatch.setattr(RowsAndSums, "read_fused", lambda *_: None)
    else:
        monkeypatch.setattr(RowsAndSums, "read", refuse)


@pytest.mark.parametrize("adjoints", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(("width", "norm"), [(5, None), (32, None), (5, "batch"), (5, "layer")])
@pytest.mark.parametrize("clusters", [1, 2])
def test_kernels_do_what_plain_torch_does(
    width: int, norm: str | None, dropout: float, adjoints: bool, clusters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two clusters a batch the core is larger than the halo, and its sums are added up where they are."""
    g = random_graph()
    grads, tables = [], []
    for plain in (True, False):
        take_path(monkeypatch, plain)
        model = GCN(g.num_features, width, g.num_classes, num_layers=3, dropout=dropout, norm=norm).double()
        run = CMC(clusters_per_batch=clusters, adjoints=adjoints).bind(g, model, parts=parts_of(g), device="cuda")
        assert all((b.num_core >= b.num_halo) == (clusters == 2) for b in run.batches(0))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(4):  # eager, recorded, replayed
            for batch in run.batches():
                optimizer.zero_grad()
                run.accumulate(batch)
                optimizer.step()
        grads.append([p.grad for p in model.parameters()])
        tables.append([t.data() for t in run.named_tables().values()])
    for ours, theirs in zip(grads[0] + tables[0], grads[1] + tables[1], strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("batches", [1, 5])
@pytest.mark.parametrize(("core", "halo"), [(3, 0), (0, 3), (1000, 3000)])
def test_trust_of_rows(core: int, halo: int, batches: int) -> None:
    R2, part = torch.rand(batches, generator=chance(0)) / 9 + 0.85, torch.rand(halo, 1, generator=chance(1))
    place = torch.tensor([batches - 1])
    on_gpu = trust_of_rows(R2.cuda(), place.cuda(), part.cuda(), core)
    torch.testing.assert_close(on_gpu.cpu(), trust_of_rows(R2, place, part, core), rtol=1e-5, atol=1e-5)


LIMITS = {"T": 2.0, "M": 2.0, "V": 6.0, "U": 6.0, "gradient": 6.0}
"""Distances from a float64 run, in units of 2^-8 (a rounding to bfloat16). The plain path on a CPU measures 0.2 to 0.7
for rows and their sums, 0.8 to 2.9 for adjoints and 0.5 to 0.9 for gradients; the rest is room for chance."""


@pytest.mark.parametrize("adjoints", [False, True])
@pytest.mark.parametrize("width", [5, 32])
@pytest.mark.parametrize("plain", [True, False])
def test_rows_of_bfloat16_are_rounded_a_few_times(
    width: int, adjoints: bool, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both paths, at the same parameters. Biases are so large that rounding switches hardly any ReLU, which would move
    an adjoint by more than a rounding."""
    g = random_graph()
    tables, grads = [], []
    for exact in (True, False):
        take_path(monkeypatch, plain or exact)
        model = GCN(g.num_features, width, g.num_classes, num_layers=3)
        with torch.no_grad():
            for layer in model.layers:
                layer.lin.bias.fill_(6.0)
        if exact:
            model.double()
        placement = Placement(device="cuda", precision="float32" if exact else "bfloat16")
        run = CMC(clusters_per_batch=2, adjoints=adjoints).bind(g, model, parts=parts_of(g), placement=placement)
        for _ in range(4):  # eager, recorded, replayed; tables from zero to what they should be
            for batch in run.batches():
                run.accumulate(batch)
        tables.append({name: t.data().double() for name, t in run.named_tables().items()})
        grads.append(torch.cat([p.grad.double().flatten() for p in model.parameters()]))
    pairs = {name: (rows, tables[0][name]) for name, rows in tables[1].items()} | {"gradient": (grads[1], grads[0])}
    for name, (rounded, truth) in pairs.items():
        error = float((rounded - truth).norm() / truth.norm()) * 2**8
        assert 0.02 < error < LIMITS[name.split(".")[0]], f"{name}: {error:.2f} roundings"


@pytest.mark.parametrize("p", [0.3, 0.5])
def test_dropout_of_bfloat16_is_that_of_float32_rounded(p: float) -> None:
    x = torch.randn(4096, 33, device="cuda", dtype=torch.bfloat16)
    ours, single = (dropout(t, p, torch.Generator("cuda").manual_seed(1)) for t in (x, x.float()))
    assert ours.dtype == torch.bfloat16
    assert torch.equal(ours, single.to(torch.bfloat16))
