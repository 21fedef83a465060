"""Methods side by side: one epoch each in turn, from the same parameters, on the same partition."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from lmc.diagnostics import EstimateProbe, GradientProbe
from lmc.engine import Run
from lmc.errors import Interrupted
from lmc.graph import Batch, Graph
from lmc.methods import BackwardSGD, ClusterMethod, FullBatch, Method
from lmc.models import Model
from lmc.results import EpochRecord, ErrorRecord, append_line
from lmc.stores import Placement
from lmc.train import Settings, train

PROBED = 3
"""Batches a measurement of the gradient error is the mean of."""


@dataclass(frozen=True, eq=False)
class Contestant:
    """A bound method, and the folder its results go to."""

    label: str
    run: Run
    folder: Path


@dataclass(frozen=True)
class Event:
    """One method finished one epoch; ``error`` where the gradient error was measured after it."""

    label: str
    record: EpochRecord
    error: ErrorRecord | None = None


def contestants(
    graph: Graph,
    model: Model,
    methods: Mapping[str, Method],
    folders: Mapping[str, Path],
    *,
    seed: int,
    placement: Placement,
) -> list[Contestant]:
    """Every method bound to a copy of ``model`` of its own; methods that cut the graph alike share the cut."""
    cuts: dict[tuple[int | None, str], Tensor] = {}
    bound = []
    for label, method in methods.items():
        parts = None
        if isinstance(method, ClusterMethod):
            key = method.num_parts, method.partition
            if key not in cuts:
                cuts[key] = method.parts_of(graph, seed)
            parts = cuts[key]
        run = method.bind(graph, copy.deepcopy(model), parts, placement, seed=seed)
        bound.append(Contestant(label, run, folders[label]))
    return bound


def compare(
    entered: Sequence[Contestant],
    settings: Settings,
    *,
    error_every: int,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Train all of them in turns and yield every epoch as it comes.

    Args:
        error_every: epochs between measurements of the gradient error; 0: never. They are written to errors.jsonl
            and do not count as training time.
        resume: continue each method from its own folder; a finished one is not trained again.
        stop: where it becomes true every method that has begun is saved, and :class:`Interrupted` raised.
    """
    turns = {c.label: train(c.run, settings, c.folder, resume, stop) for c in entered}
    probes: dict[str, GradientProbe] = {}
    begun: set[str] = set()
    stopped = False
    while turns:
        for c in entered:
            if c.label not in turns:
                continue
            if stop() and c.label not in begun:  # nothing to save yet
                del turns[c.label]
                stopped = True
                continue
            begun.add(c.label)
            try:
                record = next(turns[c.label], None)
            except Interrupted:
                del turns[c.label]
                stopped = True
                continue
            if record is None:
                del turns[c.label]
                continue
            error = None
            if error_every and record.epoch % error_every == 0 and has_error(c.run.method):
                if c.label not in probes:  # its yardsticks are copies of the graph: set up when first needed
                    probes[c.label] = GradientProbe(c.run)
                error = measure(probes[c.label], c.run, record.epoch)
                append_line(c.folder / "errors.jsonl", error)
            yield Event(c.label, record, error)
    if stopped:
        raise Interrupted(f"stopped; every method is saved in {entered[0].folder.parent}")


def has_error(method: Method) -> bool:
    """Whether a method's gradient can differ from backward SGD's at all."""
    return not isinstance(method, FullBatch | BackwardSGD)


def measure(probe: GradientProbe, run: Run, epoch: int) -> ErrorRecord:
    """The error of the batches that come next, the mean of a few, by layer.

    Recurrent models have errors of their states and adjoints beside them, "H" and "V".
    """
    batches = _upcoming(run, epoch)
    measured = [probe(batch).backward_sgd for batch in batches]
    means = {name: sum(m[name] for m in measured) / len(measured) for name in measured[0]}
    layers: dict[str, list[float]] = {}
    for name, value in means.items():
        layers.setdefault(layer_of(name), []).append(value)
    by_layer = {layer: sum(values) / len(values) for layer, values in layers.items()}
    if run.problem.model.recurrent:
        estimates = EstimateProbe(run)
        found = [estimates(batch) for batch in batches]
        by_layer |= {"H": sum(e.H for e in found) / len(found), "V": sum(e.V for e in found) / len(found)}
    return ErrorRecord(epoch, by_layer, sum(means.values()) / len(means))


def layer_of(parameter: str) -> str:
    """ "layer 2" for the parameter ``layers.1.lin.weight``; "in" and "out" for the Linears around the layers."""
    found = re.match(r"layers\.(\d+)\.", parameter)
    if found:
        return f"layer {int(found[1]) + 1}"
    return "in" if parameter.split(".")[0].endswith("_in") else "out"


def _upcoming(run: Run, epoch: int) -> list[Batch]:
    """The first batches of an epoch; the run's own count of epochs stays as it is."""
    count = run.epoch
    batches = list(itertools.islice(run.batches(epoch), PROBED))
    run.epoch = count
    return batches
