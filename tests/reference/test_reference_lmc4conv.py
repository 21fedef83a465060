"""LMC4Conv against its equations, step by step."""

from __future__ import annotations

import pytest
import torch
from dense import random_data
from dense_gcn import GCN
from dense_lmc4conv import DenseLMC4Conv
from follow import follow, graph_of, loss_of

import lmc
from helpers import scrambled

SETTINGS = [
    {},
    {"alpha": 0.0},
    {"alpha": 1.0},
    *({"alpha": 0.7, "score": score} for score in ("x^2", "2x-x^2", "1", "sin")),
    {"forward": False},
    {"backward": False},
    {"forward": False, "backward": False},
    {"alpha": 0.0, "backward": False},
    {"first_layer": "pruned"},
    {"first_layer": "pruned", "alpha": 0.0},
    {"first_layer": "pruned", "forward": False},
    {"cut": "after"},
    {"cut": "after", "alpha": 0.0},
    {"cut": "after", "first_layer": "pruned", "score": "2x-x^2"},
    {"cut": "after", "first_layer": "pruned", "forward": False},
    {"cut": "after", "backward": False},
]


def compare(
    settings: dict[str, object], norm: str | None, multi_label: bool = False, redraw: bool = False, **edges: bool
) -> None:
    data = random_data(multi_label=multi_label, **edges)
    model = scrambled(lmc.models.GCN(6, 7, 4, num_layers=3, norm=norm))
    dense = GCN(data, 3, norm)
    reference = DenseLMC4Conv(dense, [7, 7, 4], **settings)
    method = lmc.methods.LMC4Conv(clusters_per_batch=2 if redraw else 1, redraw=redraw, **settings)
    run = method.bind(graph_of(data), model, torch.as_tensor(data.parts), device="cpu", seed=1, loss=loss_of(data))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    follow(run, model, reference, data, optimiser, buffers=dense.buffers)


@pytest.mark.parametrize("norm", [None, "layer"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_steps_follow_the_equations(settings: dict[str, object], norm: str | None) -> None:
    compare(settings, norm)


@pytest.mark.parametrize("settings", [{}, {"first_layer": "pruned", "alpha": 0.0}, {"cut": "after"}], ids=str)
def test_core_and_halo_have_batch_statistics_of_their_own(settings: dict[str, object]) -> None:
    compare(settings, "batch")


def test_several_labels_and_redrawn_batches_of_two_parts() -> None:
    compare({}, "layer", multi_label=True, redraw=True)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("settings", [{}, {"first_layer": "pruned", "alpha": 0.0}], ids=str)
def test_weights_and_directions_follow_the_equations(settings: dict[str, object], directed: bool) -> None:
    compare(settings, "layer", weighted=True, directed=directed)


@pytest.mark.parametrize("settings", [{}, {"alpha": 0.0, "cut": "after"}], ids=str)
def test_weights_of_nodes_and_classes(settings: dict[str, object]) -> None:
    compare(settings, None, weighted_loss=True)
