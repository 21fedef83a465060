"""GraphSAINT's coefficients, at the default coverage, against the exact chances of its samplers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from dense import Data, random_data
from dense_graph_saint import chances
from follow import graph_of

import lmc
from lmc.methods.graph_saint import one_over_chance

SEEDS = 8


def coefficients(data: Data, method: lmc.methods.GraphSAINT) -> list[tuple[np.ndarray, np.ndarray]]:
    """1 / lambda_v and P_vu / alpha_uv, in the user's numbering, as several seeds estimate them."""
    graph, found = graph_of(data), []
    for seed in range(SEEDS):
        run = method.bind(graph, lmc.models.GCN(6, 7, 4).double(), device="cpu", seed=seed)
        back = run.clusters.order.argsort()
        known = run.source.prepared
        found.append((known.importance[back].numpy(), known.blocks.P.to_dense()[back][:, back].numpy()))
    return found


@pytest.mark.parametrize("sampler", ["walk", "edge", "node"])
def test_coefficients_have_the_right_mean_at_the_default_coverage(sampler: str) -> None:
    """N / C_v and C_v / C_uv would be too large, by 2 % and by 7 to 13 % in the mean over this graph."""
    data = random_data()
    method = lmc.methods.GraphSAINT(sampler)
    assert method.coverage == 50
    lambda_, alpha = chances(data, sampler, method.size_for(data.num_nodes))
    v, u = np.nonzero(data.A)
    found = coefficients(data, method)
    nodes = np.mean([importance * lambda_ for importance, _ in found])
    edges = np.mean([blocks[v, u] * alpha[v, u] / data.P[v, u] for _, blocks in found])
    assert abs(nodes - 1) < 0.005
    assert abs(edges - 1) < 0.025
    for _, blocks in found:
        np.testing.assert_allclose(np.diag(blocks), np.diag(data.P), rtol=1e-12)  # a row always meets itself


@pytest.mark.parametrize("sampler", ["walk", "edge", "node"])
def test_every_loss_has_the_weight_one_in_the_mean_over_subgraphs(sampler: str) -> None:
    """A node is met with the chance lambda_v, and its loss is then divided by lambda_v."""
    data, seen, drawn = random_data(), np.zeros(48), 0
    run = lmc.methods.GraphSAINT(sampler).bind(graph_of(data), lmc.models.GCN(6, 7, 4).double(), device="cpu", seed=1)
    for epoch in range(400 // len(run)):
        for batch in run.batches(epoch):
            seen[batch.n_id.numpy()] += batch.weight * batch.importance.numpy()
            drawn += 1
    assert abs(seen.mean() / drawn - 1) < 0.05
    assert np.sqrt(np.square(seen / drawn - 1).mean()) < 0.3


@pytest.mark.parametrize("p", [0.05, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("trials", [50, 250])
def test_one_over_a_chance_is_estimated_without_bias(p: float, trials: int) -> None:
    """The mean over all counts, each with its binomial chance."""
    times = torch.arange(trials + 1, dtype=torch.float64)
    each = torch.tensor([math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(trials + 1)])
    mean = float((each.double() * one_over_chance(times, trials)).sum())
    assert mean * p == pytest.approx(1 - (1 - p) ** (trials + 1), rel=1e-6)
