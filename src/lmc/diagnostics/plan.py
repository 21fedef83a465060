"""What a run will hold on every tier, and what a step takes, before anything of it is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.diagnostics.probe import BatchSize, batch_sizes, probe
from lmc.errors import ConfigError
from lmc.graph import CSR, Graph
from lmc.methods import BackwardSGD, ClusterMethod, FullBatch, HistoryMethod, Method, Problem
from lmc.models import Model
from lmc.sampling import Clusters
from lmc.stores import Placement

ROOM = 0.9
"""Of a memory limit, what a plan may fill: allocators waste some."""


@dataclass(frozen=True)
class Item:
    """Something that stays in memory between steps."""

    name: str
    tier: str
    size: int


@dataclass(frozen=True)
class Plan:
    """What a run holds between steps (``items``), and the peak of a step beyond it, on its largest batch.

    On a CPU the device is the host: ``device`` counts both.
    """

    items: tuple[Item, ...]
    step: int
    batch: BatchSize
    num_batches: int
    on_host: bool

    @property
    def device(self) -> int:
        """Bytes of the training device's memory at the peak of a step."""
        here = {"device", "host"} if self.on_host else {"device"}
        return self.step + sum(item.size for item in self.items if item.tier in here)

    def tier(self, name: str) -> int:
        """Bytes that stay on a tier."""
        return sum(item.size for item in self.items if item.tier == name)


@dataclass(frozen=True)
class Division:
    """A graph and its parts, made once, for plans of several batch sizes."""

    graph: Graph
    parts: Tensor
    seed: int

    def clusters(self, method: Method) -> Clusters:
        return method.clusters(self.graph, self.parts, self.seed)


def divide(graph: Graph, method: Method, seed: int = 0) -> Division:
    """The graph in the parts that ``method`` would train on; a full batch has one."""
    if isinstance(method, FullBatch):
        return Division(graph, torch.zeros(graph.num_nodes, dtype=torch.int64), seed)
    if not isinstance(method, ClusterMethod) or isinstance(method, BackwardSGD):
        raise ConfigError(
            f"expected a method whose batches are parts of the graph and their neighbours (got {method.title}): "
            "a plan needs one, e.g. --method cmc"
        )
    return Division(graph, method.parts_of(graph, seed), seed)


def plan(
    division: Division,
    model: Model,
    method: Method,
    device: torch.device | str = "cpu",
    placement: Placement = Placement(),  # noqa: B008,
) -> Plan:
    """The plan of ``method.bind(graph, model, ...)`` with this placement."""
    device, graph = torch.device(device), division.graph
    clusters = division.clusters(method)
    sizes = batch_sizes(graph, clusters)
    largest = max(sizes, key=lambda s: s.rows)
    found = probe(graph, model, method, largest, device, placement)
    problem, n = found.run.problem, graph.num_nodes
    items = [
        Item(f"history {name}[{l}]", table.tier, n * table.data()[0].nbytes)
        for name, layers in found.run.tables.items()
        for l, table in layers.items()
    ]
    items += _features(graph, problem)
    items += _structure(graph, problem)
    fixed = found.run.keeps_batches
    if found.travelling:
        # a recorded step has places of its own beside the two that rows come and go by in turns
        rows = found.travelling + (found.standing if fixed and found.run.records else 0)
        places = found.run.staging.held[1] * n // problem.graph.num_nodes
        items.append(Item("rows on their way", "device", rows + places))
    if not fixed and (device.type == "cuda" or found.travelling):
        items.append(Item("the next batch", "device", found.batch))
    if fixed:
        mean = sum(s.rows for s in sizes) / len(sizes)
        size = round(found.batch * clusters.num_batches * mean / largest.rows)
        # a full batch reads P itself
        size -= _matrix(graph, problem) if isinstance(method, FullBatch) else 0
        items.append(Item("batches", "device", size))
    each = [p.numel() * p.element_size() for p in model.parameters()]
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    # the parameters and Adam's two moments; gradients are made by every step, and counted with it
    items.append(Item("parameters and optimiser", "device", 3 * sum(each) + buffers))
    return Plan(tuple(items), found.step, largest, clusters.num_batches, device.type == "cpu")


def _features(graph: Graph, problem: Problem) -> list[Item]:
    x, n = graph.x, graph.num_nodes
    if isinstance(x, CSR):
        size = x.nnz * (4 + problem.accumulate_dtype.itemsize) + 4 * (n + 1)
        return [Item("features", problem.features, size)]
    X = problem.X if problem.stored is None else problem.stored.data()
    assert isinstance(X, Tensor)
    items = [Item("features" if not problem.aggregated else "P X", problem.features, n * X[0].nbytes)]
    moved = problem.features == "device" and problem.device.type != "cpu"
    if problem.aggregated or moved or x.dtype != problem.dtype:
        tier = "disk" if problem.features == "disk" else "host"
        items.append(Item("features as given", tier, x.numel() * x.element_size()))
    return items


def _structure(graph: Graph, problem: Problem) -> list[Item]:
    n, nnz = graph.num_nodes, graph.adj.nnz
    targets = graph.y.numel() * graph.y.element_size() + 3 * n
    # P and its pattern; numbers a node: where its entries begin, its place in the user's graph and in a block being cut
    edges = _copies(problem) * (nnz + n) * (4 + problem.dtype.itemsize) + 4 * (nnz + n + 1)
    nodes = _copies(problem) * 4 * (n + 1) + targets + 8 * n + 4 * n * len(problem.matrices)
    if not problem.P.on_host:
        return [Item("structure", "device", edges + nodes)]
    return [Item("structure", "host", edges), Item("targets, and places of nodes", "device", nodes)]


def _copies(problem: Problem) -> int:
    """The matrices, and their transposes where those are others."""
    return len(problem.matrices) * (1 if problem.P.symmetric else 2)


def _matrix(graph: Graph, problem: Problem) -> int:
    """P, and its transpose where that is another."""
    n, nnz = graph.num_nodes, graph.adj.nnz
    return _copies(problem) * ((nnz + n) * (4 + problem.dtype.itemsize) + 4 * (n + 1))


@dataclass(frozen=True)
class Remedy:
    """Settings that fit, the options that name them, and their plan."""

    method: ClusterMethod
    placement: Placement
    options: tuple[str, ...]
    plan: Plan


def remedy(
    division: Division,
    model: Model,
    method: ClusterMethod,
    limit: int,
    device: torch.device | str = "cpu",
    placement: Placement = Placement(),  # noqa: B008,
) -> Remedy | None:
    """The gentlest change of settings with which a run fits into ``limit`` bytes of the device; None if none does."""
    for changed, where, options in changes(division, model, method, torch.device(device), placement):
        found = plan(division, model, changed, device, where)
        if found.device <= ROOM * limit:
            return Remedy(changed, where, options, found)
    return None


def changes(
    division: Division, model: Model, method: ClusterMethod, device: torch.device, placement: Placement
) -> Iterator[tuple[ClusterMethod, Placement, tuple[str, ...]]]:
    """Single changes from the cheapest on, then one after the other all of them, then smaller and smaller batches: with
    each the options that name it."""
    tiers = ["disk"] if device.type == "cpu" else ["host", "disk"]
    keeps = isinstance(method, HistoryMethod)
    sparse = isinstance(division.graph.x, CSR)
    away = [tier for tier in tiers if not (sparse and tier == "disk")]
    far = device.type != "cpu" and placement.structure == "device" and method.reads_batches_alone(model)
    for tier in tiers if keeps else ():
        yield method, dataclasses.replace(placement, history=tier), (f"--history {tier}",)
    if placement.keep_batches:
        yield method, dataclasses.replace(placement, keep_batches=False), ("--rebuild-batches",)
    for tier in away:
        yield method, dataclasses.replace(placement, features=tier), (f"--features {tier}",)
    if far:
        yield method, dataclasses.replace(placement, structure="host"), ("--structure host",)
    options: tuple[str, ...] = ()
    if keeps:
        placement, options = dataclasses.replace(placement, history=tiers[-1]), (f"--history {tiers[-1]}",)
    if away:
        placement, options = dataclasses.replace(placement, features=away[-1]), (*options, f"--features {away[-1]}")
    yield method, placement, options
    placement, options = dataclasses.replace(placement, keep_batches=False), (*options, "--rebuild-batches")
    yield method, placement, options
    if far:  # behind rebuilt batches: kept ones hold most of the edges again
        placement, options = dataclasses.replace(placement, structure="host"), (*options, "--structure host")
        yield method, placement, options
    c = division.clusters(method).per_batch // 2
    while c >= 1:
        yield dataclasses.replace(method, clusters_per_batch=c), placement, (*options, f"--clusters {c}")
        c //= 2


def largest_clusters(
    division: Division,
    model: Model,
    method: ClusterMethod,
    limit: int,
    device: torch.device | str = "cpu",
    placement: Placement = Placement(),  # noqa: B008,
) -> int | None:
    """The most parts in a batch with which a run fits into ``limit`` bytes of the device; None if one is too many."""

    def fits(c: int) -> bool:
        changed = dataclasses.replace(method, clusters_per_batch=c)
        found = plan(division, model, changed, device, placement)
        return found.device <= ROOM * limit

    low, high = 0, int(division.parts.max()) + 1
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low or None
