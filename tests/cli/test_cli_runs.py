"""``lmc predict`` and ``lmc runs``, and the names of the folders that ``lmc train`` writes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg

import lmc

Invoke = Callable[..., tuple[int, str]]

SMALL = ("tiny-like", "--scale", "0.1", "--model", "gcn:hidden=8", "--method", "full", "--device", "cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = lmc.load("tiny-like", scale=0.1)
    model = lmc.models.GCN(graph.num_features, 8, graph.num_classes)
    folder = tmp_path_factory.mktemp("trained") / "run"
    lmc.fit(graph, model, lmc.methods.FullBatch(), epochs=2, run_dir=folder, device="cpu")
    return folder


def test_predictions_come_from_the_folder_alone(invoke: Invoke, trained: Path, tmp_path: Path) -> None:
    graph = lmc.load("tiny-like", scale=0.1)
    model = lmc.load_run(trained)[0]
    code, said = invoke(
        "predict", str(trained), "tiny-like@0.1", "--out", "p.npz", "--nodes", "test", "--device", "cpu"
    )
    assert code == 0
    assert "logits of 75 nodes, 5 columns" in said
    with np.load(tmp_path / "p.npz") as found:
        assert np.array_equal(found["nodes"], graph.test.nonzero().squeeze(1).numpy())
        assert np.array_equal(found["logits"], lmc.predict(model, graph, graph.test).numpy())
    assert invoke("predict", str(trained), "tiny-like@0.1", "--out", "p.csv", "--output", "classes")[0] == 0
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "node,class"
    want = lmc.predict(model, graph, output="classes").tolist()
    assert [line.split(",") for line in lines[1:]] == [[str(node), str(c)] for node, c in enumerate(want)]
    assert (
        invoke("predict", str(trained), "tiny-like@0.1", "--out", "s.csv", "--output", "states", "--layer", "1")[0] == 0
    )
    states = np.loadtxt(tmp_path / "s.csv", delimiter=",", skiprows=1)[:, 1:]
    assert np.array_equal(states.astype(np.float32), lmc.predict(model, graph, output="states", layer=1).numpy())


def test_a_file_without_targets_is_enough(invoke: Invoke, trained: Path, tmp_path: Path) -> None:
    graph = lmc.load("tiny-like", scale=0.1)
    edges = torch.stack([graph.adj.indices.long(), graph.adj.row_index()])
    lmc.save(lmc.Graph.from_edges(edges, graph.x), tmp_path / "bare.npz")
    code, said = invoke("predict", str(trained), "bare.npz", "--out", "p.npz", "--memory", "1MB", "--device", "cpu")
    assert code == 0
    assert "no targets" in said


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "suffix": (("tiny-like@0.1", "--out", "p.txt"), "ends in .npz or .csv (got p.txt)"),
    "output": (("tiny-like@0.1", "--out", "p.csv", "--output", "x"), "expected output in"),
    "nodes": (("tiny-like@0.1", "--out", "p.csv", "--nodes", "x"), "expected --nodes all, train, val, test (got 'x')"),
    "width": (("cube.npz", "--out", "p.csv"), "expected a graph with the 32 features"),
    "folder": (("tiny-like@0.1", "--out", "no/p.csv"), "expected a folder that can be written (got no: "),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_uses_are_answered_in_one_line(invoke: Invoke, trained: Path, tmp_path: Path, name: str) -> None:
    lmc.save(lmc.Graph.from_edges(torch.tensor([[0, 1], [1, 0]]), torch.eye(2)), tmp_path / "cube.npz")
    arguments, message = WRONG[name]
    code, said = invoke("predict", str(trained), *arguments)
    assert code == 2
    assert message in said


def test_a_folder_of_a_wrapped_network_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    graph = lmc.load("tiny-like", scale=0.1)
    model = lmc.wrap(pyg.GCN(graph.num_features, 4, 2, graph.num_classes))
    lmc.fit(graph, model, lmc.methods.FullBatch(), epochs=1, run_dir=tmp_path / "run", device="cpu")
    code, said = invoke("predict", "run", "tiny-like@0.1", "--out", "p.csv")
    assert code == 2
    assert "wrap(GCN)" in said
    assert "use lmc.predict" in said


def test_runs_are_listed_newest_first_and_damaged_ones_are_named(invoke: Invoke, trained: Path, tmp_path: Path) -> None:
    root = trained.parent
    for name, hours in (("older", 2), ("newer", -2)):
        (root / name).mkdir(exist_ok=True)
        for file in trained.iterdir():
            (root / name / file.name).write_bytes(file.read_bytes())
            stamp = file.stat().st_mtime - 3600 * hours
            os.utime(root / name / file.name, (stamp, stamp))
    (root / "broken").mkdir(exist_ok=True)
    (root / "broken" / "config.json").write_text("{")
    (root / "other").mkdir(exist_ok=True)
    (root / "foreign").mkdir(exist_ok=True)
    (root / "foreign" / "config.json").write_text('{"model_type": "bert"}')
    code, said = invoke("runs", str(root))
    assert code == 0
    order = [said.index(f" {name} ") for name in ("newer", "run", "older")]
    assert order == sorted(order)
    assert "gcn:layers=2:hidden=8" in said
    assert "2/2" in said
    assert said.count("skipped") == 2
    assert f"skipped {root / 'broken'}" in said
    assert f"skipped {root / 'foreign'}: expected 'graph' in config.json (got none)" in said


def test_a_folder_without_runs(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("runs", str(tmp_path)) == (0, f"no runs in {tmp_path}")
    code, said = invoke("runs")
    assert code == 2
    assert "expected a folder of runs (got runs, which is none)" in said


def test_the_same_command_twice_makes_two_folders(invoke: Invoke, tmp_path: Path) -> None:
    for _ in range(2):
        assert invoke("train", *SMALL, "--epochs", "1")[0] == 0
    assert invoke("train", *SMALL, "--epochs", "1", "--name", "mine/first")[0] == 0
    names = sorted(folder.name for folder in (tmp_path / "runs").iterdir())
    assert names == ["mine_first-1", "tiny-like@0.1-full-gcn-1", "tiny-like@0.1-full-gcn-2"]


def epochs(folder: Path) -> int:
    return len((folder / "epochs.jsonl").read_text().splitlines())


def test_resume_and_overwrite_take_the_newest_folder(invoke: Invoke, tmp_path: Path) -> None:
    for _ in range(2):
        assert invoke("train", *SMALL, "--epochs", "1", "--name", "a")[0] == 0
    first, second = tmp_path / "runs" / "a-1", tmp_path / "runs" / "a-2"
    assert invoke("train", *SMALL, "--epochs", "3", "--name", "a", "--resume")[0] == 0
    assert (epochs(first), epochs(second)) == (1, 3)
    assert invoke("train", *SMALL, "--epochs", "2", "--lr", "0.1", "--name", "a", "--overwrite")[0] == 0
    assert (epochs(first), epochs(second)) == (1, 2)
    assert json.loads((second / "config.json").read_text())["lr"] == 0.1
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "notes.txt").write_text("mine")
    for _ in range(2):
        assert invoke("train", *SMALL, "--epochs", "1", "--run-dir", "here", "--overwrite")[0] == 0
    assert (tmp_path / "here" / "notes.txt").read_text() == "mine"


class Events:
    """In place of the writer of event files, whose package is optional."""

    made: ClassVar[list[Events]] = []

    def __init__(self, folder: str, purge_step: int) -> None:
        self.folder, self.first, self.values = folder, purge_step, list[tuple[str, float, int]]()
        self.made.append(self)

    def add_scalar(self, name: str, value: float, epoch: int) -> None:
        self.values.append((name, value, epoch))

    def close(self) -> None:
        self.values.append(("closed", 0.0, 0))


def test_epochs_are_logged_to_tensorboard(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = "torch.utils.tensorboard"
    monkeypatch.setitem(sys.modules, package, None)
    code, said = invoke("train", *SMALL, "--epochs", "2", "--tensorboard")
    assert code == 2
    assert "expected the package tensorboard (got none): pip install" in said
    assert not (tmp_path / "runs").exists()
    monkeypatch.setitem(sys.modules, package, SimpleNamespace(SummaryWriter=Events))  # type: ignore[arg-type]
    assert invoke("train", *SMALL, "--epochs", "2", "--tensorboard", "--run-dir", "r")[0] == 0
    assert invoke("train", *SMALL, "--epochs", "3", "--tensorboard", "--run-dir", "r", "--resume")[0] == 0
    first, second = Events.made
    assert (first.folder, first.first, second.first) == (str(Path("r", "tensorboard")), 1, 3)
    written = json.loads((tmp_path / "r" / "epochs.jsonl").read_text().splitlines()[1])
    assert ("loss", written["loss"], 2) in first.values
    assert ("val", written["scores"]["val"], 2) in first.values
    assert {epoch for _, _, epoch in second.values} == {3, 0}


@pytest.mark.parametrize("wrong", [("--resume", "--overwrite"), ("--run-dir", "here", "--name", "a")])
def test_options_that_contradict_each_other_are_refused(invoke: Invoke, wrong: tuple[str, ...]) -> None:
    code, said = invoke("train", *SMALL, *wrong)
    assert code == 2
    assert "(got both)" in said
