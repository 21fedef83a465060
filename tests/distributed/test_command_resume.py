"""``lmc train --resume`` under torchrun: with the same and with other numbers of ranks, and what reads its folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors
import shard_jobs
from rank_pool import Ranks
from test_restarts import outcome
from typer.testing import CliRunner

import lmc
from lmc.cli.app import app
from lmc.train import manifest

MODEL = ["--model", "gcn:hidden=8:dropout=0.2", "--device", "cpu", "--checkpoint-every", "1epochs"]
GRAPH = ["train", "tiny-like", "--parts", "8", "--clusters", "1", *MODEL]
WHOLE = ["train", "tiny-like", *MODEL[:1], "gcn:hidden=8", *MODEL[2:]]
Command = Callable[..., str]


@pytest.fixture
def ran(two: Ranks, four: Ranks) -> Command:
    """A function that runs a command on 1, 2 or 4 processes, and returns what rank 0 prints."""

    def run(number: int, *arguments: str) -> str:
        if number == 1:
            found = CliRunner().invoke(app, list(arguments))
            assert found.exit_code == 0, found.output
            return found.output
        answers = {2: two, 4: four}[number](shard_jobs.command, list(arguments))
        assert [code for code, _ in answers] == [0] * number, answers
        assert not any(output for _, output in answers[1:])
        return answers[0][1]

    return run


@pytest.mark.parametrize(
    ("train", "cut"),
    [
        ([*GRAPH, "--method", "cmc", "--lr", "0.3", "--patience", "1", "--epochs", "9"], "6"),
        ([*GRAPH, "--method", "imc", "--eval-every", "2", "--epochs", "4"], "6"),
        ([*GRAPH, "--method", "backward-sgd", "--sync", "layer", "--epochs", "3"], "6"),
        ([*WHOLE, "--method", "full", "--sync", "layer", "--epochs", "5"], "3"),
    ],
    ids=["cmc-patience", "imc", "backward-sgd", "full"],
)
def test_the_same_ranks_end_as_undisturbed_ones(train: list[str], cut: str, ran: Command, tmp_path: Path) -> None:
    said = ran(2, *train, "--run-dir", str(tmp_path / "whole"))
    assert ("without a better validation score" in said) == ("--patience" in train)
    stopped = ran(2, *train, "--run-dir", str(tmp_path / "cut"), "--steps", cut)
    assert f"stopped after {cut} steps" in stopped
    ran(2, *train, "--run-dir", str(tmp_path / "cut"), "--resume")
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def epochs_of(folder: Path) -> list[tuple[float, dict[str, float] | None]]:
    return [(epoch.loss, epoch.scores) for epoch in lmc.results.read_run(folder).epochs]


@pytest.mark.parametrize("method", ["cmc", "imc", "full", "backward-sgd"])
def test_every_number_of_ranks_continues_the_run_of_another(method: str, ran: Command, tmp_path: Path) -> None:
    """With all parts in one step, exact methods do the same on every number of ranks."""
    exact = method in ("full", "backward-sgd")
    train = ([*WHOLE, "--parts", "8", "--clusters", "8"] if exact else GRAPH) + ["--method", method]
    train = [word for word in train if method != "full" or word not in ("--parts", "--clusters", "8")]
    folder, before = tmp_path / "run", []
    for epochs, ranks in enumerate((1, 2, 4, 2, 1), 1):
        sync = ["--sync", "layer"] if exact and ranks > 1 else []
        ran(ranks, *train, *sync, "--epochs", str(epochs), "--run-dir", str(folder), "--resume")
        found = epochs_of(folder)
        assert len(found) == epochs
        assert found[:-1] == before
        before = found
    best = max((scores["val"], -epoch) for epoch, (_, scores) in enumerate(before, 1) if scores)
    with safetensors.safe_open(folder / "best.safetensors", framework="pt") as file:
        assert int(file.metadata()["epoch"]) == -best[1]
    if exact:
        ran(1, *train, "--epochs", "5", "--run-dir", str(tmp_path / "one"))
        for (loss, scores), (other, same) in zip(before, epochs_of(tmp_path / "one"), strict=True):
            assert loss == pytest.approx(other, rel=1e-5)
            assert scores == pytest.approx(same)


def test_folders_of_shards_continue_the_run_of_another_number_of_ranks(ran: Command, tmp_path: Path) -> None:
    file, train = str(lmc.save(lmc.load("tiny-like"), tmp_path / "graph.npz")), ["--method", "cmc", "--clusters", "1"]
    for ranks in ("2", "4"):
        args = [file, "--ranks", ranks, "--parts", "8", "--partition", "metis", "--out", str(tmp_path / ranks)]
        ran(1, "shard", *args)
    whole, cut = (["--run-dir", str(tmp_path / name)] for name in ("whole", "cut"))
    ran(2, "train", str(tmp_path / "2"), *train, *MODEL, *whole, "--epochs", "3")
    ran(2, "train", str(tmp_path / "2"), *train, *MODEL, *cut, "--epochs", "3", "--steps", "6")
    ran(2, "train", str(tmp_path / "2"), *train, *MODEL, *cut, "--epochs", "3", "--resume")
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")
    ran(4, "train", str(tmp_path / "4"), *train, *MODEL, *cut, "--epochs", "4", "--resume")
    ran(2, "train", file, *train, *MODEL, *cut, "--parts", "8", "--epochs", "5", "--resume")
    assert len(epochs_of(tmp_path / "cut")) == 5


def test_a_run_of_ranks_can_be_read_after_it_was_cut_off(ran: Command, tmp_path: Path) -> None:
    """The folder of a run that ranks have left in the middle of an epoch, and in the middle of a checkpoint."""
    folder, out = tmp_path / "runs" / "cut", tmp_path / "classes.csv"
    ran(2, *GRAPH, "--method", "cmc", "--epochs", "4", "--run-dir", str(folder), "--steps", "6")
    (folder / f"checkpoint-{json.loads((folder / manifest.FILE).read_text())['number'] + 1}").mkdir()
    assert f", best epoch {lmc.results.read_run(folder).best_epoch}" in " ".join(
        ran(1, "predict", str(folder), "tiny-like", "--output", "classes", "--out", str(out)).split()
    )
    assert len(out.read_text().splitlines()) == 1 + lmc.load("tiny-like").num_nodes
    assert "cmc 8/1" in ran(1, "runs", str(tmp_path / "runs"))
    ran(1, "report", str(folder))
    assert "cut" in (folder / "report.html").read_text()
