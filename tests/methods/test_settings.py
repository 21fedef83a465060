"""Settings that make no sense are refused, with what was expected and what came."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import pytest
import torch

from helpers import CONVOLUTIONAL, PARTS, full_gradient, hand_graph, make, model_for, random_graph, sweep, worst_error
from lmc.errors import ConfigError, LmcError
from lmc.methods import (
    GAS,
    LADIES,
    METHODS,
    BackwardSGD,
    ClusterGCN,
    DropEdge,
    GraphFM,
    GraphFMIB,
    GraphSAGE,
    GraphSAINT,
    LMC4Conv,
    Method,
    ShaDow,
)
from lmc.models import GCN, GCNII, Model
from lmc.stores import Placement

BAD: list[tuple[type[Method], dict[str, Any], str]] = [
    (LMC4Conv, {"alpha": 1.2}, r"alpha in \[0, 1\] \(got 1.2\)"),
    (LMC4Conv, {"alpha": -0.1}, r"alpha in \[0, 1\] \(got -0.1\)"),
    (LMC4Conv, {"alpha": float("nan")}, "alpha"),
    (LMC4Conv, {"score": "x^3"}, r"score in .*'x\^2'.*\(got 'x\^3'\)"),
    (LMC4Conv, {"cut": "middle"}, r'cut "before" or "after" \(got \'middle\'\)'),
    (LMC4Conv, {"first_layer": "half"}, r'first_layer "complete" or "pruned" \(got \'half\'\)'),
    (GraphFM, {"momentum": 1.5}, r"momentum in \[0, 1\] \(got 1.5\)"),
    (GraphFM, {"momentum": -1.0}, r"momentum in \[0, 1\]"),
    (Placement, {"history": "tape"}, "expected history in"),
    (Placement, {"features": "tape"}, "expected features in"),
    (GAS, {"num_parts": 2.5}, r"num_parts to be a whole number \(got 2.5\)"),
    (GAS, {"partition": "metsi"}, r"partition in .*metis.* \(got 'metsi'\)"),
    (GAS, {"num_parts": 0}, r"num_parts of at least 1 \(got 0\)"),
    (BackwardSGD, {"clusters_per_batch": -2}, r"clusters_per_batch of at least 1 \(got -2\)"),
    (ClusterGCN, {"num_parts": 4, "clusters_per_batch": 5}, r"clusters_per_batch of at most num_parts = 4 \(got 5\)"),
    (GraphSAGE, {"batch_size": 0}, r"batch_size of at least 1 \(got 0\)"),
    (GraphSAGE, {"fanouts": (10, 0)}, r"fanouts of at least 1 \(got 0\)"),
    (GraphSAGE, {"fanouts": 2.5}, r"fanouts to be a whole number"),
    (GraphSAGE, {"first_layer": "pruned"}, r'first_layer "complete" or "sampled" \(got \'pruned\'\)'),
    (GraphFMIB, {"momentum": 2.0}, r"momentum in \[0, 1\]"),
    (LADIES, {"layer_size": -3}, r"layer_size .* \(got -3\)"),
    (GraphSAINT, {"sampler": "star"}, r"sampler in .*'walk'.*\(got 'star'\)"),
    (GraphSAINT, {"size": 0}, r"size of at least 1 \(got 0\)"),
    (ShaDow, {"depth": 3, "fanouts": (5, 5)}, r"one fan-out for each of 3 hops \(got 2\)"),
    (ShaDow, {"normalise": "none"}, r'normalise "subgraph" or "graph"'),
    (DropEdge, {"p": 1.0}, r"p in \[0, 1\) \(got 1.0\)"),
    (DropEdge, {"inner": "gas"}, r"a method to wrap.*\(got 'gas'\)"),
    (DropEdge, {"inner": DropEdge()}, "drops no edges yet"),
    (DropEdge, {"inner": METHODS["sign"]()}, "aggregates in every step"),
]


@pytest.mark.parametrize(("kind", "settings", "message"), BAD, ids=lambda value: getattr(value, "__name__", str(value)))
def test_bad_settings_are_refused(kind: type[Method] | type[Placement], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**settings)


def test_an_unknown_partitioner_is_refused() -> None:
    g = random_graph()
    with pytest.raises(ConfigError, match=r"metis.*'scissors'"):
        GAS(num_parts=4, partition="scissors").bind(g, make("gcn", g))


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LMC4Conv().alpha = 0.9  # type: ignore[misc]


@pytest.mark.parametrize("name", METHODS)
def test_names_and_descriptions_are_there(name: str) -> None:
    cls = METHODS[name]
    assert cls.traits.name == name
    assert cls.traits.title
    assert (sys.modules[cls.__module__].__doc__ or "").splitlines()[0].endswith(".")
    assert cls.traits.outside


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


ONE_BATCH = {"full", "graphsage", "vrgcn", "fm-ib", "fastgcn", "ladies", "shadow", "sign"}
"""Methods whose default batch is the whole of a small graph, or of its training nodes."""
EXACT = ONE_BATCH - {"vrgcn", "shadow"} | {"backward-sgd"}
"""Methods whose default is then the full gradient: VR-GCN samples two neighbours, ShaDow renormalises its subgraphs."""
NEAR = {"vrgcn": 0.99, "lmc": 0.98, "cmc": 0.98, "shadow": 0.9, "gas": 0.85, "fm": 0.85, "cluster": 0.6}
"""Least cosine of the mean gradient and the full one; GraphSAINT's, of few draws, is 0.67."""


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_defaults_divide_a_small_graph_and_train(name: str) -> None:
    """Ten parts by two, or all seeds at once; with exact tables the mean gradient has the size and the direction of the
    full one."""
    g = random_graph()
    model = make(model_for(name), g)
    run = METHODS[name]().bind(g, model)
    assert run.num_batches == (1 if name in ONE_BATCH else 4 if name == "graphsaint" else 5)
    if name != "graphsaint":  # whose subgraphs overlap
        met = torch.cat([batch.n_id[: batch.num_core] for batch in run.batches(0)])
        assert met.unique().numel() == met.numel()
        assert bool(torch.isin(g.train.nonzero().squeeze(1), met).all())
    run.refresh()
    want = full_gradient(g, model)
    epochs = [sweep(run) for _ in range(10)]
    got = {k: torch.stack([grads[k] for grads in epochs]).mean(0) for k in want}
    if name in EXACT:
        assert worst_error(got, want) < 1e-10
        return
    a, b = (torch.cat([grads[k].flatten() for k in want]) for grads in (got, want))
    assert NEAR.get(name, 0.5) < float(a @ b / (a.norm() * b.norm())) < 1 - 1e-6
    # TOP fits a map of 7 columns to the 8 rows of a batch, at random parameters, almost without a ridge
    assert 0.6 < float(a.norm() / b.norm()) < (1.5 if name == "top" else 1.2)


@pytest.mark.parametrize(("num_parts", "per_batch"), [(1, 1), (2, 2), (16, 2), (24, 3), (40, 5)])
def test_a_batch_has_an_eighth_of_the_parts_by_default(num_parts: int, per_batch: int) -> None:
    """And two of them at least, where there are two."""
    g = random_graph()
    run = GAS(num_parts=num_parts, partition="random").bind(g, make("gcn", g))
    assert run.clusters.per_batch == per_batch
    assert run.num_batches == num_parts // per_batch
