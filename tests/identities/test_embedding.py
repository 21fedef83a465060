"""Graphs without features: the gradient of one learned row per node, by every method that is exact elsewhere."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

import lmc
from helpers import (
    CONVOLUTIONAL,
    DIVIDED,
    RECURRENT,
    full_gradient,
    parts_of,
    random_graph,
    scrambled,
    sweep,
    worst_error,
)
from lmc.errors import ConfigError
from lmc.graph import Graph, gcn_norm, without_features
from lmc.methods import CMC, GAS, FullBatch, LMC4Conv, LMC4Rec
from lmc.models import GCN, Model, RecGCN

ONE_PART_RECURRENT = [name for name, cls in RECURRENT.items() if "exact on one part" in cls.traits.facts]


def bare_graph(multi_label: bool = False) -> Graph:
    """A random graph whose nodes have no features."""
    g = random_graph(multi_label=multi_label)
    edges = torch.stack([g.adj.indices.long(), g.adj.row_index()])
    masks = {split: getattr(g, split) for split in ("train", "val", "test")}
    return Graph.from_edges(edges, None, g.y, **masks, num_classes=g.num_classes, task=g.task)


def model_of(kind: str, g: Graph, **options: object) -> Model:
    if kind == "gcn":
        return scrambled(GCN(g.num_features, 7, g.num_classes, **{"num_layers": 3, "input": "embedding", **options}))
    options = {"input": "embedding", "tol": 1e-13, "kappa": 0.8, "start": "identity", **options}
    model = RecGCN(g.num_features, 7, g.num_classes, **options)
    model = scrambled(model)
    model.prepare(gcn_norm(g.adj, torch.float64))
    return model


def test_the_gradient_is_that_of_plain_torch() -> None:
    """dL/dE of a two-layer GCN, written with dense matrices in the user's numbering."""
    g = bare_graph()
    model = model_of("gcn", g, num_layers=2)
    run = FullBatch().bind(g, model)
    got = run.gradient(next(run.batches()))
    P = gcn_norm(g.adj, torch.float64).to_dense()
    E = model.lin_in.weight.detach().clone().requires_grad_()
    one, two = (model.layers[l].lin for l in range(2))
    h = (P @ E @ one.weight.t() + one.bias).relu()
    logits = P @ h @ two.weight.t() + two.bias
    F.cross_entropy(logits[g.train], g.y[g.train]).backward()
    torch.testing.assert_close(got["lin_in.weight"], E.grad, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize(
    ("kind", "name"), [*(("gcn", m) for m in DIVIDED), *(("recgcn", m) for m in ONE_PART_RECURRENT)]
)
def test_one_part_is_the_full_gradient(kind: str, name: str, multi_label: bool) -> None:
    g = bare_graph(multi_label)
    model = model_of(kind, g)
    run = (CONVOLUTIONAL | RECURRENT)[name]().bind(g, model, torch.zeros(g.num_nodes, dtype=torch.int64))
    assert worst_error(sweep(run), full_gradient(g, model)) < (1e-12 if kind == "gcn" else 1e-8)


@pytest.mark.parametrize("redraw", [False, True])
@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("gcn", LMC4Conv(alpha=0.0, clusters_per_batch=1)),
        ("gcn", CMC(clusters_per_batch=1, adjoints=True)),
        ("recgcn", LMC4Rec(clusters_per_batch=1)),
    ],
    ids=["lmc", "cmc", "lmc4rec"],
)
def test_exact_histories_give_the_full_gradient(kind: str, method: lmc.methods.Method, redraw: bool) -> None:
    g = bare_graph()
    model = model_of(kind, g)
    run = dataclasses.replace(method, redraw=redraw).bind(g, model, parts_of(g))
    run.refresh()
    want = full_gradient(g, model)
    for _ in range(2):
        assert worst_error(sweep(run), want) < (1e-10 if kind == "gcn" else 1e-8)


def test_gas_takes_the_gradient_from_every_row_that_core_rows_read() -> None:
    """With one layer GAS drops nothing: the terms P_ij v_i of core rows i add up to the full gradient."""
    g = bare_graph()
    model = model_of("gcn", g, num_layers=1)
    run = GAS(clusters_per_batch=1).bind(g, model, parts_of(g))
    batch = next(run.batches())
    assert batch.num_halo
    grad = run.gradient(batch)["lin_in.weight"]
    assert set(grad.abs().sum(1).nonzero().squeeze(1).tolist()) <= set(batch.n_id.tolist())
    assert worst_error(sweep(run), full_gradient(g, model)) < 1e-12


def test_lmc_changes_core_rows_alone() -> None:
    g = bare_graph()
    run = LMC4Conv(clusters_per_batch=1).bind(g, model_of("gcn", g), parts_of(g))
    run.refresh()
    batch = next(run.batches())
    rows = run.gradient(batch)["lin_in.weight"].abs().sum(1).nonzero().squeeze(1)
    assert set(rows.tolist()) <= set(batch.n_id[: batch.num_core].tolist())


def test_the_identity_as_features_is_an_embedding_in_the_first_weights() -> None:
    """P I W^T = P W^T: a GCN on the identity is the one-layer-shorter map of E = W^T, and has its gradient."""
    g = bare_graph()
    plain = scrambled(GCN(g.num_features, 7, g.num_classes))
    dense = dataclasses.replace(g, x=torch.eye(g.num_nodes, dtype=torch.float64))
    for method in (FullBatch(), LMC4Conv(4, 2)):
        a, b = (method.bind(each, plain, parts_of(g), seed=1) for each in (g, dense))
        assert worst_error(sweep(a), sweep(b)) < 1e-12
    recurrent = model_of("recgcn", g, input="features")
    embedded = model_of("recgcn", g)
    with torch.no_grad():
        embedded.load_state_dict(
            {k: recurrent.state_dict()[k] for k in embedded.state_dict() if k != "lin_in.weight"}
            | {"lin_in.weight": recurrent.lin_in.weight.t() + recurrent.lin_in.bias}
        )
    torch.testing.assert_close(lmc.predict(recurrent, g), lmc.predict(embedded, g), rtol=1e-10, atol=1e-12)
    one, other = (full_gradient(g, model) for model in (recurrent, embedded))
    torch.testing.assert_close(one["lin_in.weight"].t(), other["lin_in.weight"], rtol=1e-7, atol=1e-12)


def test_an_embedding_is_trained_saved_and_loaded(tmp_path: object) -> None:
    g = bare_graph(multi_label=True)
    for name, method in (("gcn", LMC4Conv(4, 2)), ("recgcn", LMC4Rec(4, 2))):
        cls = GCN if name == "gcn" else RecGCN
        model = cls(g.num_features, 6, g.num_classes, input="embedding")
        folder = f"{tmp_path}/{name}"
        record = lmc.fit(g, model, method, 3, run_dir=folder, metrics="topk-f1", device="cpu")
        assert record.config["metrics"] == ["top-k-micro-f1"]
        again, _, _ = lmc.load_run(folder)
        assert torch.equal(lmc.predict(again, g), lmc.predict(model, g))


def test_what_does_not_fit_is_refused() -> None:
    g, other = bare_graph(), random_graph()
    assert without_features(g)
    assert not without_features(other)
    assert "no features" in repr(g)
    with pytest.raises(ConfigError, match="a graph without features"):
        FullBatch().bind(other, GCN(other.num_features, 4, 4, input="embedding"))
    with pytest.raises(ConfigError, match="features for inductive training"):
        FullBatch().bind(g, GCN(g.num_features, 4, 4), inductive=True)
    with pytest.raises(ConfigError, match="linear_in or input"):
        GCN(8, 4, 4, linear_in=True, input="embedding")
    with pytest.raises(ConfigError, match="input"):
        GCN(8, 4, 4, input="onehot")
    with pytest.raises(lmc.errors.GraphError, match="x"):
        Graph.from_edges(torch.zeros(2, 0, dtype=torch.int64), None)
