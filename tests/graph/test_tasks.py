"""Tasks, weights and optional splits of a graph: what is accepted, and what is ambiguous and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

import lmc
from helpers import EDGES, both_directions
from lmc.errors import DataError, GraphError

EDGE_INDEX, X = both_directions(EDGES), torch.ones(8, 2)
CLASSES = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
NAN = float("nan")


def build(y: Any, **given: Any) -> lmc.Graph:
    return lmc.Graph.from_edges(EDGE_INDEX, X, y, **({"train": [0, 1, 2], "val": [3, 4], "test": [5, 6]} | given))


AMBIGUOUS = {
    "whole floats": (CLASSES.float(), 'expected a task for whole numbers .*task="classes".*task="regression"'),
    "a column of whole floats": (CLASSES.float()[:, None], "expected a task for whole numbers"),
    "fractions": (torch.linspace(0, 1, 8), 'expected whole class numbers .*task="regression"'),
    "one-hot floats": (torch.eye(3)[CLASSES], 'expected a task for a 0/1 matrix .*task="classes".*task="labels"'),
    "one-hot integers": (torch.eye(3)[CLASSES].long(), "expected a task for a 0/1 matrix"),
    "counts": (torch.arange(16).view(8, 2), 'expected a 0/1 matrix .*task="regression"'),
}


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_ambiguous_targets_are_refused_in_one_line_that_names_the_tasks(case: str) -> None:
    y, message = AMBIGUOUS[case]
    with pytest.raises(GraphError, match=message) as refusal:
        build(y)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("y", [CLASSES, CLASSES.float(), CLASSES.float()[:, None], torch.eye(3)[CLASSES]])
def test_classes_are_read_from_numbers_and_one_hot_rows(y: Tensor) -> None:
    g = build(y, task="classes")
    assert (g.task, g.num_classes, g.y.dtype) == ("classes", 3, torch.int64)
    assert torch.equal(g.y, CLASSES)


def test_one_hot_rows_are_labels_where_the_task_says_so() -> None:
    g = build(torch.eye(3)[CLASSES], task="labels")
    assert g.multi_label
    assert torch.equal(g.y, torch.eye(3)[CLASSES])


@pytest.mark.parametrize(
    ("y", "outputs"), [(CLASSES, 1), (CLASSES.double(), 1), (torch.linspace(0, 1, 24).view(8, 3), 3)]
)
def test_regression_targets_keep_their_shape(y: Tensor, outputs: int) -> None:
    g = build(y, task="regression")
    assert (g.task, g.num_classes, g.y.shape) == ("regression", outputs, y.shape)
    assert g.y.is_floating_point()
    assert torch.equal(g.y, y.to(g.y.dtype))
    assert "regression targets" in repr(g)
    assert g.checksum != build(y[:, 0].long() if y.dim() == 2 else y.long()).checksum


def test_unknown_targets_may_lie_outside_of_the_splits() -> None:
    values = torch.linspace(0, 1, 8)
    values[7] = NAN
    assert build(values, task="regression").y.isnan().sum() == 1
    labels = torch.ones(8, 3)
    labels[7] = NAN
    assert build(labels).multi_label
    assert int(build(CLASSES.double().index_fill(0, torch.tensor(7), NAN), task="classes").y[7]) == -1
    for y, task in ((values, "regression"), (labels, "labels")):
        with pytest.raises(GraphError, match=r"expected a target for every test node \(got y\[7\] = NaN\)"):
            build(y, task=task, test=[7])


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown task": ({"task": "ranking"}, r"expected task in \['classes', 'labels', 'regression'\]"),
    "labels of one dimension": ({"task": "labels"}, r"expected a 0/1 matrix \[n, C\] of labels"),
    "fractions as classes": ({"y": torch.rand(8), "task": "classes"}, "expected whole class numbers"),
    "several classes": ({"y": torch.ones(8, 3), "task": "classes"}, 'expected one class per row .*task="labels"'),
    "infinite": ({"y": torch.full((8,), torch.inf), "task": "regression"}, "expected finite targets.*: write NaN"),
    "columns": (
        {"y": torch.rand(8, 2), "task": "regression", "num_classes": 3},
        "expected 3 target columns.*: leave num_classes out",
    ),
    "weights of another length": ({"weight": torch.ones(7)}, r"expected one weight per node, \[8\]"),
    "negative weight": ({"weight": torch.arange(8) - 1.0}, r"expected weights of at least 0.*weight\[0\] = -1"),
    "NaN weight": (
        {"weight": torch.full((8,), NAN)},
        "expected weights of at least 0, and finite.*: a node of weight 0",
    ),
    "no training weight": (
        {"weight": (torch.arange(8) > 2).float()},
        "expected a positive weight of at least one.*: raise one",
    ),
    "mask of integers": (
        {"train": (torch.arange(8) < 3).long()},
        r"got 8 numbers 0 and 1 for 8 nodes.*train\.bool\(\)",
    ),
    "mask of bytes": (
        {"val": (torch.arange(8) == 3).to(torch.uint8)},
        r"expected val as a boolean mask or node numbers",
    ),
    "numpy mask": ({"test": (np.arange(8) == 3).astype(int)}, "expected test as a boolean mask or node numbers"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_targets_weights_and_masks_are_refused_in_one_line(case: str) -> None:
    changed, message = WRONG[case]
    with pytest.raises(GraphError, match=message) as refusal:
        build(**({"y": CLASSES} | changed))
    assert "\n" not in str(refusal.value)


def test_validation_and_test_nodes_are_optional() -> None:
    g = build(CLASSES, val=None, test=None)
    assert (g.splits, g.num_labelled) == (("train",), 3)
    assert g.permute(torch.arange(8).flip(0)).splits == ("train",)


def test_weights_are_permuted_with_the_nodes_and_summed_over_the_training_nodes() -> None:
    weight = torch.arange(8.0)
    g = build(CLASSES, weight=weight)
    assert (g.total_weight, g.num_labelled) == (3.0, 3)
    assert g.permute(torch.arange(8).flip(0)).weight.tolist() == weight.flip(0).tolist()  # type: ignore[union-attr]
    assert build(CLASSES).total_weight == 3
    assert g.checksum != build(CLASSES).checksum


@pytest.mark.parametrize(
    "given",
    [
        {"y": torch.rand(8), "task": "regression", "val": None, "weight": torch.rand(8)},
        {"y": torch.rand(8, 3, dtype=torch.float64), "task": "regression", "test": None},
        {"y": torch.eye(3)[CLASSES], "task": "labels"},
        {"y": CLASSES},
    ],
)
def test_a_file_carries_task_weights_and_missing_splits(given: dict[str, Any], tmp_path: Path) -> None:
    g = build(**given)
    again = lmc.load(lmc.save(g, tmp_path / "g.npz"))
    assert (again.task, again.splits, again.checksum) == (g.task, g.splits, g.checksum)


def test_a_task_may_be_given_for_a_file_and_for_pyg_data(tmp_path: Path) -> None:
    path = lmc.save(build(CLASSES), tmp_path / "g.npz")
    assert lmc.load(path, task="regression").task == "regression"
    data = Data(X, EDGE_INDEX, y=torch.rand(8), train_mask=torch.arange(8) < 4, node_weight=torch.arange(8.0))
    g = lmc.load(data, task="regression")
    assert (g.task, g.splits, g.total_weight) == ("regression", ("train",), 6.0)
    with pytest.raises(DataError, match="expected task for files and PyG data only"):
        lmc.load("tiny-like", task="regression")
