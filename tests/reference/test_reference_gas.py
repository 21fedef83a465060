"""GAS and GraphFM-OB against their equations, step by step."""

from __future__ import annotations

import pytest
import torch
from dense import random_data
from dense_gas import DenseGAS
from dense_gcn import GCN
from dense_graph_fm import DenseGraphFM
from follow import follow, graph_of

import lmc
from helpers import scrambled


@pytest.mark.parametrize("norm", [None, "layer", "batch"])
@pytest.mark.parametrize("momentum", [None, 0.0, 0.3, 0.9])
def test_steps_follow_the_equations(momentum: float | None, norm: str | None) -> None:
    """Without a momentum: GAS."""
    data = random_data()
    model = scrambled(lmc.models.GCN(6, 7, 4, num_layers=3, norm=norm))
    dense = GCN(data, 3, norm)
    if momentum is None:
        reference, method = DenseGAS(dense, [7, 7, 4]), lmc.methods.GAS(clusters_per_batch=1)
    else:
        reference = DenseGraphFM(dense, [7, 7, 4], momentum=momentum)
        method = lmc.methods.GraphFM(clusters_per_batch=1, momentum=momentum)
    run = method.bind(graph_of(data), model, torch.as_tensor(data.parts), device="cpu", seed=1)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    follow(run, model, reference, data, optimiser, buffers=dense.buffers)
