"""The recommended method: the rule, the facts it reads, and that the method trains the model."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import lmc
from lmc.diagnostics import Facts, choose, recommended
from lmc.diagnostics.choice import (
    IN_CACHE,
    LARGE_HALO,
    ROWS_PER_COLUMN,
    ROWS_WITH_BATCH_NORM,
    SMALL_HALO,
    SMALL_NONLINEAR_STEP,
    SMALL_STEP,
    multiply_adds,
    settings_for,
)
from lmc.errors import ConfigError
from lmc.methods import CMC, GAS, IMC, SIGN, FullBatch, LMC4Rec, Method
from lmc.models import Model

LARGE = Facts("layered", True, "cpu", 10 * SMALL_STEP, True, 8, 2 * ROWS_PER_COLUMN, halo=SMALL_HALO)
NEAR = replace(LARGE, halo=SMALL_HALO - 0.1)  # batches with a small halo
ON_GPU = replace(LARGE, on="cuda", step=1.5e9)  # arxiv-like, width 256
FEW = replace(LARGE, rows_per_column=ROWS_PER_COLUMN - 1)
FEWER = replace(LARGE, rows_per_column=ROWS_WITH_BATCH_NORM - 1, batch_norm=True)
FEW_NEAR = replace(FEWER, halo=NEAR.halo)


@pytest.mark.parametrize(
    ("facts", "cls", "reason"),
    [
        (LARGE, IMC, "few halo rows or none"),
        (replace(LARGE, step=SMALL_STEP), FullBatch, "its step of 7e+06 multiply-adds takes less time"),
        (replace(LARGE, step=SMALL_STEP, fits=False), IMC, "few halo rows or none"),
        (replace(LARGE, step=SMALL_STEP, batch_norm=True), FullBatch, "takes less time"),
        (replace(NEAR, step=SMALL_STEP), FullBatch, "takes less time"),
        (replace(NEAR, step=SMALL_STEP, batch_norm=True), IMC, "few halo rows or none"),
        (replace(LARGE, batch_norm=True), IMC, "few halo rows or none"),
        (NEAR, GAS, "the halo is small"),
        (replace(NEAR, batch_norm=True), IMC, "few halo rows or none"),
        (replace(NEAR, on="cuda", step=1.5e9), IMC, "few halo rows or none"),
        (FEW, FullBatch, "batches with 22 core rows for each hidden column need many epochs"),
        (replace(FEW, halo=NEAR.halo), FullBatch, "need many epochs"),
        (replace(FEW, batch_norm=True), IMC, "22 core rows for each hidden column fit its map"),
        (replace(FEW, batch_norm=True, on="cuda", fits=False), GAS, "22 core rows for each hidden column do not suit"),
        (FEWER, FullBatch, "need many epochs"),
        (FEW_NEAR, IMC, "little comes from outside"),
        (replace(FEW_NEAR, on="cuda", fits=False), GAS, "the halo is not large"),
        (replace(FEW_NEAR, sparse_sum=True), FullBatch, "sparse features do not suit IMC"),
        (replace(LARGE, sparse_sum=True), FullBatch, "sparse features do not suit IMC"),
        (ON_GPU, IMC, "few halo rows or none"),
        (replace(ON_GPU, batches=20), IMC, "few halo rows or none"),  # arxiv-like 80/4
        (replace(ON_GPU, batches=20, batch_norm=True), FullBatch, "full batch fits"),
        (replace(ON_GPU, batches=20, rows_per_column=FEW.rows_per_column), FullBatch, "full batch fits"),
        (replace(ON_GPU, batches=30), FullBatch, "full batch fits"),
        (replace(ON_GPU, batches=20, step=1e10), IMC, "few halo rows or none"),
        (replace(ON_GPU, batches=12, step=1e8), FullBatch, "full batch fits"),
        (replace(ON_GPU, batches=10, step=2.6e9), IMC, "few halo rows or none"),
        (replace(ON_GPU, batches=10, step=2.6e9 * IN_CACHE, rows_per_column=18), FullBatch, "fits"),  # reddit-like@0.2
        (replace(LARGE, linear=False), GAS, "not linear"),
        (replace(LARGE, linear=False, step=SMALL_NONLINEAR_STEP), FullBatch, "full batch fits"),
        (replace(LARGE, sparse_sum=True, fits=False, halo=LARGE_HALO), CMC, "sparse features"),
        (replace(FEW, fits=False, halo=LARGE_HALO), CMC, "the halo is large"),
        (replace(FEW, fits=False, halo=LARGE_HALO - 0.1), GAS, "the halo is not large"),
        (replace(FEW, kind="recurrent"), LMC4Rec, "recurrent"),
        (replace(LARGE, kind="sign"), SIGN, "before training"),
    ],
)
def test_the_rule(facts: Facts, cls: type[Method], reason: str) -> None:
    chosen, why = choose(facts)
    assert chosen is cls
    assert reason in why
    assert "\n" not in why


@pytest.fixture(scope="module")
def graph() -> lmc.Graph:
    return lmc.load("tiny-like")


def gcn(g: lmc.Graph, hidden: int = 8) -> Model:
    return lmc.models.GCN(g.num_features, hidden, g.num_classes)


def test_a_small_graph_is_trained_whole_unless_parts_are_asked_for_or_memory_is_short(graph: lmc.Graph) -> None:
    assert isinstance(recommended(gcn(graph), graph).method, FullBatch)
    found = recommended(gcn(graph), graph, num_parts=10, clusters_per_batch=8)
    assert found.method == GAS(10, 8)
    assert found.facts.rows_per_column == pytest.approx(1500 * 0.8 / 8)
    assert not isinstance(recommended(gcn(graph), graph, partition="random").method, FullBatch)
    assert not isinstance(recommended(gcn(graph), graph, memory=1).method, FullBatch)
    assert not isinstance(recommended(gcn(graph), graph, lmc.Placement(structure="host")).method, FullBatch)


def test_imc_sums_no_columns_of_features_on_a_cpu() -> None:
    assert settings_for(LARGE) == settings_for(FEW_NEAR) == {"basis": "T"}
    assert settings_for(NEAR) == settings_for(replace(LARGE, linear=False)) == settings_for(ON_GPU) == {}
    g = lmc.load("arxiv-like", scale=0.02)
    model = lmc.models.GCN(g.num_features, 8, g.num_classes, num_layers=3, norm="batch")
    found = recommended(model, g, lmc.Placement(device="cpu"), num_parts=10, clusters_per_batch=5)
    assert found.method == IMC(10, 5, basis="T")


def test_multiply_adds_on_rows_in_the_cache_count_less(graph: lmc.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = gcn(graph, 64), graph.num_nodes * 64 * 4
    every = (graph.adj.nnz + graph.num_nodes) * sum(model.widths)
    assert multiply_adds(model, graph, torch.device("cpu")) == every
    for cache, share in ((rows, IN_CACHE), (rows - 1, 1)):
        found = SimpleNamespace(L2_cache_size=cache)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, found=found: found)
        assert multiply_adds(model, graph, torch.device("cuda")) == pytest.approx(every * share)


def test_the_halo_is_measured_where_it_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    found, g = list[float | None](), lmc.load("arxiv-like", scale=0.05)
    monkeypatch.setattr("lmc.diagnostics.choice.halo_ratio", lambda *_: 0.5)
    for norm, width in (("layer", 16), ("layer", 192), ("batch", 16), ("batch", 192)):
        model = lmc.models.GCN(g.num_features, width, g.num_classes, num_layers=3, norm=norm)
        found.append(recommended(model, g, lmc.Placement(device="cpu")).facts.halo)
    assert found == [0.5, None, None, 0.5]
    gat = lmc.models.GAT(g.num_features, 8, g.num_classes)
    assert recommended(gat, g, lmc.Placement(device="cpu")).facts.halo is None


def test_small_batches_are_measured_by_their_halo(graph: lmc.Graph) -> None:
    found = recommended(gcn(graph, 64), graph, num_parts=10, clusters_per_batch=1)
    assert found.facts.halo is not None
    assert 0.5 < found.facts.halo < LARGE_HALO
    assert isinstance(found.method, GAS)
    scattered = recommended(gcn(graph, 64), graph, num_parts=300, clusters_per_batch=1, partition="random")
    assert scattered.facts.halo is not None
    assert scattered.facts.halo > LARGE_HALO
    assert scattered.method == CMC(300, 1, partition="random")


@pytest.mark.parametrize("name", ["gat", "recgcn", "sign", "sage"])
def test_the_recommended_method_trains_the_model(graph: lmc.Graph, name: str) -> None:
    model = lmc.models.MODELS[name](graph.num_features, 8, graph.num_classes)
    parts = {} if name == "sign" else {"num_parts": 4, "clusters_per_batch": 2}
    found = lmc.recommended(model, graph, lmc.Placement(device="cpu"), **parts)
    run = found.method.bind(graph, model, device="cpu")
    run.accumulate(next(run.batches()))


def test_wrong_arguments_are_refused(graph: lmc.Graph) -> None:
    with pytest.raises(ConfigError, match="num_parts"):
        recommended(gcn(graph), graph, num_parts=0)
    with pytest.raises(ConfigError, match=rf"expected a model with {graph.num_features} inputs"):
        recommended(lmc.models.GCN(graph.num_features + 1, 8, graph.num_classes), graph)
    with pytest.raises(ConfigError, match="expected memory of at least 1"):
        recommended(gcn(graph), graph, memory=0)
