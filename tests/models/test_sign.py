"""SIGN against its dense formula, with a graph and row by row."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from helpers import random_graph, scrambled
from lmc.errors import ConfigError
from lmc.graph import Aggregation, gcn_norm
from lmc.models import SIGN, Pass


@pytest.mark.parametrize("sparse_features", [False, True])
@pytest.mark.parametrize("mlp_layers", [1, 3])
def test_sign_is_its_dense_formula(mlp_layers: int, sparse_features: bool) -> None:
    g = random_graph(sparse_features=sparse_features)
    model = scrambled(SIGN(6, 5, 4, num_layers=3, mlp_layers=mlp_layers))
    P = gcn_norm(g.adj, torch.float64)
    x, dense = g.x.to_dense() if sparse_features else g.x, P.to_dense()
    hops = [torch.linalg.matrix_power(dense, r) @ x for r in range(4)]
    t = torch.cat([hop @ theta.t() for hop, theta in zip(hops, model.lin_in.weight.split(5), strict=True)], 1).relu()
    for linear in model.inner:
        t = F.linear(t, linear.weight, linear.bias).relu()
    want = F.linear(t, model.lin_out.weight, model.lin_out.bias)
    torch.testing.assert_close(model(g.x, Aggregation.exact(P)), want, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(model.of_hops([g.x, *hops[1:]], Pass()), want, rtol=1e-11, atol=1e-12)


def test_the_weights_of_every_hop_are_drawn_separately() -> None:
    # Glorot's bound for a matrix of 30 x 8, for any number of hops
    few, many = (SIGN(30, 8, 4, num_layers=k).lin_in.weight.detach() for k in (1, 9))
    bound = (6 / 38) ** 0.5
    for weight in (few, many):
        assert 0.9 * bound < float(weight.abs().max()) <= bound * (1 + 1e-6)


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"mlp_layers of at least 1 \(got 0\)"):
        SIGN(6, 5, 4, mlp_layers=0)
    with pytest.raises(ConfigError, match=r"dropout in \[0, 1\)"):
        SIGN(6, 5, 4, dropout=1.0)
