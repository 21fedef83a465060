"""Methods trained side by side: one epoch each in turn, from the same parameters, on the same partition."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from torch import Tensor

from lmc.bench.about import about, with_memory, write_about
from lmc.diagnostics import EstimateProbe, GradientProbe, bias, staleness
from lmc.engine import Run
from lmc.errors import Interrupted
from lmc.files import writable
from lmc.graph import Graph
from lmc.methods import BackwardSGD, ClusterMethod, FullBatch, Method
from lmc.results import About, EpochRecord, ErrorRecord, append_lines
from lmc.train import Settings, train

PROBED = 3
"""The number of batches over which a gradient error is averaged."""
Event = tuple[str, EpochRecord, ErrorRecord | None]
"""The label of a method, an epoch of it, and the gradient error where it was measured after that epoch."""
Partitions = dict[tuple[int | None, str], Tensor]
"""Partitions by number of parts and kind."""


@dataclass(frozen=True, eq=False)
class ComparedRun:
    """A bound method and the folder of its results."""

    label: str
    run: Run
    folder: Path


def shared_parts(method: Method, graph: Graph, seed: int, known: Partitions) -> Tensor | None:
    """The parts of a method, out of ``known`` where they are there; None for a method without parts."""
    if not isinstance(method, ClusterMethod):
        return None
    key = method.num_parts, method.partition
    if key not in known:
        known[key] = method.parts_of(graph.training_graph, seed)
    return known[key]


def compare(
    compared: Sequence[ComparedRun],
    settings: Settings,
    *,
    error_every: int,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Train the methods in turn, one epoch each, and yield every epoch as it is done.

    Args:
        error_every: epochs between measurements of the gradient error; 0: never. The last of them also measures the
            bias, which takes a training epoch and a full batch. They are written to errors.jsonl and do not count as
            training time.
        resume: continue each method from its own folder; a finished one is not trained again.
        stop: when it becomes true, every method that has begun is saved, and :class:`Interrupted` is raised.
    """
    turns = {c.label: _events(c, settings, error_every, resume, stop) for c in compared}
    begun: set[str] = set()
    stopped = False
    while turns:
        for label in list(turns):
            try:
                if stop() and label not in begun:
                    raise Interrupted  # there is nothing to save yet
                begun.add(label)
                yield next(turns[label])
            except (StopIteration, Interrupted) as error:
                stopped |= isinstance(error, Interrupted)
                del turns[label]
    if stopped:
        raise Interrupted(f"stopped; every method is saved in {compared[0].folder.parent}")


def _events(
    c: ComparedRun, settings: Settings, error_every: int, resume: bool, stop: Callable[[], bool]
) -> Iterator[Event]:
    """Train one method and measure its gradient error on the way."""
    probe: GradientProbe | None = None
    known: About | None = None
    for record in train(c.run, settings, c.folder, resume, stop):
        error = None
        if known is None:  # the folder is this run's now
            known = about(c.run, c.label)
            write_about(c.folder, known)
        if error_every and record.epoch % error_every == 0 and has_error(c.run.schedule or c.run.method):
            probe = probe or GradientProbe(c.run)  # it holds copies of the graph, and is made when first needed
            error = measure(probe, c.run, record.epoch)
            if record.epoch + error_every > settings.epochs:  # the last measurement
                error = replace(error, bias=fmean(bias(c.run).values()))
            with writable(c.folder):
                append_lines(c.folder / "errors.jsonl", [error])
        yield c.label, record, error
    if known is not None:
        write_about(c.folder, with_memory(known, c.run))


def has_error(method: Method) -> bool:
    """Whether the gradient of a method can differ from that of backward SGD."""
    return not isinstance(method, FullBatch | BackwardSGD)


def measure(probe: GradientProbe, run: Run, epoch: int) -> ErrorRecord:
    """The error of the first batches of an epoch by layer, averaged over PROBED batches.

    For recurrent models the errors of their states and adjoints, "H" and "V", follow.
    """
    count = run.epoch
    batches = list(itertools.islice(run.batches(epoch), PROBED))
    run.epoch = count  # the run's own count of epochs stays as it is
    measured = [probe(batch).backward_sgd for batch in batches]
    means = {name: fmean(m[name] for m in measured) for name in measured[0]}
    layers: dict[str, list[float]] = {}
    for name, value in means.items():
        layers.setdefault(layer_of(name), []).append(value)
    by_layer = {layer: fmean(values) for layer, values in layers.items()}
    if run.problem.model.recurrent:
        estimates = EstimateProbe(run)
        found = [estimates(batch) for batch in batches]
        by_layer |= {"H": fmean(e.H for e in found), "V": fmean(e.V for e in found)}
    return ErrorRecord(epoch, by_layer, fmean(means.values()), staleness=_staleness(run))


def _staleness(run: Run) -> dict[str, float] | None:
    """The relative distance of H and V from exact values, by layer; None where a method keeps neither."""
    if run.problem.model.recurrent or not (run.H or run.V):
        return None
    found = staleness(run)
    return {f"{name} {l}": v for name, of in (("H", found.H), ("V", found.V)) for l, v in of.items()}


def layer_of(parameter: str) -> str:
    """ "layer 2" for the parameter ``layers.1.lin.weight``; "in" and "out" for the Linears around the layers."""
    found = re.match(r"layers\.(\d+)\.", parameter)
    if found:
        return f"layer {int(found[1]) + 1}"
    return "in" if parameter.split(".")[0].endswith("_in") else "out"
