"""Exact evaluation, layer by layer in chunks of rows."""

from __future__ import annotations

from collections import deque
from functools import partial

from lmc.engine import Problem, check_fit
from lmc.engine.exact import MAX_ELEMENTS, chunks_of, exact_logits, exact_states
from lmc.errors import typed
from lmc.graph import SPLITS, Graph
from lmc.models import Model
from lmc.stores import Placement, Table, placement_on


@typed
def evaluate(
    model: Model, graph: Graph, *, placement: Placement | None = None, max_elements: int = MAX_ELEMENTS
) -> dict[str, float]:
    """Accuracy (micro-F1 for multi-label targets) of the exact forward pass on the whole graph, per split.

    Args:
        model: evaluated on the device it is on, in evaluation mode; afterwards every submodule has its own mode again.
        graph: every message is counted, as in a full-batch forward pass.
        placement: where the states between two layers (``history``) and the features are kept.
        max_elements: numbers in the widest state of all rows that one chunk computes or reads. It bounds the memory
            besides the tables, and does not change the result.
    """
    check_fit(graph, model)
    device = next(model.parameters()).device
    return evaluate_problem(Problem.of(graph, model, placement_on(device, placement)), max_elements)


def evaluate_problem(
    problem: Problem, max_elements: int = MAX_ELEMENTS, start: Table | None = None
) -> dict[str, float]:
    """The scores of :func:`evaluate` for a problem that exists already; ``start`` holds the initial states of a
    fixed-point solver."""
    # imported here: torchmetrics takes longer to load than the whole of this library
    from torchmetrics.classification import MulticlassAccuracy, MultilabelF1Score

    graph, chunks = problem.graph, chunks_of(problem, max_elements)
    kind = MultilabelF1Score if graph.multi_label else MulticlassAccuracy
    new = partial(kind, graph.num_classes, average="micro", validate_args=False)
    metrics = {split: new().to(problem.device) for split in SPLITS}

    def make(_: int, width: int) -> Table:
        table = problem.table(width)
        if start is not None:
            table.data().copy_(start.data())
        return table

    # only the table of the last layer is kept, unless the logits read the earlier ones too
    states = (table for _, table in exact_states(problem, chunks, make))
    tables = deque(states, maxlen=None if problem.kind.logits_read_all_layers else 1)
    for rows, logits in exact_logits(problem, chunks, list(tables)):
        # thresholded here: the metric would take values that all lie in [0, 1] for probabilities
        predicted = (logits > 0).long() if graph.multi_label else logits.argmax(1)
        for split, metric in metrics.items():
            chosen = getattr(graph, split)[rows]
            if bool(chosen.any()):
                metric.update(predicted[chosen], graph.y[rows][chosen].long())
    return {split: float(metric.compute()) for split, metric in metrics.items()}
