"""Messages, memory and staleness."""

from __future__ import annotations

import pytest
import torch

import lmc
from lmc.diagnostics import memory, messages_kept, staleness
from lmc.methods import GAS, BackwardSGD, ClusterGCN, FullBatch, LMC4Conv
from lmc.partition import partition, quality
from lmc.stores import Placement


@pytest.fixture(scope="module")
def graph() -> lmc.Graph:
    return lmc.load("tiny-like")


def model_for(g: lmc.Graph, width: int = 16) -> lmc.models.Model:
    return lmc.models.GCN(g.num_features, width, g.num_classes, num_layers=3)


def test_messages_kept_are_those_of_the_papers_table(graph: lmc.Graph) -> None:
    parts = partition(graph, 10)
    inside = quality(graph, parts).kept * 2 * graph.num_edges + graph.num_nodes  # and every self-loop
    share = inside / (2 * graph.num_edges + graph.num_nodes)
    expected = {
        FullBatch(): (1.0, 1.0),
        BackwardSGD(10, 1): (1.0, 1.0),
        ClusterGCN(10, 1): (share, share),
        GAS(10, 1): (1.0, share),
        LMC4Conv(10, 1): (1.0, 1.0),
        LMC4Conv(10, 1, alpha=0.0): (1.0, 1.0),
        LMC4Conv(10, 1, backward=False): (1.0, share),
    }
    for method, (forward, backward) in expected.items():
        run = method.bind(graph, model_for(graph), parts=None if method.traits.name == "full" else parts)
        kept = messages_kept(run)
        assert (kept.forward, kept.backward) == pytest.approx((forward, backward)), method
        assert run.epoch == 0


def test_refreshed_histories_are_exact_and_other_parameters_make_them_stale(graph: lmc.Graph) -> None:
    run = LMC4Conv(10, 2, first_layer="pruned").bind(graph, model_for(graph).double())
    run.refresh()
    fresh = staleness(run)
    assert fresh.H.keys() == {1, 2, 3}
    assert fresh.V.keys() == {1, 2}
    assert max([*fresh.H.values(), *fresh.V.values()]) < 1e-12
    with torch.no_grad():
        for p in run.parameters.values():
            p.add_(0.1)
    old = staleness(run)
    assert min([*old.H.values(), *old.V.values()]) > 1e-3


def test_memory_names_the_tier_of_the_histories(graph: lmc.Graph) -> None:
    for tier in ("device", "host"):
        run = LMC4Conv(10, 2).bind(graph, model_for(graph), placement=Placement(history=tier))
        used = memory(run, next(run.batches()))
        # layer 1 is complete and needs no history: H[2] and V[2] of width 16, H[3] of the classes
        assert used.tiers == {tier: graph.num_nodes * (16 + 16 + graph.num_classes) * 4}
        assert used.parameters == sum(p.numel() for p in run.parameters.values()) * 4


@pytest.mark.parametrize("method", [GAS, LMC4Conv, ClusterGCN])
def test_memory_of_a_step_does_not_grow_with_the_graph(method: type[GAS]) -> None:
    def peak(scale: float) -> float:
        g = lmc.load("tiny-like", scale=scale)
        run = method(num_parts=int(10 * scale), clusters_per_batch=1).bind(g, model_for(g, 64))
        batches = list(run.batches())
        rows = sum(b.num_core + b.num_halo for b in batches) / len(batches)
        return sum(memory(run, b).step for b in batches) / len(batches) / rows

    # parts have the same size, so the memory of a step per row does not grow on a graph four times as large
    assert peak(4.0) < 1.25 * peak(1.0)


def test_one_aggregation_of_the_features_keeps_every_message(graph: lmc.Graph) -> None:
    model = lmc.models.GCN(graph.num_features, 8, graph.num_classes, num_layers=1)
    run = GAS(10, 1).bind(graph, model)
    assert messages_kept(run) == lmc.diagnostics.Messages(1.0, 1.0)
    assert run.epoch == 0
