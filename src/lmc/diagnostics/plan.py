"""What a run will keep on every tier, and what a step needs, before the run exists."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmc.diagnostics.probe import BatchSize, Probe, batch_sizes, probe
from lmc.engine import Problem
from lmc.engine.problem import aggregates_once, kind_of
from lmc.errors import ConfigError
from lmc.graph import CSR, Graph
from lmc.graph.csr import pointer_dtype
from lmc.methods import BackwardSGD, ClusterMethod, FullBatch, HistoryMethod, Method
from lmc.models import Model
from lmc.sampling import Clusters
from lmc.stores import Placement

USABLE = 0.9
"""Share of a memory limit that a plan may fill; allocators waste some of the rest."""
DEFAULT = Placement()


@dataclass(frozen=True)
class Item:
    """Something that is kept in memory between steps."""

    name: str
    tier: str
    size: int


@dataclass(frozen=True)
class Plan:
    """What a run keeps between steps (``items``), and the peak of a step beyond it, on its largest batch.

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
        tiers = ("device", "host") if self.on_host else ("device",)
        return self.step + sum(self.tier(name) for name in tiers)

    def tier(self, name: str) -> int:
        """Bytes that are kept on a tier."""
        return sum(item.size for item in self.items if item.tier == name)


@dataclass(frozen=True)
class Division:
    """A graph and its parts, made once, for plans of several batch sizes."""

    graph: Graph
    parts: Tensor
    seed: int

    def clusters(self, method: Method) -> Clusters:
        return method.clusters(self.graph, self.parts, self.seed)


def has_plan(method: Method) -> bool:
    """Whether the memory of a method can be planned: its batches are parts of the graph and their neighbours, or the
    whole graph. Backward SGD reads all nodes in every step."""
    return isinstance(method, FullBatch | ClusterMethod) and not isinstance(method, BackwardSGD)


def divide(graph: Graph, method: Method, seed: int = 0, parts: Tensor | None = None) -> Division:
    """The graph that training sees, with the parts that ``method`` would train on, or given ``parts`` of it; a full
    batch has one part."""
    graph = graph.training_graph
    if isinstance(method, FullBatch):
        return Division(graph, torch.zeros(graph.num_nodes, dtype=torch.int64), seed)
    if not isinstance(method, ClusterMethod) or not has_plan(method):
        raise ConfigError(
            f"expected a method whose batches are parts of the graph and their neighbours (got {method.traits.title}): "
            "a plan needs one, e.g. --method cmc"
        )
    return Division(graph, method.parts_of(graph, seed) if parts is None else parts, seed)


def settle(method: Method, graph: Graph, model: Model, num_nodes: int, num_parts: int) -> Method:
    """The method as a run would settle it on so many nodes with features as those of ``graph``."""
    features = graph.num_features * aggregates_once(model, method.setup)
    return method.settled(model, features, num_nodes, num_parts)


def plan(division: Division, model: Model, method: Method, placement: Placement = DEFAULT) -> Plan:
    """The plan of ``method.bind(graph, model, parts, placement)``."""
    graph, clusters = division.graph, division.clusters(method)
    sizes = batch_sizes(graph, clusters)
    largest = max(sizes, key=lambda s: s.rows)
    mean_rows = sum(s.rows for s in sizes) / len(sizes)
    settled = settle(method, graph, model, graph.num_nodes, clusters.num_parts)
    found = probe(graph, model, settled, largest, placement)
    return plan_of(graph, model, found, largest, clusters.num_batches, mean_rows / largest.rows)


def plan_of(graph: Graph, model: Model, found: Probe, largest: BatchSize, num_batches: int, mean: float = 1.0) -> Plan:
    """The plan of a graph of which only sizes and types are read, so that its tensors may be on the device "meta".

    Args:
        mean: rows of a batch in the mean, as a share of the largest one's.
    """
    items = tuple(_items(graph, model, found, largest, num_batches, mean))
    return Plan(items, found.step, largest, num_batches, found.run.problem.device.type == "cpu")


def _items(
    graph: Graph, model: Model, found: Probe, largest: BatchSize, num_batches: int, mean: float
) -> Iterator[Item]:
    """What is kept; a batch is in the mean ``mean`` times as large as the largest."""
    run, problem = found.run, found.run.problem
    for name, layers in run.tables.items():
        for l, table in layers.items():
            yield Item(f"history {name}[{l}]", table.tier, graph.num_nodes * table.data()[0].nbytes)
    if run.method.traits.sweeps:  # the numbers of other methods are few
        with torch.device("meta"):
            numbers = run.method.numbers(problem, num_batches)
        yield Item("maps of batches", "device", sum(each.nbytes for each in numbers.values()))
    yield from _features(graph, problem)
    yield from _structure(graph, problem)
    if found.transfers:  # buffers of rows in transfer, and the index of every node that locates its row
        recorded = found.recorded_transfers if run.source.kept and run.pipeline.recorder is not None else 0
        index = run.pipeline.staging.device_bytes[1] * graph.num_nodes // run.graph.num_nodes
        yield Item("rows in transfer", "device", found.transfers + recorded + index)
    if run.source.kept:
        yield from _kept_batches(graph, found, largest, num_batches * mean)
    elif problem.device.type == "cuda" or found.transfers > 0:
        yield Item("the next batch", "device", found.batch)
    # Adam has two moments; gradients are allocated by every step, and counted with it
    parameters, buffers = (sum(t.nbytes for t in tensors) for tensors in (model.parameters(), model.buffers()))
    yield Item("parameters and optimiser", "device", 3 * parameters + buffers)


def _kept_batches(graph: Graph, found: Probe, largest: BatchSize, times_largest: float) -> Iterator[Item]:
    """Fixed batches, which together are ``times_largest`` times as large as the largest."""
    method, problem = found.run.method, found.run.problem
    # the batch of FullBatch holds P itself, which the structure counts
    counted = sum(_matrix_bytes(graph, problem)) if isinstance(method, FullBatch) else 0
    yield Item("batches", "device", round(found.batch * times_largest) - counted)
    if method.traits.sweeps and "S" in found.run.tables and not problem.P.on_host:
        # products of bfloat16 rows read float32 values, which are kept beside the others
        of_entry = 4 + problem.dtype.itemsize + (4 if problem.dtype == torch.bfloat16 else 0)
        between, starts = round(largest.cross_edges * times_largest), 4 * (graph.num_nodes + 1)
        kept = between * of_entry + starts
        if len(problem.model.message_widths) > 1:  # those within batches too, for the sums that a sweep continues from
            kept += (graph.adj.nnz + graph.num_nodes - between) * of_entry + starts
        yield Item("edges within and between batches", "device", len(problem.matrices) * kept)


def _features(graph: Graph, problem: Problem) -> list[Item]:
    x, n = graph.x, graph.num_nodes
    if isinstance(x, CSR):
        size = x.nnz * (4 + problem.accumulate_dtype.itemsize) + 4 * (n + 1)
        return [Item("features", problem.features, size)]
    X = problem.X if problem.stored is None else problem.stored.data()
    assert isinstance(X, Tensor)
    items = [Item("P X" if problem.aggregated else "features", problem.features, n * X[0].nbytes)]
    moved = problem.features == "device" and problem.device.type != "cpu"
    if problem.aggregated or moved or x.dtype != problem.dtype:
        tier = "disk" if problem.features == "disk" else "host"
        items.append(Item("features as given", tier, x.nbytes))
    return items


def _structure(graph: Graph, problem: Problem) -> list[Item]:
    n = graph.num_nodes
    entries, starts = _matrix_bytes(graph, problem)
    data = sum(a[0].nbytes for a in (graph.edge_weight, graph.edge_attr) if a is not None)  # in A and in every P
    edges = entries + 4 * (graph.adj.nnz + n + 1) + data * (graph.adj.nnz + len(problem.matrices) * (graph.adj.nnz + n))
    # targets and splits; per node the start of its entries, its number in the user's graph and in a block
    nodes = starts + graph.y.nbytes + 3 * n + 8 * n + 4 * n * len(problem.matrices)
    if not problem.P.on_host:
        return [Item("structure", "device", edges + nodes)]
    return [
        Item("structure", "host" if problem.P.files is None else "disk", edges),
        Item("targets and node numbers", "device", nodes),
    ]


def _matrix_bytes(graph: Graph, problem: Problem) -> tuple[int, int]:
    """Bytes of the entries and of the row pointers of all matrices, including transposes where these differ."""
    number, n = len(problem.matrices) * (1 if problem.P.symmetric else 2), graph.num_nodes
    nnz = graph.adj.nnz + n
    return number * nnz * (4 + problem.dtype.itemsize), number * pointer_dtype(nnz).itemsize * (n + 1)


@dataclass(frozen=True)
class Remedy:
    """Settings that fit, the options of the command line that choose them, and their plan."""

    method: ClusterMethod
    placement: Placement
    options: tuple[str, ...]
    plan: Plan


def remedy(
    division: Division, model: Model, method: ClusterMethod, limit: int, placement: Placement = DEFAULT
) -> Remedy | None:
    """The cheapest change of settings with which a run fits into ``limit`` bytes of the device; None if none does."""
    for changed, where, options in changes(division, model, method, placement):
        found = plan(division, model, changed, where)
        if found.device <= USABLE * limit:
            return Remedy(changed, where, options, found)
    return None


def changes(
    division: Division, model: Model, method: ClusterMethod, placement: Placement
) -> Iterator[tuple[ClusterMethod, Placement, tuple[str, ...]]]:
    """Changes of settings, with the options that choose them: single ones, the cheapest first, then all of them one
    after the other, then smaller and smaller batches."""
    on_gpu = placement.training_device.type != "cpu"
    tiers = ["host", "disk"] if on_gpu else ["disk"]
    sparse = isinstance(division.graph.x, CSR)
    history: list[Change] = [("history", tier) for tier in tiers if isinstance(method, HistoryMethod)]
    features: list[Change] = [("features", tier) for tier in tiers if not (sparse and tier == "disk")]
    rebuild: list[Change] = [("keep_batches", False)]
    structure: list[Change] = []
    if placement.structure == "device" and kind_of(model).reads_batches_only:
        structure = [("structure", "host" if on_gpu else "disk")]
    single = [*history, *(rebuild if placement.keep_batches else ()), *features, *structure]
    tables = [*history[-1:], *features[-1:]]
    combined = [tables, [*tables, *rebuild]]
    if structure:  # after the batches are rebuilt: kept ones hold most of the edges again
        combined.append([*tables, *rebuild, *structure])
    for chosen in [*([change] for change in single), *combined]:
        yield method, *_apply(placement, chosen)
    placement, options = _apply(placement, combined[-1])
    c = division.clusters(method).per_batch // 2
    while c >= 1:
        yield dataclasses.replace(method, clusters_per_batch=c), placement, (*options, f"--clusters {c}")
        c //= 2


Change = tuple[str, Any]
"""A field of the placement and its new value."""


def _apply(placement: Placement, chosen: Sequence[Change]) -> tuple[Placement, tuple[str, ...]]:
    """The placement after these changes, and the options that choose them."""
    options = tuple("--rebuild-batches" if name == "keep_batches" else f"--{name} {value}" for name, value in chosen)
    return dataclasses.replace(placement, **dict(chosen)), options


def largest_clusters(
    division: Division, model: Model, method: ClusterMethod, limit: int, placement: Placement = DEFAULT
) -> int | None:
    """The most parts in a batch with which a run fits into ``limit`` bytes of the device; None if one is too many."""

    def fits(c: int) -> bool:
        changed = dataclasses.replace(method, clusters_per_batch=c)
        return plan(division, model, changed, placement).device <= USABLE * limit

    low, high = 0, int(division.parts.max()) + 1
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low or None
