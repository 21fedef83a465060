"""``lmc train`` from end to end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import weighted_graph
from lmc.data import save

Invoke = Callable[..., tuple[int, str]]


SMALL = ("tiny-like", "--scale", "0.2", "--model", "gcn:hidden=8", "--parts", "4", "--clusters", "2")


def test_without_a_method_the_recommended_one_is_used_and_the_reason_shown(invoke: Invoke, tmp_path: Path) -> None:
    code, said = invoke("train", *SMALL[:-4], "--epochs", "1", "--run-dir", "a")
    assert code == 0, said
    assert "Full batch (GD) (recommended: the full batch fits" in said
    code, said = invoke("train", *SMALL[:-1], "3", "--epochs", "1", "--run-dir", "b", "--method", "auto:drop_edge=0.2")
    assert code == 0, said
    assert "(recommended: " in said
    assert "of the edges left out" in said
    large = ("arxiv-like", "--scale", "0.02", "--model", "gcn:layers=3:hidden=8", "--parts", "10", "--clusters", "2")
    code, said = invoke("train", *large, "--epochs", "1", "--run-dir", "c")
    assert code == 0, said
    assert "IMC (recommended with basis=T: " in said
    code, said = invoke("train", *large, "--epochs", "1", "--run-dir", "d", "--method", "auto:basis=T+X1")
    assert code == 0, said
    assert "IMC (recommended: " in said
    assert "recommended" not in invoke("train", *SMALL, "--method", "gas", "--epochs", "1")[1]


def test_train_writes_a_run_and_says_what_came_of_it(invoke: Invoke, tmp_path: Path) -> None:
    code, said = invoke("train", *SMALL, "--method", "cmc", "--epochs", "3", "--seed", "1")
    assert code == 0
    for fact in ("300 nodes", "CMC", "4 parts, 2 a batch", "edges inside parts", "complete", "parameters"):
        assert fact in said
    assert "test at best val" in said
    folder = tmp_path / "runs" / "tiny-like@0.2-cmc-gcn-1"
    lines = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert json.loads((folder / "config.json").read_text())["method"]["name"] == "cmc"


def test_a_folder_is_not_overwritten_but_resumed(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("train", *SMALL, "--epochs", "2", "--run-dir", "here")[0] == 0
    code, said = invoke("train", *SMALL, "--epochs", "4", "--run-dir", "here")
    assert code == 2
    assert "--resume" in said
    code, said = invoke("train", *SMALL, "--epochs", "4", "--run-dir", "here", "--resume")
    assert code == 0
    assert "nothing was left to train" not in said
    code, said = invoke("train", *SMALL, "--epochs", "4", "--run-dir", "here", "--resume")
    assert code == 0
    assert "nothing was left to train: more than --epochs 4 continue the run" in said
    assert len((tmp_path / "here" / "epochs.jsonl").read_text().splitlines()) == 4


def test_resuming_with_other_settings_is_refused(invoke: Invoke) -> None:
    assert invoke("train", *SMALL, "--epochs", "1", "--run-dir", "here")[0] == 0
    code, said = invoke("train", *SMALL, "--epochs", "2", "--run-dir", "here", "--resume", "--lr", "0.5")
    assert code == 2
    assert "lr: 0.01 there, 0.5 here" in said


def test_options_reach_model_and_method(invoke: Invoke, tmp_path: Path) -> None:
    code, said = invoke(
        "train", "tiny-like", "--scale", "0.2",
        "--model", "gcnii:layers=3:hidden=8:norm=layer:dropout=0.1:input_dropout=0.2:alpha=0.2:theta=1",
        "--method", "lmc:alpha=0.7:score=sin:cut=after:first-layer=pruned:forward=no:redraw=yes:partition=random",
        "--history", "host", "--parts", "3", "--clusters", "1", "--clip", "1",
        "--weight-decay", "0.001", "--epochs", "1", "--eval-every", "0", "--device", "cpu", "--run-dir", "r",
    )  # fmt: skip
    assert code == 0, said
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert (config["model"]["name"], config["model"]["layers.0.alpha"]) == ("GCNII", 0.2)
    wanted = {
        "alpha": 0.7, "score": "sin", "cut": "after", "first_layer": "pruned", "forward": False, "backward": True,
        "redraw": True, "partition": "random", "num_parts": 3, "clusters_per_batch": 1,
    }  # fmt: skip
    assert {k: config["method"][k] for k in wanted} == wanted
    assert config["history"] == "host"
    assert (config["clip"], config["weight_decay"], config["model"]["dropout"]) == (1.0, 0.001, 0.1)


def test_options_reach_the_training_loop(invoke: Invoke, tmp_path: Path) -> None:
    code, said = invoke(
        "train", *SMALL, "--epochs", "9", "--optimizer", "adamw:weight_decay=5e-4", "--scheduler", "cosine:warmup=1",
        "--patience", "30", "--clip", "1.0", "--minutes", "60", "--steps", "5", "--metric", "micro-f1",
        "--no-restore-best", "--run-dir", "r",
    )  # fmt: skip
    assert code == 0, said
    assert "stopped after 5 steps" in said
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert (config["optimizer"]["name"], config["weight_decay"], config["scheduler"]["warmup"]) == ("AdamW", 5e-4, 1)
    assert (config["patience"], config["clip"], config["minutes"], config["steps"]) == (30, 1.0, 60.0, 5)
    assert (config["metrics"], config["restore_best"]) == (["micro-f1"], False)
    assert not (tmp_path / "r" / "best.safetensors").exists()


def test_the_help_names_every_optimiser_and_scheduler(invoke: Invoke) -> None:
    from lmc.train.optimizers import OPTIMIZERS, SCHEDULERS

    _, said = invoke("train", "--help")
    assert all(name in said for name in (*OPTIMIZERS, *SCHEDULERS))


def test_divergence_ends_with_an_error_and_keeps_the_checkpoint(invoke: Invoke, tmp_path: Path) -> None:
    code, said = invoke("train", *SMALL, "--epochs", "3", "--lr", "1e30", "--run-dir", "r")
    assert code == 2
    assert "error: expected finite losses and parameters" in said
    assert "in epoch 1, step 2" in said
    assert "the last good checkpoint, after epoch 0, step 0, is in r" in said
    assert "NaN" not in (tmp_path / "r" / "epochs.jsonl").read_text()


def test_a_graph_from_a_file(invoke: Invoke, tmp_path: Path) -> None:
    import lmc

    lmc.save(lmc.load("tiny-like", scale=0.2), tmp_path / "mine.npz")
    code, said = invoke("train", "mine.npz", "--method", "full", "--epochs", "1", "--model", "gcn:hidden=4")
    assert code == 0, said
    assert "Full batch" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tinny-like",), "did you mean tiny-like"),
        (("tiny-like", "--method", "gaz"), "did you mean gas?"),
        (("tiny-like", "--model", "gcni"), "did you mean gcnii?"),
        (("tiny-like", "--method", "gas:alpha=0.4"), "(got 'alpha' in 'gas:alpha=0.4'): it has parts, clusters"),
        (("tiny-like", "--model", "gcnii:linear-in=yes"), "(got 'linear_in' in 'gcnii:linear-in=yes'): it has hidden"),
        (("tiny-like", "--model", "gcn:alpha=0.2"), "(got 'alpha'"),
        (("tiny-like", "--method", "full", "--parts", "3"), "(got --parts)"),
        (("tiny-like", "--alpha", "0.2"), "--method lmc:alpha=0.4"),
        (("tiny-like", "--epochs", "many"), "--epochs"),
        (("tiny-like", "--lr", "small"), "'small'"),
        ((), "lmc train --help"),
        (("tiny-like", "--history", "tape"), "tape"),
        (("tiny-like", "--device", "tpu9"), "expected a device"),
        (("tiny-like", "--parts", "4", "--clusters", "5"), "clusters_per_batch of at most num_parts = 4 (got 5)"),
        (("tiny-like", "--model", "gcn:norm=group"), "expected norm"),
        (("tiny-like", "--epochs", "0"), "epochs of at least 1 (got 0)"),
        (("tiny-like", "--optimizer", "adm"), "did you mean adam?"),
        (("tiny-like", "--optimizer", "sgd:momentom=1"), "did you mean momentum?"),
        (("tiny-like", "--optimizer", "adam:betas=x"), "expected numbers such as 0.9/0.999 for betas"),
        (("tiny-like", "--scheduler", "cosinus"), "did you mean cosine?"),
        (("tiny-like", "--scheduler", "step:size=0.5"), "expected a whole number for size"),
        (("tiny-like", "--patience", "0"), "patience of at least 1"),
        (("tiny-like", "--lr", "0"), "lr in (0, 1e30] (got 0.0)"),
        (("tiny-like", "--lr", "1e38"), "lr in (0, 1e30] (got 1e+38)"),
        (("tiny-like", "--minutes", "0"), "minutes of more than 0 (got 0.0)"),
        (("tiny-like", "--clip", "inf"), "clip of more than 0 (got inf)"),
        (("nowhere/graph.npz",), "nowhere/graph.npz"),
        (("broken.npz",), "broken.npz"),
        (("broken.npz", "--scale", "2"), "scale for lookalikes only"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_2(
    invoke: Invoke, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "broken.npz").write_bytes(b"PK no archive")
    code, said = invoke("train", *arguments)
    assert code == 2
    assert said.startswith("error: ")
    assert message in said
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_saves_and_says_how_to_continue(tmp_path: Path) -> None:
    arguments = ["train", *SMALL, "--epochs", "100000", "--run-dir", "r", "--eval-every", "1000"]
    process = subprocess.Popen(
        [_script(), *arguments], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _wait_for_epoch(tmp_path / "r" / "epochs.jsonl")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "saved in r" in said
    again = said.split("continue with: ")[1].strip()
    assert again == f"lmc {' '.join(arguments)} --resume"
    done = len((tmp_path / "r" / "epochs.jsonl").read_text().splitlines())
    end = str(done + 5)
    finished = subprocess.run(
        [_script(), *[end if a == "100000" else a for a in again.split()[1:]]], cwd=tmp_path, capture_output=True
    )
    assert finished.returncode == 0, finished.stderr
    epochs = [json.loads(line)["epoch"] for line in (tmp_path / "r" / "epochs.jsonl").read_text().splitlines()]
    assert epochs == list(range(1, done + 6))


def _script() -> str:
    return os.path.join(os.path.dirname(sys.executable), "lmc")


def _wait_for_epoch(path: Path, timeout: float = 60.0) -> None:
    start = time.monotonic()
    while not (path.exists() and path.read_text().count("\n") >= 2):
        assert time.monotonic() - start < timeout, "the run did not begin"
        time.sleep(0.05)


def test_a_file_with_weights_and_directions_is_trained(invoke: Invoke, tmp_path: Path) -> None:
    g = weighted_graph(directed=True)
    save(g, tmp_path / "mine.npz")
    arrays = dict(np.load(tmp_path / "mine.npz"))
    arrays["x"] = arrays["x"].astype(np.float32)
    del arrays["undirected"]
    np.savez(tmp_path / "silent.npz", **arrays)
    options = ("--model", "gcn:hidden=8", "--parts", "4", "--clusters", "2", "--epochs", "1", "--run-dir")
    code, said = invoke("train", "silent.npz", *options, "r")
    assert code == 2
    assert "--directed" in said
    code, said = invoke("train", "silent.npz", *options, "r", "--directed")
    assert code == 0, said
    assert "40 nodes" in said
    code, said = invoke("train", "silent.npz", *options, "s", "--directed", "--symmetrise")
    assert code == 2
    assert "expected directed=True or symmetrise=True" in said
    code, said = invoke("train", "silent.npz", *options, "g", "--directed", "--model", "gat:hidden=8")
    assert code == 2
    assert "expected a model that reads edge_weight" in said


def test_the_time_of_setting_up_is_shown_and_recorded(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command = ("train", *SMALL, "--method", "cmc", "--epochs", "1", "--partition", "kaminpar")
    first, second = (invoke(*command, "--run-dir", name)[1] for name in ("a", "b"))
    pattern = r"loaded in \d+\.\d\d s, partitioned in \d+\.\d\d s{}, bound in \d+\.\d\d s"
    assert re.search(pattern.format(""), first)
    assert re.search(pattern.format(r" \(cached\)"), second)
    assert "kaminpar: " in first
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["method"]["partition"] == "kaminpar"
    assert set(config["setup_seconds"]) == {"load", "partition", "bind"}
    assert all(value > 0 for value in config["setup_seconds"].values())
    assert invoke(*command, "--run-dir", "a", "--resume")[0] == 0, "another time is no other setting"


def test_a_full_batch_shows_no_partition(invoke: Invoke) -> None:
    command = ("train", "tiny-like", "--scale", "0.2", "--method", "full", "--epochs", "1")
    said = invoke(*command)[1]
    assert re.search(r"loaded in \d+\.\d\d s, bound in", said)
    code, said = invoke(*command, "--partition", "metis")
    assert code == 2
    assert "--partition" in said


def too_late(*_: object) -> None:
    """Stands in for a slow part of a command, before which a refusal has to come."""
    pytest.fail("the refusal came too late")


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("train", ("--run-dir", "run"), "expected a new run folder (got run, which holds a run)"),
        ("train", ("--run-dir", "both"), "expected a folder for a run (got both, which holds a comparison)"),
        ("train", ("--run-dir", "file/r"), "expected a folder that can be written (got file/r: Not a directory)"),
        ("train", ("--run-dir", "closed/r"), "expected a folder that can be written (got closed/r: Permission denied)"),
        ("train", ("--eval-every", "0", "--patience", "3"), "validation scores for patience (got eval_every=0)"),
        ("train", ("--eval-every", "0", "--scheduler", "plateau"), "scores for the scheduler (got eval_every=0)"),
        ("compare", ("--run-dir", "run"), "expected a folder for a comparison (got run, which holds a run"),
        ("compare", ("--run-dir", "both"), "expected a new run folder (got both, which holds a comparison)"),
        ("compare", ("--run-dir", "file/r"), "expected a folder that can be written (got file/r: Not a directory)"),
        ("compare", ("--eval-every", "0", "--patience", "3"), "validation scores for patience (got eval_every=0)"),
    ],
)
def test_what_the_options_tell_is_refused_before_the_graph_is_loaded(
    command: str, arguments: tuple[str, ...], message: str, invoke: Invoke, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "file").touch()
    (tmp_path / "closed").mkdir()
    assert invoke("train", *SMALL, "--epochs", "1", "--run-dir", "run")[0] == 0
    assert invoke("compare", *SMALL, "--methods", "gas", "--epochs", "1", "--run-dir", "both")[0] == 0
    may_enter = os.access
    monkeypatch.setattr("os.access", lambda path, mode: "closed" not in str(path) and may_enter(path, mode))
    monkeypatch.setattr("lmc.cli.options.Training.load", too_late)
    code, said = invoke(command, *SMALL, "--epochs", "1", *arguments)
    assert code == 2
    assert message in said
    assert not (tmp_path / "closed" / "r").exists()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("graph", "arguments", "message"),
    [
        (SMALL[:3], ("--metric", "f2"), "expected a metric for task 'classes', accuracy, micro-f1, roc-auc"),
        (("unvalidated.npz",), ("--patience", "3"), "for patience (got graph 'unvalidated' without validation nodes)"),
    ],
)
def test_what_the_graph_tells_is_refused_before_it_is_divided(
    graph: tuple[str, ...], arguments: tuple[str, ...], message: str, invoke: Invoke, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    g = weighted_graph()
    save(replace(g, val=torch.zeros_like(g.val)), tmp_path / "unvalidated.npz")
    monkeypatch.setattr("lmc.methods.ClusterMethod.parts_of", too_late)
    code, said = invoke("train", *graph, *SMALL[3:], "--method", "gas", *arguments)
    assert code == 2
    assert message in said


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("train", "tiny-like"), "--run-dir"),
        (("compare", "tiny-like"), "--run-dir"),
        (("bench", "speed", "tiny-like"), "--run-dir"),
        (("shard", "tiny-like", "--ranks", "2"), "--out"),
    ],
)
def test_an_empty_path_is_not_the_current_folder(
    command: tuple[str, ...], option: str, invoke: Invoke, tmp_path: Path
) -> None:
    code, said = invoke(*command, option, "")
    assert code == 2
    assert said.startswith(f"error: Invalid value for '{option}': expected the path of a folder (got an empty text): ")
    assert list(tmp_path.iterdir()) == []


def test_the_current_folder_is_a_run_folder(invoke: Invoke, tmp_path: Path) -> None:
    code, said = invoke("train", *SMALL, "--epochs", "1", "--run-dir", ".")
    assert code == 0, said
    assert (tmp_path / "config.json").exists()


def test_a_dry_run_needs_no_new_folder(invoke: Invoke) -> None:
    assert invoke("train", *SMALL, "--epochs", "1", "--run-dir", "run")[0] == 0
    code, said = invoke("train", *SMALL, "--run-dir", "run", "--dry-run")
    assert code == 0, said


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has another error for a closed pipe")
@pytest.mark.parametrize(
    "command", [("train", "--method", "gas"), ("compare", "--methods", "gas", "--error-every", "0")]
)
def test_a_broken_pipe_saves_the_run_and_ends_quietly(command: tuple[str, ...], tmp_path: Path) -> None:
    arguments = [_script(), command[0], *SMALL, *command[1:], "--run-dir", "r", "--checkpoint-every", "2h", "--epochs"]
    process = subprocess.Popen(
        [*arguments, "1000"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(60) == 141
    records = tmp_path / "r" / ("gas" if command[0] == "compare" else "") / "epochs.jsonl"
    saved = records.read_bytes()
    done = saved.count(b"\n")
    assert 0 < done < 1000
    again = subprocess.run([*arguments, str(done), "--resume"], cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert records.read_bytes() == saved, "epochs were trained again"
