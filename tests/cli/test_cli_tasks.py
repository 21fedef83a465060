"""Losses and tasks on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import lmc
from helpers import random_graph
from lmc.cli.spec import parse_loss
from lmc.losses import RowLoss, binary_cross_entropy, cross_entropy, huber, mse

Invoke = Callable[..., tuple[int, str]]
SMALL = ("--model", "gcn:hidden=4", "--parts", "4", "--clusters", "1", "--epochs", "2", "--device", "cpu")


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A file of whole-number targets that names no task, without validation nodes."""
    g = random_graph()
    path = lmc.save(g, tmp_path / "numbers.npz")
    arrays = dict(np.load(path))
    del arrays["task"], arrays["val_idx"], arrays["num_classes"]
    np.savez(path, **(arrays | {"y": torch.arange(g.num_nodes).double().numpy()}))
    return path


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("mse", mse()),
        ("huber:delta=0.5", huber(delta=0.5)),
        ("cross-entropy:weight=1/5/0.5:smoothing=0.1", cross_entropy(weight=[1, 5, 0.5], smoothing=0.1)),
        ("binary_cross_entropy:pos_weight=3", binary_cross_entropy(pos_weight=3)),
        ("binary_cross_entropy:pos_weight=3/1", binary_cross_entropy(pos_weight=[3, 1])),
    ],
)
def test_a_loss_is_written_in_the_grammar_of_methods(text: str, loss: RowLoss) -> None:
    assert parse_loss(text) == loss


def test_train_on_numbers_with_a_loss(invoke: Invoke, numbers: Path, tmp_path: Path) -> None:
    code, said = invoke("train", str(numbers), *SMALL, "--run-dir", "r")
    assert code == 2
    assert 'expected a task for whole numbers as torch.float64 in y (got none): pass task="classes"' in said
    code, said = invoke(
        "train", str(numbers), *SMALL, "--task", "regression", "--loss", "huber:delta=0.5", "--run-dir", "r"
    )
    assert code == 0, said
    assert "huber(delta=0.5)" in said
    assert "%" not in said.split("Result")[1], "R2 is no percentage"
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert (config["loss"], config["metrics"]) == ("huber(delta=0.5)", ["r2"])
    code, said = invoke("train", str(numbers), *SMALL, "--task", "regression", "--run-dir", "r", "--resume")
    assert code == 2
    assert "loss: huber(delta=0.5) there, mse() here" in said


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_file_without_targets_is_refused_by_what_it_lacks(invoke: Invoke, command: str, tmp_path: Path) -> None:
    base = lmc.load("tiny-like", scale=0.2)
    lmc.save(lmc.Graph.from_edges(base.edge_index, base.x), tmp_path / "bare.npz")
    code, said = invoke(command, str(tmp_path / "bare.npz"))
    assert code == 2
    assert said.startswith("error: expected targets in graph 'bare' (got none): add y and train_idx to the file")


def test_compare_on_numbers(invoke: Invoke, numbers: Path, tmp_path: Path) -> None:
    code, said = invoke(
        "compare", str(numbers), *SMALL, "--task", "regression", "--loss", "mse", "--methods", "gas", "--run-dir", "c"
    )
    assert code == 0, said
    assert "val %" not in said
    assert json.loads((tmp_path / "c" / "summary.json").read_text())["methods"]["gas"]["val"] is None
    assert (tmp_path / "c" / "compare.png").exists()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            "hubr",
            "expected a loss of cross_entropy, binary_cross_entropy, mse, huber (got 'hubr'): did you mean huber?",
        ),
        ("huber:delta=x", "expected a number for delta (got 'x' in 'huber:delta=x')"),
        ("huber:delta=-1", "expected delta of more than 0 (got -1.0)"),
        ("huber", "expected a loss for task 'classes' (got huber(delta=1.0)): use lmc.losses.cross_entropy"),
    ],
)
def test_wrong_losses_are_refused_in_one_line(invoke: Invoke, loss: str, message: str) -> None:
    code, said = invoke("train", "tiny-like", "--scale", "0.2", *SMALL, "--loss", loss)
    assert code == 2
    assert message in said
