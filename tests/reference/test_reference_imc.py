"""IMC against its equations, step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dense import random_data
from dense_gcn import GCN
from dense_imc import DenseIMC
from follow import follow, graph_of

import lmc
from helpers import scrambled


def no_halo(batch: Any) -> None:
    assert batch.num_halo == 0


def half_a_halo(batch: Any) -> None:
    assert batch.num_halo == batch.num_core // 2


@pytest.mark.parametrize("norm", [None, "layer", "batch"])
@pytest.mark.parametrize(
    ("hidden", "basis", "redraw", "halo"),
    [
        (7, "T", False, 0.0), (7, "T+X1", False, 0.0), (7, "T+X1", True, 0.0), (3, "T", False, 0.0),
        (3, "T", True, 0.0), (7, "T", False, 0.5), (7, "T+X1", False, 0.5),
    ],
)  # fmt: skip
def test_steps_follow_the_equations(hidden: int, basis: str, redraw: bool, halo: float, norm: str | None) -> None:
    """A batch has 24 rows on average, or about 300 with 3 hidden columns: the map is then fitted to some of them."""
    data = random_data(48 if hidden == 7 else 600)
    model = scrambled(lmc.models.GCN(6, hidden, 4, num_layers=3, norm=norm))
    dense = GCN(data, 3, norm, steady=True)
    method = lmc.methods.IMC(clusters_per_batch=2, ridge=1e-2, basis=basis, sweep_every=0, redraw=redraw, halo=halo)
    run = method.bind(graph_of(data), model, torch.as_tensor(data.parts), device="cpu", seed=1)
    batches = [] if redraw or halo else [batch.n_id.numpy() for batch in run.batches(0)]
    halos = {batch.slot: batch.n_id[batch.num_core :].numpy() for batch in run.batches(0)} if halo else {}
    reference = DenseIMC(dense, [hidden, hidden, 4], 1e-2, basis == "T+X1", batches, halos)
    run.epoch = 0
    run.refresh()
    reference.refresh({name: p.detach().numpy().copy() for name, p in model.named_parameters()})
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    follow(run, model, reference, data, optimiser, buffers=dense.buffers, look=half_a_halo if halo else no_halo)
