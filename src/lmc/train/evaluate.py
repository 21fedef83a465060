"""Exact evaluation, layer by layer in chunks of rows."""

from __future__ import annotations

from lmc.engine import Distributed, Problem, check_fit
from lmc.engine.distributed.ownership import share
from lmc.engine.distributed.world import World, local_device
from lmc.engine.exact import MAX_ELEMENTS, chunks_of, exact_logits, last_states
from lmc.engine.problem import PLAIN_SETUP
from lmc.errors import ConfigError, typed
from lmc.graph import Graph, Shard
from lmc.methods.protocol import Setup
from lmc.models import Model
from lmc.stores import Placement, Table, placement_on
from lmc.train.metrics import Metrics, Tally, metrics_of


@typed
def evaluate(
    model: Model, graph: Graph | Shard, *, metrics: object = None, placement: Placement | None = None,
    max_elements: int = MAX_ELEMENTS, distributed: bool | Distributed = False,
) -> dict[str, float]:  # fmt: skip
    """Scores of the exact forward pass on the whole graph, for every split that has nodes.

    Args:
        model: evaluated on the device it is on, in evaluation mode; afterwards every submodule has its own mode again.
        graph: every message is counted, as in a full-batch forward pass; of several ranks also the shard of this one.
        metrics: by default ``graph.metric``, or accuracy of classes, micro-F1 of labels, R2 of a regression; else a
            name ("accuracy", "micro-f1", "top-k-micro-f1", "roc-auc", "mae", "rmse", "r2"), a torchmetrics metric, a
            list of them, or a dict from names of your own to them. Of several, the first one is the score of a split,
            ``scores["val"]``, and every one is found by split and name, ``scores["val_mae"]``.
        placement: where the states between two layers (``history``) and the features are kept.
        max_elements: numbers in the widest state of all rows that one chunk computes or reads. It bounds the memory
            besides the tables, and does not change the result.
        distributed: evaluate together with the other processes that torchrun started; all of them get the scores.
    """
    check_fit(graph, model, needs="targets")
    wanted = metrics_of(metrics, graph.graph if isinstance(graph, Shard) else graph)
    problem = shared_problem(graph, model, placement_on(next(model.parameters()).device, placement), distributed)
    return evaluate_problem(problem, max_elements, metrics=wanted)


def shared_problem(
    graph: Graph | Shard, model: Model, placement: Placement, distributed: bool | Distributed,
    setup: Setup = PLAIN_SETUP,
) -> Problem:  # fmt: skip
    """The problem of a graph, or of this rank's share of it."""
    if not distributed:
        if isinstance(graph, Shard):
            raise ConfigError("expected distributed=True for a shard (got False): it is a part of a graph; pass True")
        return Problem.of(graph, model, placement, setup)
    options = Distributed() if distributed is True else distributed
    exchange = share(graph, World(options, local_device(placement.training_device)))
    return Problem.of(exchange.shard.graph, model, placement, setup, exchange=exchange)


def evaluate_problem(
    problem: Problem, max_elements: int = MAX_ELEMENTS, start: Table | None = None, metrics: Metrics | None = None
) -> dict[str, float]:
    """The scores of :func:`evaluate` for a problem that exists already; ``start`` holds the initial states of a
    fixed-point solver."""
    graph, chunks = problem.graph, chunks_of(problem, max_elements)
    tally = Tally(metrics or metrics_of(None, graph), problem)

    for rows, outputs in exact_logits(problem, chunks, last_states(problem, chunks, start)):
        tally.update(rows, outputs)
    return tally.compute()
