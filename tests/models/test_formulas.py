"""SAGE, GIN, GAT, APPNP and PNA against dense formulas and PyG; their constructors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric import nn as pyg

from helpers import hand_graph, random_graph, scrambled
from lmc.errors import ConfigError
from lmc.graph import NORMALISATIONS, Aggregation, Extractor, Graph, normalise, renormalise
from lmc.models import APPNP, GAT, GIN, PNA, SAGE, Linear, Model

CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def dense_adjacency(g: Graph) -> Tensor:
    return g.adj.to_dense().double()


def logits(model: Model, g: Graph) -> Tensor:
    return model(g.x, Aggregation.exact(normalise(g.adj, model.normalisation, torch.float64)))


def affine(lin: Linear, x: Tensor) -> Tensor:
    return F.linear(x, lin.weight, lin.bias)


@pytest.mark.parametrize("g", [hand_graph(), random_graph()], ids=["hand", "random"])
class TestFormulas:
    def test_sage(self, g: Graph) -> None:
        model = scrambled(SAGE(g.num_features, 7, g.num_classes, num_layers=2))
        A = dense_adjacency(g)
        P, h = A / A.sum(1, keepdim=True), g.x
        for l in (1, 2):
            layer = model.layer(l)
            h = affine(layer.lin, P @ h) + affine(layer.lin_own, h)
            h = h.relu() if l == 1 else h
        torch.testing.assert_close(logits(model, g), h, **CLOSE)

    def test_gin(self, g: Graph) -> None:
        model = scrambled(GIN(g.num_features, 7, g.num_classes, num_layers=2, eps=0.3))
        A = dense_adjacency(g)
        P, a = A + 1.3 * torch.eye(g.num_nodes, dtype=torch.float64), model.layer(1).activation
        h = affine(model.lin_first, affine(model.lin_in, g.x).relu())
        h = affine(a.lin_b, affine(a.lin_a, (P @ h).relu()).relu())
        torch.testing.assert_close(logits(model, g), affine(model.lin_out, (P @ h).relu()), **CLOSE)

    def test_appnp_is_pygs(self, g: Graph) -> None:
        model = scrambled(APPNP(g.num_features, 7, g.num_classes, num_layers=5, alpha=0.2))
        predicted = affine(model.lin_predict, affine(model.lin_in, g.x).relu())
        edges = torch.stack([g.adj.indices.long(), g.adj.row_index()])
        torch.testing.assert_close(logits(model, g), pyg.APPNP(5, 0.2)(predicted, edges), **CLOSE)

    def test_gat(self, g: Graph) -> None:
        model = scrambled(GAT(g.num_features, 6, g.num_classes, num_layers=2, heads=2))
        linked = (dense_adjacency(g) + torch.eye(g.num_nodes)) > 0
        h = g.x
        for l in (1, 2):
            layer = model.layer(l)
            t = affine(layer.lin, h).view(g.num_nodes, 2, -1)
            src, dst = ((t * a).sum(-1) for a in (layer.attention.src, layer.attention.dst))
            e = F.leaky_relu(src[None] + dst[:, None], 0.2).masked_fill(~linked[..., None], -torch.inf)
            m = torch.einsum("ijh,jhc->ihc", e.softmax(1), t)
            m = m.flatten(1) if l == 1 else m.mean(1)
            h = m + layer.activation.bias.bias
            h = F.elu(h) if l == 1 else h
        torch.testing.assert_close(logits(model, g), h, **CLOSE)

    def test_pna(self, g: Graph) -> None:
        model = scrambled(PNA(g.num_features, 8, g.num_classes, num_layers=1, delta=1.5))
        layer, A = model.layer(1), dense_adjacency(g)
        u, degree = affine(layer.lin_message, g.x), A.sum(1)
        rows = []
        for i in range(g.num_nodes):
            near = u[A[i] > 0]
            std = (near.var(0, unbiased=False) + 1e-5).sqrt()
            rows.append(torch.cat([near.mean(0), near.amax(0), near.amin(0), std]))
        m, up = torch.stack(rows), (degree + 1).log().unsqueeze(1) / 1.5
        want = affine(layer.lin, torch.cat([m, m * up, m / up], 1)) + affine(layer.lin_own, g.x)
        torch.testing.assert_close(logits(model, g), want, **CLOSE)


@pytest.mark.parametrize("kind", NORMALISATIONS)
def test_normalisations_and_their_transposes(kind: str) -> None:
    g = random_graph()
    A, eye = dense_adjacency(g), torch.eye(40, dtype=torch.float64)
    d = (A + eye).sum(1).rsqrt()
    want = {"gcn": d[:, None] * (A + eye) * d, "mean": A / A.sum(1, keepdim=True), "sum": A + eye}[kind]
    P = normalise(g.adj, kind, torch.float64)
    torch.testing.assert_close(P.to_dense(), want, **CLOSE)
    torch.testing.assert_close(P.t().to_dense(), want.t(), **CLOSE)
    assert P.nnz == g.adj.nnz + 40
    nodes = torch.tensor([5, 3, 20, 21, 22, 4])
    block = renormalise(Extractor(P).induced(nodes), kind)
    inner = A[nodes][:, nodes]
    inside = inner.sum(1).clamp(min=1)
    s = (inner.sum(1) + 1).rsqrt()
    one = torch.eye(6, dtype=torch.float64)
    want = {"gcn": s[:, None] * (inner + one) * s, "mean": inner / inside[:, None], "sum": inner + one}[kind]
    torch.testing.assert_close(block.to_dense(), want, **CLOSE)
    torch.testing.assert_close(block.t().to_dense(), want.t(), **CLOSE)


def test_an_unknown_normalisation_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a normalisation in"):
        normalise(random_graph().adj, "max")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GAT(6, 7, 4, heads=2), "heads that divide hidden = 7.*: change one of them"),
        (lambda: GAT(6, 8, 4, heads=0), "heads of at least 1"),
        (lambda: APPNP(6, 8, 4, alpha=1.5), r"alpha in \[0, 1\]"),
        (lambda: PNA(6, 8, 4, delta=0.0), "delta of more than 0"),
        (lambda: SAGE(6, 8, 4, dropout=1.0), "dropout in"),
        (lambda: GIN(6, 8, 4, norm="graph"), "norm in"),
    ],
)
def test_wrong_arguments_are_refused(build: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()  # type: ignore[operator]


@pytest.mark.parametrize("kind", [SAGE, GIN, GAT, APPNP, PNA])
def test_the_seed_draws_the_parameters(kind: type[Model]) -> None:
    before = torch.get_rng_state()
    a, b, c = (kind(6, 8, 4, seed=s) for s in (1, 1, 2))  # type: ignore[call-arg]
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())
    assert not all(torch.equal(v, c.state_dict()[k]) for k, v in a.state_dict().items())
    assert all(bool(p.any()) for k, p in a.named_parameters() if k.endswith(("weight", "src", "dst")))
