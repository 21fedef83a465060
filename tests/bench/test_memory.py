"""What a run is said to hold, against what it is known to hold, and against its plan."""

from __future__ import annotations

import pytest
import torch

import lmc
from lmc.bench import Setup
from lmc.bench.memory import MemoryCell, footprint, holds, live_tensors, measure_cell
from lmc.methods import CMC, GAS, BackwardSGD, ClusterGCN, FullBatch, GraphSAGE, LMC4Conv, Method

CPU = torch.device("cpu")
SETUP = Setup(hidden=64, layers=3)


@pytest.fixture(scope="module")
def graph() -> lmc.Graph:
    return lmc.load("arxiv-like", scale=0.03)


def test_tensors_are_found_through_objects_and_containers_once() -> None:
    a = torch.zeros(3)
    module = torch.nn.Linear(2, 2)
    found = live_tensors({"x": [a, (a, {a})], "m": module, "text": "no", "nothing": None})
    assert {id(t) for t in found} == {id(a), id(module.weight), id(module.bias)}
    assert len(found) == 3


def test_a_view_counts_as_the_memory_it_keeps_alive(graph: lmc.Graph) -> None:
    run = FullBatch().bind(graph, lmc.models.GCN(graph.num_features, 4, graph.num_classes))
    optimizer = torch.optim.Adam(run.problem.model.parameters())
    before, _ = holds(run, optimizer)
    whole = torch.zeros(1000)
    run.numbers["view"] = whole[:1]
    run.numbers["other"] = whole[5:]
    assert holds(run, optimizer)[0] - before == 4000


@pytest.mark.parametrize(
    ("method", "tier"),
    [
        (FullBatch(), "device"),
        (ClusterGCN(8, 2), "device"),
        (GAS(8, 2), "device"),
        (LMC4Conv(8, 2), "disk"),
        (CMC(8, 2), "device"),
        (CMC(8, 1), "disk"),
    ],
    ids=lambda v: v if isinstance(v, str) else v.traits.name,
)
def test_what_is_predicted_is_measured(graph: lmc.Graph, method: Method, tier: str) -> None:
    r = measure_cell(graph, MemoryCell("m", "8/2", tier), method, SETUP, CPU)
    assert r.step_error == pytest.approx(0, abs=0.15)
    assert r.lives_error == pytest.approx(0, abs=0.05)
    assert r.away == r.predicted_away
    assert ("disk" in r.away) == (tier == "disk")


@pytest.mark.parametrize("method", [BackwardSGD(8, 2), GraphSAGE(5, batch_size=100)], ids=["backward-sgd", "graphsage"])
def test_what_has_no_plan_is_measured(graph: lmc.Graph, method: Method) -> None:
    r = measure_cell(graph, MemoryCell("m"), method, SETUP, CPU)
    assert r.step > 0 < r.lives
    assert (r.predicted_step, r.predicted_lives, r.step_error, r.lives_error) == (None,) * 4


def test_smaller_batches_take_smaller_steps_and_the_same_tables(graph: lmc.Graph) -> None:
    found = [
        footprint(GAS(8, c).bind(graph, lmc.models.GCN(graph.num_features, 32, graph.num_classes, num_layers=3)), 0.01)
        for c in (4, 1)
    ]
    assert found[0].step > 1.5 * found[1].step
    assert found[0].lives == pytest.approx(found[1].lives, rel=0.2)
    assert [f.steps for f in found] == [2, 8]
    assert all(f.peak == f.step + f.lives for f in found)


@pytest.mark.gpu
@pytest.mark.parametrize("tier", ["device", "host", "disk"])
@pytest.mark.parametrize("cls", [GAS, LMC4Conv, CMC])
def test_what_is_predicted_is_measured_on_a_gpu(cls: type[GAS], tier: str) -> None:
    graph = lmc.load("arxiv-like", scale=0.3)
    r = measure_cell(graph, MemoryCell("m", "20/4", tier), cls(20, 4), Setup(hidden=128), torch.device("cuda"))
    assert r.step_error == pytest.approx(0, abs=0.15)
    assert r.lives_error == pytest.approx(0, abs=0.15)
