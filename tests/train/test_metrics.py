"""Metrics of each task against hand-computed values, and what ``metrics=`` refuses."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics import ExplainedVariance
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassF1Score

import lmc
from helpers import EDGES, both_directions, hand_graph
from lmc.errors import ConfigError
from lmc.methods import FullBatch
from lmc.models import GCN
from lmc.train.metrics import Tally, metrics_of

NODES = torch.arange(8)


def graph_with(y: Tensor, **given: Any) -> lmc.Graph:
    """Eight nodes, of which six are training nodes and two test nodes; none is a validation node."""
    return lmc.Graph.from_edges(both_directions(EDGES), torch.ones(8, 2), y, train=NODES < 6, test=NODES >= 6, **given)


def scores(graph: lmc.Graph, outputs: Tensor, metrics: object) -> dict[str, float]:
    """In two chunks, to see that sums and not means are carried from one to the next."""
    problem = FullBatch().bind(graph, GCN(graph.num_features, 2, graph.num_classes), device="cpu").problem
    tally = Tally(metrics_of(metrics, graph), problem)
    for rows in (slice(0, 3), slice(3, 8)):
        tally.update(rows, outputs[rows])
    return tally.compute()


def test_top_k_micro_f1_takes_as_many_labels_as_a_node_has() -> None:
    y = torch.zeros(8, 4)
    y[0, :2] = 1  # two labels: of the two highest outputs, 0 and 3, one is right
    y[1, 2] = 1  # one label, which has the highest output
    y[6, 1:] = 1  # three labels of four: the lowest output is the one wrong label
    outputs = torch.full((8, 4), -5.0)
    outputs[0] = torch.tensor([0.9, 0.1, 0.2, 0.8])
    outputs[1] = torch.tensor([-3.0, -2.0, -1.0, -4.0])
    outputs[6] = torch.tensor([0.0, 1.0, 2.0, 3.0])
    found = scores(graph_with(y), outputs, ["top-k-micro-f1", "micro-f1"])
    assert found["train"] == pytest.approx(2 / 3)  # 2 of 3 labels; as many are predicted as are true
    assert found["test"] == 1.0
    assert found["train_micro-f1"] == pytest.approx(2 * 2 / (4 + 3))  # by sign: 2 right of 4 predicted, of 3 true


def test_regression_scores_by_hand() -> None:
    y = torch.tensor([1000.0, 1001, 1002, 1003, 1004, 1005, 0.5, 2])
    outputs = (y + torch.tensor([1.0, -1, 1, -1, 1, -1, 0, 3])).unsqueeze(1)
    found = scores(graph_with(y, task="regression"), outputs, ["r2", "mae", "rmse"])
    assert found["train"] == pytest.approx(1 - 6 / 17.5)
    assert (found["train_mae"], found["train_rmse"]) == (pytest.approx(1.0), pytest.approx(1.0))
    assert (found["test_mae"], found["test_rmse"]) == (pytest.approx(1.5), pytest.approx(math.sqrt(4.5)))


def test_accuracy_is_that_of_torchmetrics() -> None:
    outputs = torch.randn(8, 3, generator=torch.manual_seed(0))
    g = graph_with(torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]))
    theirs = scores(g, outputs, MulticlassAccuracy(3, average="micro"))
    assert scores(g, outputs, "accuracy") == theirs == scores(g, outputs, None)


def test_training_with_the_default_metric_loads_neither_torchmetrics_nor_matplotlib() -> None:
    code = (
        "import sys, lmc; g = lmc.load('tiny-like'); model = lmc.models.GCN(g.num_features, 4, g.num_classes);"
        "lmc.fit(g, model, lmc.methods.FullBatch(), epochs=1, device='cpu');"
        "assert not {'torchmetrics', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_roc_auc_counts_pairs_in_order() -> None:
    y = torch.tensor([0, 0, 0, 1, 1, 1, 0, 1])
    margin = torch.tensor([100.0, 0.3, -2.0, 101.0, 0.4, -3.0, 5.0, 4.0])  # 5 of 9 training pairs are in order
    outputs = torch.stack([torch.zeros(8), margin], 1)
    found = scores(graph_with(y), outputs, "roc-auc")
    assert found == {"train": pytest.approx(5 / 9), "test": 0.0}


def test_scores_that_are_not_defined_are_nan() -> None:
    one = torch.arange(8) == 7  # one test node has no variance, and one class
    y = torch.linspace(0, 1, 8)
    r2 = lmc.Graph.from_edges(both_directions(EDGES), torch.ones(8, 2), y, train=~one, test=one, task="regression")
    auc = lmc.Graph.from_edges(both_directions(EDGES), torch.ones(8, 2), y.round().long(), train=~one, test=one)
    for graph, outputs, metric in ((r2, y[:, None], {"mine": "r2"}), (auc, torch.eye(2)[auc.y], "roc-auc")):
        found = scores(graph, outputs, metric)
        assert found["train"] == pytest.approx(1.0)
        assert math.isnan(found["test"])


def test_torchmetrics_objects_read_probabilities_and_stay_unchanged() -> None:
    y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    outputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    mine = MulticlassF1Score(3, average="macro")
    found = scores(graph_with(y), outputs, {"macro": mine, "accuracy": "accuracy"})
    want = MulticlassF1Score(3, average="macro")(outputs[:6], y[:6])
    assert found["train"] == found["train_macro"] == pytest.approx(float(want))
    assert found["train_accuracy"] == pytest.approx(float((outputs.argmax(1) == y)[:6].double().mean()))
    assert mine._update_count == 0


@pytest.mark.parametrize(
    ("metrics", "name", "direction"),
    [
        (None, "r2", "max"),
        ("rmse", "rmse", "min"),
        (["mae", "r2"], "mae", "min"),
        ({"mine": (ExplainedVariance(), "min")}, "mine", "min"),
    ],
)
def test_the_first_metric_chooses_the_best_epoch(metrics: object, name: str, direction: str) -> None:
    found = metrics_of(metrics, graph_with(torch.rand(8), task="regression"))
    assert (found.names[0], found.direction) == (name, direction)
    assert found.better(2.0, 1.0) is (direction == "max")
    assert found.better(1.0, 2.0) is (direction == "min")
    assert found.better(1.0, None)
    assert not found.better(math.nan, None)


NUMBERS = graph_with(torch.rand(8), task="regression")
WRONG: dict[str, tuple[lmc.Graph, object, str]] = {
    "of another task": (NUMBERS, "accuracy", "expected a metric for task 'regression', mae, rmse, r2 or"),
    "three classes": (hand_graph(), "roc-auc", "expected two classes for roc-auc"),
    "no metric": (NUMBERS, 7, "expected metrics as names or torchmetrics objects"),
    "none of them": (NUMBERS, [], "expected metrics with names of their own"),
    "twice": (NUMBERS, ["mae", "mae"], "expected metrics with names of their own"),
    "no direction": (hand_graph(), MulticlassConfusionMatrix(3), "expected to know which values of .* are better"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_metrics_are_refused_in_one_line(case: str) -> None:
    graph, metrics, message = WRONG[case]
    with pytest.raises(ConfigError, match=message) as refusal:
        metrics_of(metrics, graph)
    assert "\n" not in str(refusal.value)


def test_a_metric_that_does_not_fit_is_refused_when_it_is_used() -> None:
    graph = hand_graph()
    with pytest.raises(ConfigError, match="expected a metric for task 'classes' with 3 outputs") as refusal:
        scores(graph, torch.zeros(8, 3), MulticlassF1Score(7))
    assert "\n" not in str(refusal.value)
    with pytest.raises(ConfigError, match="expected one number from the metric 'table'"):
        scores(graph, torch.zeros(8, 3), {"table": (MulticlassConfusionMatrix(3), "max")})


def test_evaluate_returns_the_splits_that_exist() -> None:
    graph = graph_with(torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]))
    model = lmc.models.GCN(2, 4, 3)
    assert list(lmc.evaluate(model, graph)) == ["train", "test"]
    assert list(lmc.evaluate(model, graph, metrics=["accuracy"])) == [
        "train",
        "test",
        "train_accuracy",
        "test_accuracy",
    ]
