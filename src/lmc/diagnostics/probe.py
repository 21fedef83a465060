"""The memory of a run, and of a step before its run exists (the paper's memory table).

A step is predicted on a small graph whose batch has the same proportions. At fixed proportions of core rows, halo rows
and the edges between them, all memory that a step allocates grows linearly with its batch, whatever the method and the
model. So two small steps, run by the code that will train, predict a large one.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from lmc.engine import Run
from lmc.engine.cuda_graphs import no_collection
from lmc.graph import CSR, Batch, Extractor, Graph, live_tensors, with_transpose, without_features
from lmc.graph.csr import row_entries
from lmc.methods import ClusterMethod, Method
from lmc.models import Model
from lmc.sampling import Clusters
from lmc.stores import Placement
from lmc.stores.background import KEPT

ROWS = 6000
"""Rows in the larger of the two small batches."""
SAMPLE, HALO_SAMPLE = 32, 8
"""Batches of an epoch whose size is measured, and whose halo alone is."""


@dataclass(frozen=True)
class BatchSize:
    """Rows of a batch, and directed edges: within the core, from core to halo, within the halo."""

    core: int
    halo: int
    core_edges: int
    cross_edges: int
    halo_edges: int

    @property
    def rows(self) -> int:
        return self.core + self.halo

    def scaled(self, factor: float) -> BatchSize:
        """The same proportions, with at least two core rows, and a halo where there is one."""
        core, halo, *edges = (round(v * factor) for v in dataclasses.astuple(self))
        return BatchSize(max(2, core), max(min(1, self.halo), halo), *edges)


def batch_sizes(graph: Graph, clusters: Clusters) -> list[BatchSize]:
    """The sizes of about :data:`SAMPLE` batches of an epoch, evenly spaced; directed edges count in both directions."""
    adj = with_transpose(graph.adj.to("cpu"))
    return [_size(adj, core) for core in _cores(clusters, SAMPLE)]


def halo_ratio(graph: Graph, clusters: Clusters) -> float:
    """Halo rows over core rows, the mean of about :data:`HALO_SAMPLE` batches of an epoch, evenly spaced."""
    blocks = Extractor(with_transpose(graph.adj.to("cpu")))
    return fmean(blocks.halo(core).numel() / core.numel() for core in _cores(clusters, HALO_SAMPLE))


def _cores(clusters: Clusters, sample: int) -> Iterator[Tensor]:
    """The core rows of about ``sample`` batches of an epoch, evenly spaced."""
    drawn = clusters.epoch(0)
    return (clusters.order[clusters.core(parts)] for parts in drawn[:: max(1, len(drawn) // sample)])


def _size(adj: CSR, core: Tensor) -> BatchSize:
    CORE, HALO = 1, 2
    mark = torch.zeros(adj.num_rows, dtype=torch.int8)
    mark[core] = CORE
    read = adj.indices[row_entries(adj, core)[0]]
    outside = read[mark[read] == 0]
    mark[outside] = HALO
    halo = (mark == HALO).nonzero().squeeze(1)
    read_by_halo = adj.indices[row_entries(adj, halo)[0]]
    core_edges, halo_edges = read.numel() - outside.numel(), int((mark[read_by_halo] == HALO).sum())
    return BatchSize(core.numel(), halo.numel(), core_edges, outside.numel(), halo_edges)


@dataclass(frozen=True)
class Probe:
    """Bytes that a batch of one size needs, and a run on the small graph for what does not depend on size.

    ``step`` is the peak of a step beyond what is kept between steps; ``batch`` the size of a kept batch; ``transfers``
    the buffers of rows in transfer between tiers, and ``recorded_transfers`` what a recorded step adds to these.
    """

    step: int
    batch: int
    transfers: int
    recorded_transfers: int
    run: Run


def probe(graph: Graph, model: Model, method: Method, size: BatchSize, placement: Placement) -> Probe:
    """Predict what a step on a batch of this size needs, for rows as wide as those of ``graph``."""
    # without features, the small graph has one node more than its batch, and no more than there are embeddings
    most = min(ROWS, graph.num_features - 1) if without_features(graph) else ROWS
    large = min(1.0, most / size.rows)
    scales = (large / 2, large)
    if isinstance(method, ClusterMethod):
        method = dataclasses.replace(method, num_parts=None, clusters_per_batch=1)
    found = [_measure(graph, model, method, size.scaled(scale), placement) for scale in scales]

    def at_scale_one(name: str) -> int:
        low, high = (getattr(each, name) for each in found)
        return round(high + (high - low) / (scales[1] - scales[0]) * (1 - scales[1]))

    step, batch, transfers, recorded = map(at_scale_one, ("step", "batch", "transfers", "recorded_transfers"))
    return Probe(step, batch, transfers, recorded, found[1].run)


def _measure(graph: Graph, model: Model, method: Method, size: BatchSize, placement: Placement) -> Probe:
    """What steps on a graph with a batch of this size need."""
    small, parts = graph_with_batch(graph, size)
    model = copy.deepcopy(model)
    run = method.bind(small, model, parts, placement)
    core = (run.clusters.order < size.core).nonzero().squeeze(1)
    rows = slice(int(core[0]), int(core[-1]) + 1) if isinstance(method, ClusterMethod) else slice(0, small.num_nodes)
    kept = not run.clusters.redraw and placement.keep_batches
    batch = run.source.make(rows, 1.0)
    for _ in range(KEPT + 1):  # allocates what is allocated once and kept, a cache for transfers in each step
        run.accumulate(batch)
        model.zero_grad(set_to_none=True)
    run.pipeline.recorder = None  # the memory of a recording is not the peak of a step
    step = peak_bytes(lambda: run.accumulate(batch if kept else run.source.make(rows, 1.0)), run.problem.device)
    staging = run.pipeline.staging
    return Probe(step, batch_bytes(batch), staging.device_bytes[0], staging.recording_bytes, run)


def graph_with_batch(graph: Graph, size: BatchSize) -> tuple[Graph, Tensor]:
    """A random graph whose part 0 makes a batch of this size, and the part of every node: 0 is the core, 1 the rest.

    Features, targets and edge data have the widths and types of those of ``graph``, and it is directed where that is.
    """
    g = torch.Generator().manual_seed(0)
    core, halo = size.core, size.halo
    rest = max(halo, 1)

    def draw(count: int, low: int, num: int) -> Tensor:
        return low + torch.randint(num, (max(0, count),), generator=g)

    edges = [
        torch.stack([core + torch.arange(halo), draw(halo, 0, core)]),
        torch.stack([draw(size.cross_edges - halo, core, rest), draw(size.cross_edges - halo, 0, core)]),
        torch.stack([draw(size.core_edges // 2, 0, core), draw(size.core_edges // 2, 0, core)]),
        torch.stack([draw(size.halo_edges // 2, core, rest), draw(size.halo_edges // 2, core, rest)]),
    ]
    if halo == 0:
        edges[1] = torch.tensor([[0], [1]])
    n = core + rest
    node = torch.arange(n)
    y = torch.zeros((n, *graph.y.shape[1:]), dtype=graph.y.dtype)
    masks: dict[str, Any] = {"train": node < n - 2, "val": node == n - 2, "test": node == n - 1}
    x, classes = _features(graph, n, g), graph.num_classes
    listed = torch.cat(edges, 1)
    for name in ("edge_weight", "edge_attr"):
        data = getattr(graph, name)
        masks[name] = None if data is None else torch.ones(listed.shape[1], *data.shape[1:], dtype=data.dtype)
    small = Graph.from_edges(listed, x, y, **masks, num_classes=classes, symmetrise=True, task=graph.task)
    small = dataclasses.replace(small, adj=dataclasses.replace(small.adj, symmetric=not graph.directed))
    return small, (node >= core).long()


def _features(graph: Graph, n: int, g: torch.Generator) -> Tensor | CSR:
    """Features of n nodes; sparse ones have as many entries a row as those of ``graph`` on average."""
    d = graph.num_features
    if not isinstance(graph.x, CSR):
        return torch.zeros(n, d, dtype=graph.x.dtype)
    if without_features(graph):  # for learned embeddings, which look a row up for each node
        each_node = torch.arange(n + 1, dtype=torch.int32)
        return CSR(each_node, each_node[:n], torch.ones(n, dtype=graph.x.dtype), d)
    each = max(1, min(d, round(graph.x.nnz / graph.num_nodes)))
    indptr = torch.arange(0, n * each + 1, each, dtype=torch.int32)
    columns = torch.rand(n, d, generator=g).argsort(1)[:, :each] if d < 4096 else torch.arange(each).expand(n, each)
    values = torch.zeros(n * each, dtype=graph.x.dtype)
    return CSR(indptr, columns.sort(1).values.reshape(-1).to(torch.int32), values, d)


def batch_bytes(batch: Batch) -> int:
    """Bytes of the tensors that a batch holds, including those that were derived from others and kept."""
    storages = [tensor.untyped_storage() for tensor in live_tensors(batch, apart=(Graph,))]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@dataclass(frozen=True)
class Memory:
    """Bytes by purpose. ``step`` is the measured peak of one step beyond what is kept between steps.

    ``tiers`` counts the histories, and features that are not on the device, by tier; ``graph`` the structure, targets,
    and features on the device; ``parameters`` those of the model.
    """

    step: int
    tiers: dict[str, int]
    graph: int
    parameters: int


def memory(run: Run, batch: Batch) -> Memory:
    """Memory of a run, and the peak of one step on ``batch``; histories and gradients are not changed."""
    problem = run.problem
    tiers: dict[str, int] = {}
    for table in (*run.named_tables().values(), *([] if problem.stored is None else [problem.stored])):
        tiers[table.tier] = tiers.get(table.tier, 0) + table.data().nbytes
    features = [problem.X] if isinstance(problem.X, Tensor | CSR) else []
    return Memory(
        step=peak_bytes(lambda: run.gradient(batch), problem.device),
        tiers=tiers,
        graph=sum(_bytes(t) for t in (problem.P, problem.graph.adj, problem.graph.y, *features)),
        parameters=sum(p.nbytes for p in problem.model.parameters()),
    )


def peak_bytes(step: Callable[[], object], device: torch.device) -> int:
    """The largest sum of live tensors while ``step()`` runs, beyond those that lived before it.

    On a GPU these are the bytes that were requested. The allocator may give a tensor up to a megabyte more, which
    depends on the memory that happens to be free. Garbage of earlier runs that was collected during the step would
    make the result smaller, so nothing is collected meanwhile.
    """
    if device.type == "cuda":
        gc.collect()
        torch.cuda.synchronize(device)
        before = _requested(device)["current"]
        torch.cuda.reset_peak_memory_stats(device)
        with no_collection():
            step()
        torch.cuda.synchronize(device)
        return _requested(device)["peak"] - before
    with no_collection(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def _requested(device: torch.device) -> dict[str, int]:
    """The bytes that tensors on a GPU have requested: the "current" number and its "peak"."""
    return torch.cuda.memory.memory_stats_as_nested_dict(device)["requested_bytes"]["all"]


def _bytes(value: Tensor | CSR) -> int:
    if isinstance(value, CSR):
        return sum(part.nbytes for part in (value.indptr, value.indices, value.values) if part is not None)
    return value.nbytes
