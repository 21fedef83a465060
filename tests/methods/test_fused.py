"""The kernels of a reading against the plain path, on the same steps."""

from __future__ import annotations

import pytest
import torch

from helpers import parts_of, random_graph
from lmc.methods import CMC, fused
from lmc.models import GCN

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
