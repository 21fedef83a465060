"""Scores that fit a task: what ``metrics=`` accepts, computed chunk by chunk, and which one chooses the best epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from lmc.engine import Problem
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.train.signals import never

if TYPE_CHECKING:
    from torchmetrics import Metric

Direction = Literal["max", "min"]
Inputs = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""What a metric reads, from the outputs and the targets of some rows."""

DEFAULT = {"classes": "accuracy", "labels": "micro-f1", "regression": "r2"}
"""The metric of each task where none is named."""


ALIASES = {"topk-f1": "top-k-micro-f1"}


def default_metric(graph: Graph) -> str:
    """The name of the metric that scores a graph where none is named."""
    return graph.metric or DEFAULT[graph.task]


@dataclass(frozen=True, eq=False)
class Score:
    """One metric: how it is named, which values are better, how a new one is made, what it reads, and whether it has a
    value after that."""

    name: str
    direction: Direction
    new: Callable[[], Metric | Accuracy]
    inputs: Inputs
    defined: Callable[[Any], bool] = lambda metric: True


@dataclass(frozen=True, eq=False)
class Metrics:
    """The metrics of an evaluation; the first one chooses the best epoch.

    Args:
        scores: at least one metric.
        named: whether a list or a dict was given, so that scores carry the name of their metric too.
    """

    scores: tuple[Score, ...]
    named: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(score.name for score in self.scores)

    @property
    def direction(self) -> Direction:
        """Which values of the first metric are better."""
        return self.scores[0].direction

    def better(self, score: float, than: float | None) -> bool:
        """Whether a value of the first metric is better than another; NaN is never better, and anything beats None."""
        if score != score or than is None:
            return score == score
        return score > than if self.direction == "max" else score < than


class Tally:
    """The metrics of every split of a graph that has nodes, updated by chunks of rows.

    In a distributed run every rank keeps what its own rows give to the metrics, and at the end all ranks read what all
    of them have. So a score does not depend on the number of ranks.
    """

    def __init__(self, metrics: Metrics, problem: Problem) -> None:
        self._metrics, self._graph = metrics, problem.graph
        self._world = None if problem.exchange is None else problem.exchange.world
        device = problem.graph.y.device
        self._each = {split: [score.new().to(device) for score in metrics.scores] for split in problem.splits}
        self._kept: dict[tuple[str, str], list[tuple[Tensor, Tensor]]] = {}
        for metric in chain(*self._each.values()):
            if not isinstance(metric, Accuracy):
                # torchmetrics would gather by itself, also where one rank evaluates alone
                metric.distributed_available_fn = never

    def update(self, rows: slice | Tensor, outputs: Tensor) -> None:
        """Count the outputs of rows of the graph."""
        y = self._graph.y[rows]
        for split, each in self._each.items():
            chosen = getattr(self._graph, split)[rows]
            if not bool(chosen.any()) and self._world is None:
                continue
            for score, metric in zip(self._metrics.scores, each, strict=True):
                try:
                    read = score.inputs(outputs[chosen], y[chosen])
                    if self._world is None:
                        metric.update(*read)
                    else:
                        self._kept.setdefault((split, score.name), []).append(read)
                except (ValueError, RuntimeError, TypeError, IndexError) as error:
                    raise _misfit(score.name, self._graph, error) from error

    def compute(self) -> dict[str, float]:
        """The first metric by split; where several were given, ``split_name`` of every one too."""
        for (split, name), kept in self._kept.items():
            assert self._world is not None
            inputs = (torch.cat(self._world.gather(torch.cat(column))) for column in zip(*kept, strict=True))
            self._each[split][self._metrics.names.index(name)].update(*inputs)
        found = {split: [self._value(*pair) for pair in zip(self._metrics.scores, each, strict=True)]
                 for split, each in self._each.items()}  # fmt: skip
        scores = {split: values[0] for split, values in found.items()}
        if self._metrics.named:
            names = self._metrics.names
            scores |= {f"{s}_{k}": v for s, values in found.items() for k, v in zip(names, values, strict=True)}
        return scores

    def _value(self, score: Score, metric: Metric | Accuracy) -> float:
        if not score.defined(metric):
            return float("nan")
        try:
            value = metric.compute()
            if isinstance(value, Tensor) and value.numel() == 1:
                return float(value)
        except (ValueError, RuntimeError, TypeError) as error:
            raise _misfit(score.name, self._graph, error) from error
        shown = f"{list(value.shape)} of them" if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(f"expected one number from the metric {score.name!r} (got {shown}): choose an average")


def _misfit(name: str, graph: Graph, error: Exception) -> ConfigError:
    return ConfigError(
        f"expected a metric for task {graph.task!r} with {graph.num_classes} outputs (got {name!r}, which answered "
        f"{' '.join(str(error).split())}): build it for them"
    )


def metrics_of(given: object, graph: Graph) -> Metrics:
    """The metrics that ``metrics=`` names.

    Args:
        given: None for the task's own; a name, a torchmetrics metric, a sequence of them, or a dict from names of your
            own to them. ``(metric, "max")`` or ``(metric, "min")`` says which values are better.
    """
    if given is None:
        return Metrics((_named(default_metric(graph), graph),))
    if isinstance(given, Mapping):
        scores = [_score(metric, graph, str(name)) for name, metric in given.items()]
    elif isinstance(given, list) or (isinstance(given, tuple) and not _is_directed(given)):
        scores = [_score(metric, graph) for metric in given]
    else:
        return Metrics((_score(given, graph),))
    names = [score.name for score in scores]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"expected metrics with names of their own (got {names}): pass a dict of names to metrics")
    return Metrics(tuple(scores), named=True)


def _is_directed(given: tuple[Any, ...]) -> bool:
    return len(given) == 2 and given[1] in ("max", "min")


def _score(given: object, graph: Graph, name: str | None = None) -> Score:
    direction = None
    if isinstance(given, tuple) and _is_directed(given):
        given, direction = given
    if isinstance(given, str):
        found = _named(given, graph)
        return replace(found, name=name or found.name, direction=direction or found.direction)
    from torchmetrics import Metric

    if not isinstance(given, Metric):
        raise ConfigError(f"expected metrics as names or torchmetrics objects (got {given!r}): use one of {NAMES}")
    if direction is None and given.higher_is_better is None:
        raise ConfigError(
            f'expected to know which values of {type(given).__name__} are better (got nothing): pass (metric, "max") '
            'or (metric, "min")'
        )
    fresh = given.clone()
    fresh.reset()
    inputs = _values if graph.task == "regression" else _probabilities(graph, type(given).__name__.startswith("Binary"))
    return Score(
        name or type(given).__name__, direction or ("max" if given.higher_is_better else "min"), fresh.clone, inputs
    )


def _probabilities(graph: Graph, binary: bool) -> Inputs:
    """Probabilities: metrics would take logits that happen to lie in [0, 1] for probabilities."""

    def inputs(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if graph.task == "labels":
            return outputs.sigmoid(), y.long()
        p = outputs.softmax(1)
        return p[:, 1] if binary and graph.num_classes == 2 else p, y

    return inputs


def _values(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Predicted and true numbers, in float64 so that sums of squares lose no digits."""
    return outputs.reshape(y.shape).double(), y.double()


def _classes(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return outputs.argmax(1), y


def _labels(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    # thresholded here: the metric would take values that all lie in [0, 1] for probabilities
    return (outputs > 0).long(), y.long()


def _top_k(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The k highest outputs of a node with k labels are its predicted labels."""
    ranks = outputs.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return (ranks < y.sum(1, keepdim=True)).long(), y.long()


def _margin(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The difference of the two logits, mapped to (0, 1) in order; probabilities would round to 1 and tie."""
    return 0.5 + (outputs[:, 1] - outputs[:, 0]).double().atan() / torch.pi, y


NAMES = ("accuracy", "micro-f1", "top-k-micro-f1", "roc-auc", "mae", "rmse", "r2")


class Accuracy:
    """The share of rows with the right class: the default needs no torchmetrics, which loads slower than all of lmc."""

    def __init__(self) -> None:
        self._counts = torch.zeros(2, dtype=torch.int64)  # right, all

    def to(self, device: torch.device) -> Accuracy:
        self._counts = self._counts.to(device)
        return self

    def update(self, predicted: Tensor, y: Tensor) -> None:
        self._counts += torch.stack([(predicted == y).sum(), torch.full_like(self._counts[1], len(y))])

    def compute(self) -> Tensor:
        return self._counts[0] / self._counts[1]


def _named(name: str, graph: Graph) -> Score:
    name, k = name.strip().lower().replace("_", "-"), graph.num_classes
    name = ALIASES.get(name, name)
    # with one class per node the two are the same number
    counted: dict[str, tuple[Any, ...]] = dict.fromkeys(("accuracy", "micro-f1"), ("max", Accuracy, _classes))
    if graph.task == "classes" and name in counted:
        return Score(name, *counted[name])
    from torchmetrics import MeanAbsoluteError, MeanSquaredError, R2Score
    from torchmetrics.classification import BinaryAUROC, MultilabelF1Score

    def micro_f1() -> Metric:
        return MultilabelF1Score(k, average="micro", validate_args=False)

    of_task: dict[str, dict[str, tuple[Any, ...]]] = {
        "classes": counted
        | {"roc-auc": ("max", BinaryAUROC, _margin, lambda metric: torch.cat(metric.target).unique().numel() == 2)},
        "labels": {"micro-f1": ("max", micro_f1, _labels), "top-k-micro-f1": ("max", micro_f1, _top_k)},
        "regression": {
            "mae": ("min", lambda: MeanAbsoluteError().set_dtype(torch.float64), _values),
            "rmse": ("min", lambda: MeanSquaredError(squared=False).set_dtype(torch.float64), _values),
            "r2": ("max", lambda: R2Score().set_dtype(torch.float64), _values, lambda metric: int(metric.total) > 1),
        },
    }
    fitting = of_task[graph.task]
    if name not in fitting:
        raise ConfigError(
            f"expected a metric for task {graph.task!r}, {', '.join(fitting)} or a torchmetrics object (got {name!r})"
        )
    if name == "roc-auc" and k != 2:
        raise ConfigError(f"expected two classes for roc-auc (got {k}): pass torchmetrics' MulticlassAUROC({k})")
    return Score(name, *fitting[name])
