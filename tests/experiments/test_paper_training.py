"""Groups of methods that are trained in turn, on small graphs."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import pytest
import torch

from experiments.paper import training
from experiments.paper.graphs import Graphs, check_scale, lookalike_of
from experiments.paper.page import amount
from experiments.paper.training import NO_TIME, Group, Training, divided, due, method_of, model_of, preset_of
from lmc.errors import ConfigError
from lmc.methods import LMC4Conv, LMC4Rec

CPU = torch.device("cpu")
PARTS = {"num_parts": 20, "clusters_per_batch": 10}


@pytest.fixture(scope="module")
def graphs() -> Graphs:
    """Without any folder of real graphs."""
    return Graphs("tiny", CPU)


@pytest.fixture(autouse=True)
def no_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LMC_DATA", raising=False)
    monkeypatch.setattr("lmc.data.registry.cache_dir", lambda: tmp_path / "cache")


def test_real_graphs_are_used_where_they_are_and_lookalikes_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "cora.npz").touch()
    found = Graphs("tiny", CPU, tmp_path)
    assert found.source("cora") == ("cora", "real")
    assert found.source("flickr") == (lookalike_of("flickr", "tiny", "cpu"), "lookalike")


@pytest.mark.parametrize("dataset", ["ogbn-arxiv", "flickr", "reddit", "ppi", "amazon", "ogbn-products", "pubmed"])
def test_a_tiny_lookalike_can_be_drawn(graphs: Graphs, dataset: str) -> None:
    assert graphs.load(dataset)[0].num_nodes < (15_000 if dataset == "amazon" else 4_000)


def test_scales_are_checked() -> None:
    assert lookalike_of("ogbn-arxiv", "0.1", "cpu") == "arxiv-like@0.1"
    assert lookalike_of("ogbn-arxiv", "1", "cpu") == "arxiv-like"
    for wrong in ("small", "0", "-1", "nan"):
        with pytest.raises(ConfigError, match="for --scale"):
            check_scale(wrong)


def test_methods_and_models_are_those_of_the_preset(graphs: Graphs) -> None:
    graph = graphs.load("ogbn-arxiv")[0]
    cell = Training("ogbn-arxiv", "gcn", "lmc", 1)
    preset = preset_of("gcn", "ogbn-arxiv").method
    # the paper's parts are those of METIS, also where the default would choose another partitioner
    assert method_of(cell, "lmc", graph) == (dataclasses.replace(preset, partition="metis", **PARTS), None)
    changed = dataclasses.replace(cell, clusters=1)
    expected = LMC4Conv(num_parts=20, clusters_per_batch=1, partition="metis", alpha=0.4, score="x")
    assert method_of(changed, "lmc:alpha=0.4:score=x:lr=1e-4", graph) == (expected, 1e-4)
    recurrent = Training("cora", "recgcn", "lmc4rec", 1, partition="random")
    assert method_of(recurrent, "lmc4rec", graph)[0] == LMC4Rec(num_parts=10, clusters_per_batch=2, partition="random")
    assert preset_of("recgcn", "cora", random=True).fit_options["lr"] == 0.001
    model = model_of(dataclasses.replace(cell, dropout=0.0), "lmc", graph, max_width=24)
    assert (model.num_layers, model.layers[0].out_width, model.layers[1].dropout) == (3, 24, 0.0)


def test_a_small_graph_has_fewer_parts_with_the_same_share_in_a_batch(graphs: Graphs) -> None:
    graph, cell = graphs.load("reddit")[0], Training("reddit", "gcn", "lmc", 1)
    base = preset_of("gcn", "reddit").method
    assert isinstance(base, LMC4Conv)
    assert divided(cell, base, graph.num_nodes) == (20, 10)
    assert divided(dataclasses.replace(cell, clusters=1), base, graph.num_nodes) == (20, 1)
    assert divided(dataclasses.replace(cell, parts=20 * 232_965 // graph.num_nodes * 2), base, graph.num_nodes)[0] == 40
    assert divided(dataclasses.replace(cell, dataset="cora", parts=10, clusters=2), base, graph.num_nodes) == (10, 2)


def test_evaluations_become_rarer() -> None:
    assert [e for e in range(1, 60) if due(e)] == [*range(1, 40), *range(40, 60, 2)]
    seldom = [*range(1, 13), 14, 15, 16, 18, 20, 22, 24, 26, 29]
    assert [e for e in range(1, 31) if due(e, often=False)] == seldom


def test_all_methods_of_a_group_have_the_same_epochs_and_one_failure_ends_one_method(graphs: Graphs) -> None:
    cell = Training("flickr", "gcn", "gas,lmc,nothing,lmc:score=cube,gas:lr=1e30", 3)
    by_method = {record.method: record for record in Group(cell, graphs, 8, None).train()}
    assert list(by_method) == cell.specs
    for name in ("gas", "lmc"):
        record = by_method[name]
        assert (record.at, len(record.test), record.error) == ([1, 2, 3], 3, None)
        assert record.graph == "flickr-like@0.0179, lookalike"
        assert record.seconds == sorted(record.seconds)
    for name, words in (
        ("nothing", "expected a method of"),
        ("lmc:score=cube", "score"),
        ("gas:lr=1e30", "finite loss"),
    ):
        assert words in (by_method[name].error or ""), by_method[name].error


def test_memory_and_messages_are_measured_without_training(graphs: Graphs) -> None:
    cell = Training("flickr", "gcn", "full,cluster,gas,lmc", 0, clusters=1, probe="memory")
    full, cluster, gas, lmc = records = Group(cell, graphs, 8, None).train()
    assert (full.at, full.chosen, full.error) == ([], None, None)
    assert gas.backward is not None
    assert gas.backward < gas.forward == full.backward == lmc.backward == 1.0
    assert cluster.forward == cluster.backward == gas.backward
    peaks = [record.step_bytes or 0 for record in records]
    assert peaks[0] > peaks[3] >= peaks[2] > peaks[1] > 0


def test_a_group_ends_when_its_time_is_over(graphs: Graphs) -> None:
    cell = Training("flickr", "gcn", "gas,lmc", 10_000)
    records = Group(cell, graphs, 8, 0.5).train()
    assert all(0 < record.at[-1] < 10_000 for record in records)
    assert abs(records[0].at[-1] - records[1].at[-1]) <= 1
    group = Group(cell, graphs, 8, 0.5)
    group.started = time.monotonic() - 10  # as if loading the graph had taken all of the time
    assert [(record.error, record.at) for record in group.train()] == [(NO_TIME, [])] * 2
    over = Group(cell, graphs, 8, None, until=time.monotonic())  # whatever its own time is
    assert [(record.error, record.at) for record in over.train()] == [(NO_TIME, [])] * 2


def test_a_group_ends_when_no_validation_score_grows_any_more(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LEAST_EPOCHS", 4)
    monkeypatch.setattr(training, "GAIN", 1.0)  # no score gains a whole point: only the first evaluation counts
    cell = Training("flickr", "gcn", "gas,lmc", 9)
    ended = Group(cell, graphs, 8, None, settle=True).train()
    assert [(r.at[-1], r.ended) for r in ended] == [(4, True), (4, True)]
    assert [r.at[-1] for r in Group(cell, graphs, 8, None).train()] == [9, 9]
    monkeypatch.setattr(training, "GAIN", -1.0)  # every evaluation is a gain
    assert [r.at[-1] for r in Group(cell, graphs, 8, None, settle=True).train()] == [9, 9]


def test_a_training_has_ended_when_its_epochs_are_done_or_its_validation_score_does_not_grow() -> None:
    def record(at: list[int], val: list[float]) -> training.Trained:
        return training.Trained("cora", "gcn", "gas", 550, method="gas", at=at, val=val, test=val)

    grown, level = record([50, 120], [0.5, 0.6]), record([50, 120], [0.6, 0.6])
    done, begun, early = record([550], [0.9]), record([50], [0.9]), record([50, 109], [0.6, 0.6])
    assert [r.ended for r in (grown, level, done, begun, early)] == [False, True, True, False, False]
    assert amount([grown, level, done]) == ("1 seed, 120 to 550 epochs", "2 of 3")


def test_the_time_of_an_epoch_is_measured_without_evaluations(graphs: Graphs) -> None:
    (record,) = Group(Training("flickr", "gcn", "gas", 4, probe="time"), graphs, 8, None).train()
    assert (record.at, record.test) == ([], [])
    assert record.epoch_ms


def test_the_gradient_error_of_the_whole_graph_is_zero_and_that_of_a_batch_is_not(graphs: Graphs) -> None:
    for clusters, exact in ((24, True), (6, False)):
        cell = Training("flickr", "gcn", "backward-sgd", 1, clusters=clusters, dropout=0.0, probe="gradient")
        (record,) = Group(cell, graphs, 8, None).train()
        assert list(record.errors[0]) == ["layer 1", "layer 2"]
        assert all((error < 1e-4) == exact for error in record.errors[0].values()), record.errors


def test_errors_of_states_and_adjoints_are_measured_at_few_evaluations(graphs: Graphs) -> None:
    cell = Training("cora", "recgcn", "backward-sgd,gas,lmc4rec", 3, probe="estimates")
    exact, gas, lmc = Group(cell, graphs, 8, None).train()
    assert [set(errors) for errors in gas.errors] == [{"H", "V"}, {"H", "V"}, set()]
    assert exact.errors == [{}, {}, {}]
    assert lmc.mean_error("V") == pytest.approx((lmc.errors[0]["V"] + lmc.errors[1]["V"]) / 2)
    assert gas.graph == "tiny-like, lookalike"


def test_a_target_is_reached_at_the_first_evaluation_that_has_it() -> None:
    record = training.Trained(
        "cora", "gcn", "gas", 3, method="gas", at=[1, 2, 3], seconds=[0.5, 1.0, 2.0], val=[0.1, 0.9, 0.3],
        test=[0.2, 0.5, 0.7],
    )  # fmt: skip
    assert record.reaches(0.5) == (2, 1.0)
    assert record.reaches(0.8) == (float("inf"), float("inf"))
    assert record.chosen == 0.5
