"""Settings that make no sense are refused, with what was expected and what came."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from helpers import CONVOLUTIONAL, PARTS, hand_graph, make, model_for, random_graph
from lmc.errors import ConfigError, LmcError
from lmc.methods import (
    CMC,
    GAS,
    LADIES,
    METHODS,
    VRGCN,
    BackwardSGD,
    ClusterGCN,
    DropEdge,
    GraphFM,
    GraphFMIB,
    GraphSAGE,
    GraphSAINT,
    LMC4Conv,
    LMC4Rec,
    Method,
    ShaDow,
    recommended,
)
from lmc.models import GAT, GCN, GCNII, Model, RecGCN

BAD: list[tuple[type[Method], dict[str, Any], str]] = [
    (LMC4Conv, {"alpha": 1.2}, r"alpha in \[0, 1\] \(got 1.2\)"),
    (LMC4Conv, {"alpha": -0.1}, r"alpha in \[0, 1\] \(got -0.1\)"),
    (LMC4Conv, {"alpha": float("nan")}, "alpha"),
    (LMC4Conv, {"score": "x^3"}, r"score in .*'x\^2'.*\(got 'x\^3'\)"),
    (LMC4Conv, {"cut": "middle"}, r'cut "before" or "after" \(got \'middle\'\)'),
    (LMC4Conv, {"first_layer": "half"}, r'first_layer "complete" or "pruned" \(got \'half\'\)'),
    (GraphFM, {"momentum": 1.5}, r"momentum in \[0, 1\] \(got 1.5\)"),
    (GraphFM, {"momentum": -1.0}, r"momentum in \[0, 1\]"),
    (GAS, {"history": "tape"}, "history tier"),
    (GAS, {"num_parts": 2.5}, r"num_parts to be a whole number \(got 2.5\)"),
    (GAS, {"partition": "metsi"}, r"partition in .*metis.* \(got 'metsi'\)"),
    (GAS, {"num_parts": 0}, r"num_parts of at least 1 \(got 0\)"),
    (BackwardSGD, {"clusters_per_batch": -2}, r"clusters_per_batch of at least 1 \(got -2\)"),
    (ClusterGCN, {"num_parts": 4, "clusters_per_batch": 5}, r"clusters_per_batch of at most num_parts = 4 \(got 5\)"),
    (GraphSAGE, {"batch_size": 0}, r"batch_size to be a whole number of at least 1 \(got 0\)"),
    (GraphSAGE, {"fanouts": (10, 0)}, r"fanouts to be a whole number of at least 1 \(got 0\)"),
    (GraphSAGE, {"fanouts": 2.5}, r"fanouts to be a whole number"),
    (GraphSAGE, {"first_layer": "pruned"}, r'first_layer "complete" or "sampled" \(got \'pruned\'\)'),
    (VRGCN, {"history": "tape"}, "history tier"),
    (GraphFMIB, {"momentum": 2.0}, r"momentum in \[0, 1\]"),
    (LADIES, {"layer_size": -3}, r"layer_size .* \(got -3\)"),
    (GraphSAINT, {"sampler": "star"}, r"sampler in .*'walk'.*\(got 'star'\)"),
    (GraphSAINT, {"size": 0}, r"size to be a whole number of at least 1 \(got 0\)"),
    (ShaDow, {"depth": 3, "fanouts": (5, 5)}, r"one fan-out for each of 3 hops \(got 2\)"),
    (ShaDow, {"normalise": "none"}, r'normalise "subgraph" or "graph"'),
    (DropEdge, {"p": 1.0}, r"p in \[0, 1\) \(got 1.0\)"),
    (DropEdge, {"inner": "gas"}, r"a method to wrap.*\(got 'gas'\)"),
    (DropEdge, {"inner": DropEdge()}, "drops no edges yet"),
    (DropEdge, {"inner": METHODS["sign"]()}, "aggregates in every step"),
]


@pytest.mark.parametrize(("kind", "settings", "message"), BAD, ids=lambda value: getattr(value, "__name__", str(value)))
def test_bad_settings_are_refused(kind: type[Method], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**settings)


def test_an_unknown_partitioner_is_refused() -> None:
    g = random_graph()
    with pytest.raises(ConfigError, match=r"metis.*'scissors'"):
        GAS(num_parts=4, partition="scissors").bind(g, make("gcn", g))


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LMC4Conv().alpha = 0.9  # type: ignore[misc]


def test_the_recommended_method_trains_the_model() -> None:
    assert recommended(GCN(4, 4, 2)) is CMC
    assert recommended(GAT(4, 4, 2)) is LMC4Conv
    assert recommended(RecGCN(4, 4, 2)) is LMC4Rec


@pytest.mark.parametrize("name", METHODS)
def test_names_and_descriptions_are_there(name: str) -> None:
    cls = METHODS[name]
    assert cls.name == name
    assert cls.title
    assert cls.paper
    assert cls.outside


def test_more_clusters_than_parts_of_an_assignment_are_refused() -> None:
    g = hand_graph()
    with pytest.raises(ConfigError, match=r"clusters_per_batch of at most 3 parts \(got 4\)"):
        GAS(clusters_per_batch=4).bind(g, make("gcn", g), PARTS)


def test_an_assignment_that_disagrees_with_num_parts_is_refused() -> None:
    g = hand_graph()
    with pytest.raises(ConfigError, match=r"4 parts \(got 3 parts\)"):
        GAS(num_parts=4).bind(g, make("gcn", g), PARTS)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (PARTS[:7], r"\[8\] \(got shape \[7\]\)"),
        (PARTS.double(), "whole part numbers"),
        (PARTS - 1, "numbered from 0"),
        (PARTS * 2, "part 1 empty"),
    ],
    ids=["too short", "fractions", "negative", "gap"],
)
@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_a_bad_assignment_is_refused(name: str, parts: torch.Tensor, message: str) -> None:
    g = hand_graph()
    with pytest.raises(LmcError, match=message):
        METHODS[name]().bind(g, make(model_for(name), g), parts)


OUTPUTS: dict[str, Model] = {
    "gcn": GCN(5, 4, 2),
    "gcn with a linear out": GCN(5, 4, 2, linear_out=True),
    "gcnii": GCNII(5, 4, 2),
    "too many": GCN(5, 4, 9),
    "too many, linear out": GCNII(5, 4, 9),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_a_model_with_the_wrong_number_of_outputs_is_refused(case: str) -> None:
    with pytest.raises(ConfigError, match=r"3 outputs .*\(got [29]\)"):
        GAS().bind(hand_graph(), OUTPUTS[case], PARTS)


@pytest.mark.parametrize(
    "model", [GCN(6, 4, 3), GCN(6, 4, 3, linear_in=True), GCNII(6, 4, 3)], ids=["gcn", "linear in", "gcnii"]
)
def test_a_model_with_the_wrong_number_of_inputs_is_refused(model: Model) -> None:
    with pytest.raises(ConfigError, match=r"5.*\(got 6\)"):
        GAS().bind(hand_graph(), model, PARTS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu_is_said() -> None:
    g = hand_graph()
    with pytest.raises(ConfigError, match="no GPU is visible"):
        GAS().bind(g, make("gcn", g), PARTS, device="cuda")


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_defaults_divide_a_small_graph_and_train(name: str) -> None:
    g = random_graph()
    run = METHODS[name]().bind(g, make(model_for(name), g))
    for batch in run.batches():
        assert bool(run.accumulate(batch).loss.isfinite())
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in run.problem.model.parameters())
