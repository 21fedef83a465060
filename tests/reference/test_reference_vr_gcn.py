"""VR-GCN against its equations, step by step, on the neighbours that the library drew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from dense import Array, Data, Nodes, random_data
from dense_gcn import GCN
from dense_vr_gcn import DenseVRGCN
from follow import follow, graph_of

import lmc
from helpers import scrambled


def check_sample(P_hat: Array, nodes: Nodes, data: Data, fanout: int) -> None:
    """Every row has its own entry of P, and k = min(fanout, d) of its d others, times d / k."""
    given, read = nodes[: P_hat.shape[0]], nodes[: P_hat.shape[1]]
    for row, i in zip(P_hat, given, strict=True):
        neighbours = np.flatnonzero(data.A[i])
        drawn = read[np.flatnonzero(row)]
        others = drawn[drawn != i]
        d, k = len(neighbours), min(fanout, len(neighbours))
        assert len(others) == k
        assert set(others) <= set(neighbours)
        want = {j: data.P[i, j] * (1 if j == i else d / k) for j in drawn}
        got = dict(zip(drawn, row[np.flatnonzero(row)], strict=True))
        assert i in got
        np.testing.assert_allclose([got[j] for j in drawn], [want[j] for j in drawn], rtol=1e-14)


@pytest.mark.parametrize("first_layer", ["complete", "sampled"])
@pytest.mark.parametrize("norm", [None, "layer"])
def test_steps_follow_the_equations(norm: str | None, first_layer: str) -> None:
    data, fanout = random_data(), 2
    model = scrambled(lmc.models.GCN(6, 7, 4, num_layers=3, norm=norm))
    reference = DenseVRGCN(GCN(data, 3, norm), [7, 7, 4])
    method = lmc.methods.VRGCN(fanouts=fanout, batch_size=8, first_layer=first_layer)
    run = method.bind(graph_of(data), model, device="cpu", seed=1)

    def look(batch: Any) -> None:
        reference.nodes = batch.n_id.numpy()
        for l, operator in enumerate(batch.operators, start=1):
            if l == 1 and first_layer == "complete":
                reference.samples[l] = None
                continue
            P_hat = operator.forward.to_dense().numpy()
            check_sample(P_hat, reference.nodes, data, fanout)
            reference.samples[l] = P_hat

    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    follow(run, model, reference, data, optimiser, look=look)


@pytest.mark.parametrize("tier", ["device", "host"])
def test_dropout_is_sampled_with_a_factor_that_keeps_its_variance(tier: str) -> None:
    """m = noise(t - mean) + P_hat (mean - T) + P T; noise has sqrt(d / k) where P_hat has d / k. T becomes the mean."""
    data, rng = random_data(), np.random.default_rng(3)
    method = lmc.methods.VRGCN(fanouts=2, batch_size=8)
    model = lmc.models.GCN(6, 7, 4, num_layers=2).double()
    run = method.bind(graph_of(data), model, placement=lmc.Placement("cpu", history=tier), seed=1)
    order = run.clusters.order
    stored, degrees = rng.standard_normal((data.num_nodes, 7)), data.A.sum(1)
    run.tables["T"][2].push(slice(0, data.num_nodes), torch.as_tensor(stored)[order])
    batch = next(iter(run.batches()))
    P = run.method.operator(run.method_step(batch, keep=True, dropout=True), 2)
    P_hat = batch.operators[1].forward.to_dense().numpy()
    given, read = batch.n_id[: P.num_outputs].numpy(), batch.n_id[: P.num_inputs].numpy()
    mean, t = rng.standard_normal((2, len(read), 7))
    noise = P_hat / np.sqrt(np.maximum(degrees[given] / 2, 1))[:, None]
    np.fill_diagonal(noise, data.P[given, given])
    want = noise @ (t - mean) + P_hat @ (mean - stored[read]) + (data.P @ stored)[given]
    got = P(torch.as_tensor(t), torch.as_tensor(mean))
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-12)
    rows = torch.empty(data.num_nodes, 7, dtype=torch.float64)
    rows[order] = run.tables["T"][2].data()
    np.testing.assert_array_equal(rows[torch.as_tensor(read)].numpy(), mean)
    rest = np.setdiff1d(np.arange(data.num_nodes), read)
    np.testing.assert_array_equal(rows[torch.as_tensor(rest)].numpy(), stored[rest])
