"""``python -m experiments paper``: single tables, and all of them within a budget, from end to end."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.paper import graphs
from experiments.paper.campaign import AHEAD, All, Campaign
from experiments.paper.catalogue import ITEMS
from experiments.paper.costs import level
from experiments.paper.figure_6 import Figure6
from experiments.paper.item import Item, Results, loss_after, mean_over_time, times
from experiments.paper.page import BEGIN, END
from experiments.paper.recurrent_curves import Figure8
from experiments.paper.small_graphs import SmallGraphs
from experiments.paper.table_2 import Table2
from experiments.paper.table_6 import Table6
from experiments.paper.training import Trained, Training
from experiments.paper.workers import Task, Workers
from lmc.errors import ConfigError

Invoke = Callable[..., tuple[int, str]]

SMALL = ("--scale", "tiny", "--max-width", "8", "--device", "cpu", "--run-dir", "p")


@pytest.fixture(autouse=True)
def no_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LMC_DATA", raising=False)
    monkeypatch.setattr("lmc.data.registry.cache_dir", lambda: tmp_path / "cache")


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_list_names_every_table_and_figure(invoke: Invoke) -> None:
    code, said = invoke("paper", "list")
    assert code == 0
    assert all(f"{item.name} " in said and item.label in said for item in ITEMS)
    assert "no command: figures 1 to 3" in said


def test_a_table_shows_the_papers_numbers_beside_ours_and_a_verdict(invoke: Invoke, tmp_path: Path) -> None:
    command = ("paper", "figure-7", *SMALL, "--epochs", "1", "--seeds", "1")
    code, said = invoke(*command)
    assert code == 0, said
    assert "Does the paper's order hold?" in said
    assert "lookalike" in said
    written = (tmp_path / "p" / "trainings.jsonl").read_text()
    assert len(written.splitlines()) == 3 * 5
    assert (tmp_path / "p" / "figure-7.png").read_bytes().startswith(b"\x89PNG")
    assert "CiteSeer" in (tmp_path / "p" / "figure-7.md").read_text()
    # figure-11 shows the same trainings and more: these are not repeated
    code, said = invoke("paper", "figure-11", *SMALL, "--epochs", "1", "--seeds", "1", "--limit", "1e-9")
    assert code == 0
    assert "3 of 6 cells are left, continue with: python -m experiments" in said
    assert (tmp_path / "p" / "trainings.jsonl").read_text() == written
    assert "PubMed, random" in (tmp_path / "p" / "figure-11.md").read_text()
    # the paper's numbers are there before anything is trained
    code, said = invoke("paper", "table-6", *SMALL, "--epochs", "1", "--seeds", "1", "--limit", "1e-9")
    assert code == 0
    assert "87.03" in (tmp_path / "p" / "table-6.md").read_text()
    code, said = invoke(*command, "--epochs", "2")
    assert code == 2
    assert "epochs: 1 there, 2 here" in said


def test_all_runs_what_it_can_and_writes_one_page(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Item, cell: Training, *limits: object, **options: object) -> list[Trained]:
        raise RuntimeError("this item is broken\non purpose")

    def short(self: Item) -> dict[str, Training]:
        return {"FLICKR & GCN": self.group("flickr", "gcn", ("full", "cluster", "gas", "lmc"))}

    monkeypatch.setattr("experiments.paper.figure_10.Figure10.train", broken)
    monkeypatch.setattr(Table2, "groups", short)
    command = ("paper", "all", "--only", "table-2,figure-10,table-8", *SMALL, "--budget", "60s", "--epochs", "2")
    code, said = invoke(*command, "--seeds", "2")
    assert code == 0, said
    assert "figure-10: RuntimeError: this item is broken on purpose" in said
    written = (tmp_path / "p" / "trainings.jsonl").read_text()
    assert len(written.splitlines()) == 2 * 4
    page = (tmp_path / "p" / "report.md").read_text()
    html = (tmp_path / "p" / "report.html").read_text()
    for text in (page, html):
        order = [text.index(f"{name}: ") for name in ("table-2", "table-8", "figure-10")]
        assert order == sorted(order)
        assert "RuntimeError: this item is broken on purpose" in text
        assert "figure-10: 6 of 6 groups not begun, the time was over: cora gcn, citeseer gcn, pubmed gcn" in text
        assert "flickr-like@0.0179" in text
        assert "379.2 ± 29.0" in text
        assert "tables 9 and 10" in text
    assert "http" not in html
    assert re.search(r"\| FLICKR & GCN \| (\d|never)", page)
    # the same command continues: nothing of what is done is trained again
    assert invoke(*command, "--seeds", "2")[0] == 0
    assert (tmp_path / "p" / "trainings.jsonl").read_text() == written
    # the report goes into a page of the documentation
    docs = tmp_path / "paper.md"
    docs.write_text(f"# Title\n\n{BEGIN}\nprevious page\n{END}\n\nend\n")
    code, said = invoke("paper", "insert", "p", str(docs))
    assert code == 0, said
    text = docs.read_text()
    assert text.startswith(f"# Title\n\n{BEGIN}\n\n- command: ")
    assert text.endswith(f"{END}\n\nend\n")
    assert "previous page" not in text
    assert all(len(line) <= 120 for line in text.splitlines() if not line.startswith("|"))


def test_all_ends_when_its_budget_is_over(invoke: Invoke, tmp_path: Path) -> None:
    code, said = invoke("paper", "all", "--only", "figure-6,table-12,figure-4", *SMALL, "--budget", "1s")
    assert code == 0, said
    assert "the time is over" in said
    page = (tmp_path / "p" / "report.md").read_text()
    assert "not begun, the time was over" in page


def test_two_processes_train_and_seconds_are_those_of_epochs_that_ran_alone(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(self: Item) -> dict[str, Training]:
        return {"FLICKR & GCN": self.group("flickr", "gcn", ("full", "gas", "lmc"))}

    monkeypatch.setattr(Table2, "groups", short)
    command = ("paper", "all", "--only", "table-2", *SMALL, "--budget", "1h", "--epochs", "2", "--seeds", "2")
    code, said = invoke(*command, "--jobs", "2", "--plan")
    assert code == 0, said
    assert "2 groups want" in said
    assert not (tmp_path / "p").exists()
    code, said = invoke(*command, "--jobs", "2")
    assert code == 0, said
    found = lines(tmp_path / "p" / "trainings.jsonl")
    alone = {line["method"]: line["epoch_ms"] for line in found if line["probe"] == "time"}
    assert set(alone) == {"gas", "lmc"}
    trained = [line for line in found if line["probe"] != "time"]
    assert {(line["method"], line["seed"]) for line in trained} == {
        (m, s) for m in ("full", "gas", "lmc") for s in (0, 1)
    }
    item = Table2(scale="tiny", device="cpu", run_dir=tmp_path / "p", epochs=2, seeds=2)
    shown = item.own(item.lines())
    assert len(shown) == len(trained)
    for record in shown:
        if record.method in alone:
            assert record.seconds == [alone[record.method] / 1000, 2 * alone[record.method] / 1000]
    # the folder keeps the seconds that were measured
    invoke(*command, "--jobs", "2")
    assert lines(tmp_path / "p" / "trainings.jsonl") == found
    assert "ran in 2 processes at the same time" in " ".join((tmp_path / "p" / "report.md").read_text().split())


def test_a_worker_that_dies_ends_its_group_alone() -> None:
    task = Task(Table2(scale="tiny", device="cpu"), Training("flickr", "gcn", "gas", 1), 1.0, math.inf)
    with Workers(2) as workers:
        workers.start(task)
        (process, _), *_ = workers._busy.values()
        process.kill()
        (outcome,) = workers.finished(time.monotonic() + 60)
        assert outcome.task is task
        assert outcome.failure == "its process ended with exit code -9"
        assert workers.can_start()
        assert not workers.running


def test_short_groups_get_what_they_want_and_the_others_the_same_time() -> None:
    assert level([10.0, 1.0, 2.0, 10.0], 13.0) == 5.0
    assert level([1.0, 2.0], 2.0) == 1.0
    assert level([1.0, 2.0], 10.0) == 2.0 + 7.0  # where all fit, one that takes longer than expected has the rest
    item = Table2(scale="tiny", device="cpu")
    long, short = (Training("flickr", "gcn", "gas", 1, seed=seed) for seed in (0, 1))
    campaign = Campaign([item], 100.0, time.monotonic(), jobs=2)
    campaign.wants = {long: 1000.0, short: 10.0}
    until = time.monotonic() + 80
    assert campaign.share({long: item, short: item}, [], until) == pytest.approx(AHEAD * 2 * 80 - 10, abs=2)
    running = [Task(item, long, 40.0, until), Task(item, short, 40.0, until)]
    assert campaign.share({long: item}, running, until) == pytest.approx(AHEAD * (2 * 80 - 40 - 10), abs=2)
    assert campaign.last_step < campaign.deadline < campaign.started + 100


def test_groups_that_were_cut_short_are_trained_anew_and_the_longest_training_counts(tmp_path: Path) -> None:
    item = Figure8(scale="tiny", device="cpu", run_dir=tmp_path, seeds=1)
    cora, citeseer, pubmed = item.cells()

    def trained(cell: Training, epochs: int, method: str = "gas", error: str | None = None) -> Trained:
        curve = {"at": [epochs], "seconds": [2.0 * epochs], "loss": [1.0], "val": [0.5], "test": [0.5], "errors": [{}]}
        return Trained(**vars(cell), method=method, error=error, **curve)

    item.keep([trained(cora, 5), trained(cora, 300, "lmc4rec"), trained(citeseer, 300)])
    item.keep([trained(pubmed, 5, error="DivergenceError: nan")])
    campaign = Campaign([item], 100.0, time.monotonic())
    assert list(campaign.waiting()) == [cora]
    # 2 s for each epoch of the two methods that were trained before, and the time of the others
    assert 2 * 2 * 300 < campaign.wants[cora] < 2 * 2 * 300 + 100
    item.keep([trained(cora, 4), trained(cora, 6, "sse")])
    assert {(r.method, r.at[-1]) for r in item.lines() if r.dataset == "cora"} == {
        ("gas", 5), ("lmc4rec", 300), ("sse", 6)
    }  # fmt: skip


@pytest.mark.parametrize("jobs", [1, 2])
def test_one_process_begins_with_the_shortest_groups_and_several_with_the_longest(jobs: int, tmp_path: Path) -> None:
    campaign = Campaign([Table6(scale="tiny", device="cpu", run_dir=tmp_path, seeds=2)], 100.0, 0.0, jobs)
    order = [(cell.seed, campaign.wants[cell] * (1 if jobs == 1 else -1)) for cell in campaign.waiting()]
    assert len(set(order)) > 2
    assert order == sorted(order)


def test_figure_6_names_each_of_its_methods_once_and_figure_8_judges_losses_of_the_same_graph() -> None:
    curve = {"at": [1, 2], "loss": [2.0, 1.0], "val": [0.5, 0.6], "test": [0.5, 0.6], "seconds": [1.0, 2.0]}

    def records(item: Item) -> list[Trained]:
        cells = item.groups().values()
        return [Trained(**vars(c), method=spec, errors=[{}, {}], **curve) for c in cells for spec in c.specs]

    figure = Figure6(scale="tiny", device="cpu")
    drawn = figure.figure(records(figure))
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["GAS", "C_f", "C_f & C_b"]
    assert len({line.get_color() for line in drawn.axes[0].get_lines() if len(line.get_xdata()) == 2}) == 3
    item = Figure8(scale="tiny", device="cpu")
    *scores, losses = item.comparisons(Results(records(item)))
    assert all(("Cora", "LMC4Rec", "Cluster-GCN") in found.claims for found in scores)
    assert {worse for _, _, worse in losses.claims} == {"SSE", "GAS"}
    assert not losses.higher


def test_small_graphs_have_more_seeds_and_their_verdict_is_within_the_deviation() -> None:
    seeds = {item.name: item.seeds for item in All(budget="9min", device="cpu").items()}
    assert (seeds["table-1"], seeds["figure-8"], seeds["small-graphs"]) == (3, 5, 5)
    item = SmallGraphs(scale="tiny", device="cpu")
    scores = {"full": (0.80, 0.82), "lmc4rec": (0.79, 0.81), "lmc": (0.70, 0.70)}
    records = [
        Trained(**vars(group), method=method, at=[1], val=[1.0], test=[score])
        for group in item.groups().values()
        for method, both in scores.items()
        if method in group.specs
        for score in both
    ]
    found = item.comparisons(Results(records))
    row = [found[1].ours["Cora, RecGCN", kind] for kind in found[1].methods]
    assert (row[0].mean, row[1].mean, row[2]) == (pytest.approx(-1.0), pytest.approx(1.4142, abs=1e-3), "yes")
    assert found[1].ours["Cora, GCN", "within it"] == "no, below"
    assert item.verdict(found).word == "no"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--budget", "soon"), "expected"),
        (("--budget", "5steps"), "expected a budget such as 90s"),
        (("--only", "table-99"), "expected names of figure-4"),
        (("--scale", "small"), "for --scale"),
    ],
)
def test_wrong_options_are_refused(invoke: Invoke, options: tuple[str, ...], words: str) -> None:
    code, said = invoke("paper", "all", *options)
    assert code == 2
    assert words in said


def test_a_folder_of_another_scale_is_refused(invoke: Invoke) -> None:
    assert invoke("paper", "figure-12", *SMALL, "--epochs", "1", "--limit", "1e-9")[0] == 0
    code, said = invoke("paper", "table-6", *SMALL, "--epochs", "1", "--scale", "0.5")
    assert code == 2
    assert "scale: tiny there, 0.5 here" in said


def test_the_mean_over_the_common_runtime_does_not_depend_on_what_follows() -> None:
    def record(method: str, seconds: list[float], test: list[float]) -> Trained:
        at = list(range(1, len(test) + 1))
        loss = [1 - score for score in test]
        return Trained(
            "cora", "gcn", "gas,lmc", 4, method=method, at=at, seconds=seconds, loss=loss, val=test, test=test
        )

    quick = record("lmc", [1.0, 2.0], [0.5, 0.5])
    slow = record("gas", [1.0, 2.0, 30.0], [0.25, 0.25, 1.0])
    results = Results([quick, slow])
    until = times(results, Training("cora", "gcn", "gas,lmc", 4), ("gas", "lmc"))
    assert until == {0: 2.0}
    assert mean_over_time(quick, until) == pytest.approx(50.0)
    assert mean_over_time(slow, until) == pytest.approx(25.0)
    assert (loss_after(quick, until), loss_after(slow, until)) == (0.5, 0.75)


def test_graphs_are_shared_by_the_items_of_a_process() -> None:
    item = Table2(scale="tiny", device="cpu")
    assert item.graphs is graphs.shared_graphs("tiny", item.on, None)
    with pytest.raises(ConfigError):
        graphs.check_scale("large")
