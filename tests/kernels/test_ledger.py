"""The kernels of a reading against the plain path, on the same steps."""

from __future__ import annotations

import pytest
import torch

from helpers import parts_of, random_graph
from lmc.kernels import ledger as fused
from lmc.kernels.dropout import dropout
from lmc.methods import CMC
from lmc.models import GCN
from lmc.stores import Placement

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("adjoints", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(("width", "norm"), [(5, None), (32, None), (5, "batch")])
def test_kernels_do_what_plain_torch_does(
    width: int, norm: str | None, dropout: float, adjoints: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = random_graph()
    grads, tables = [], []
    for plain in (True, False):
        if plain:
            monkeypatch.setattr(fused, "available", lambda *_: False)
        else:
            monkeypatch.undo()
        model = GCN(g.num_features, width, g.num_classes, num_layers=3, dropout=dropout, norm=norm).double()
        run = CMC(clusters_per_batch=2, adjoints=adjoints).bind(g, model, parts=parts_of(g), device="cuda")
        if not plain:
            assert fused.available(*run.all_tables())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(4):  # eager, recorded, replayed
            for batch in run.batches():
                optimizer.zero_grad()
                run.accumulate(batch)
                optimizer.step()
        grads.append([p.grad for p in model.parameters()])
        tables.append([t.data() for t in run.all_tables()])
    for ours, theirs in zip(grads[0] + tables[0], grads[1] + tables[1], strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("adjoints", [False, True])
@pytest.mark.parametrize("width", [5, 32])
def test_kernels_read_rows_of_bfloat16(width: int, adjoints: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the same parameters: every number of a table is that of the plain path, or the next one, once rounded."""
    g = random_graph()
    tables, grads = [], []
    for plain in (True, False):
        if plain:
            monkeypatch.setattr(fused, "available", lambda *_: False)
        else:
            monkeypatch.undo()
        model = GCN(g.num_features, width, g.num_classes, num_layers=3)
        method = CMC(clusters_per_batch=2, adjoints=adjoints)
        run = method.bind(g, model, parts=parts_of(g), placement=Placement(device="cuda", precision="bfloat16"))
        for _ in range(4):  # eager, recorded, replayed; tables from zero to what they should be
            for batch in run.batches():
                run.accumulate(batch)
        tables.append({name: t.data().float() for name, t in run.named_tables().items()})
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    for name, ours in tables[0].items():
        assert float((ours - tables[1][name]).norm() / ours.norm()) < 24 * 2**-8, name
        assert float(ours.norm()) > 0
    assert float((grads[0] - grads[1]).norm() / grads[0].norm()) < 24 * 2**-8


@pytest.mark.parametrize("p", [0.3, 0.5])
def test_dropout_of_bfloat16_is_that_of_float32_rounded(p: float) -> None:
    x = torch.randn(4096, 33, device="cuda", dtype=torch.bfloat16)
    ours, wide = (dropout(t, p, torch.Generator("cuda").manual_seed(1)) for t in (x, x.float()))
    assert ours.dtype == torch.bfloat16
    assert torch.equal(ours, wide.to(torch.bfloat16))
