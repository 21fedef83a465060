"""Which graphs and divisions are measured, and how lines become curves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import lmc
from lmc.bench import Setup
from lmc.cli.scale import OneGraph, Scale, ScaleCell, ScaleRecord, measure_cell, over_clusters, over_sizes, slope
from lmc.errors import ConfigError
from lmc.methods import GAS, FullBatch

SIZES = Scale(
    dataset="tiny-like", scales="0.1,0.4,1.6", parts=32, clusters=2, sweep="1,2,4", at=0.4, methods="full,gas",
    device="cpu",
)  # fmt: skip
LINE = ScaleRecord(
    0.4,
    "gas",
    "8/2",
    nodes=40,
    edges=200,
    steps=4,
    ms=3.0,
    entries=2.0,
    halo_ratio=1.0,
    core=2,
    halo=2,
    step=5,
    lives=7,
    away={},
)


def test_parts_keep_their_size() -> None:
    assert [SIZES.parts_at(scale) for scale in SIZES.sizes] == [2, 8, 32]
    assert SIZES.cells() == [
        ScaleCell(0.1, "full"), ScaleCell(0.1, "gas", "2/2"),
        ScaleCell(0.4, "full"),
        ScaleCell(0.4, "gas", "8/1"), ScaleCell(0.4, "gas", "8/2"), ScaleCell(0.4, "gas", "8/4"),
        ScaleCell(1.6, "full"), ScaleCell(1.6, "gas", "32/2"),
    ]  # fmt: skip


def test_more_clusters_than_parts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"at most 2 clusters a batch at scale 0.1 \(got 3\)"):
        replace(SIZES, clusters=3).cells()
    with pytest.raises(ConfigError, match=r"at most 8 clusters a batch at scale 0.4 \(got 9\)"):
        replace(SIZES, sweep="1,9").cells()
    with pytest.raises(ConfigError, match=r"--at to be one of --scales 0.1, 0.4, 1.6 \(got 0.5\)"):
        replace(SIZES, at=0.5).cells()


def test_a_power_is_found() -> None:
    assert slope([1, 2, 8], [3, 12, 192]) == pytest.approx(2)
    assert slope([1, 10], [5, 5]) == pytest.approx(0)
    assert slope([3], [1]) is None


def test_curves_are_of_one_kind() -> None:
    larger, swept = replace(LINE, scale=1.6, config="32/2", edges=800), replace(LINE, config="8/1")
    full = replace(LINE, method="full", config="-")
    records = [larger, LINE, swept, full]
    assert over_sizes(records, 2) == {"gas": [LINE, larger], "full": [full]}
    assert over_clusters(records, 0.4) == {"gas": [swept, LINE]}
    assert (LINE.peak, LINE.ms_per_million) == (12, 15000.0)


def test_one_graph_is_kept_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    load = lmc.load

    def counting(name: str, scale: float) -> lmc.Graph:
        asked.append(scale)
        return load(name, scale=scale)

    monkeypatch.setattr("lmc.data.load", counting)
    graphs = OneGraph("tiny-like")
    assert [graphs(scale).num_nodes for scale in (0.2, 0.2, 0.3, 0.2)] == [300, 300, 450, 300]
    assert asked == [0.2, 0.3, 0.2]


def test_a_line_is_measured() -> None:
    graph = lmc.load("tiny-like", scale=0.3)
    setup, cpu = Setup(hidden=8, warmup=0, repeat=1), torch.device("cpu")
    full = measure_cell(graph, ScaleCell(0.3, "full"), FullBatch(), setup, cpu)
    r = measure_cell(graph, ScaleCell(0.3, "gas", "6/2"), GAS(6, 2), setup, cpu)
    assert (r.nodes, r.edges, r.steps, r.clusters, full.clusters) == (450, graph.num_edges, 3, 2, None)
    assert r.ms > 0
    assert 0 < r.step < full.step
    assert r.lives > full.lives  # histories
    assert full.entries == 1
