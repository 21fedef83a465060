"""The memory of a step before it is ever run: measured on a small graph whose batch has the same proportions.

At fixed proportions of core rows, halo rows and the entries between them, all that a step allocates grows linearly
with its batch, whatever the method and the model. So two small steps, run by the very code that will train, tell a
large one.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmc.diagnostics.cost import peak_bytes
from lmc.graph import CSR, Batch, Graph
from lmc.graph.csr import row_entries
from lmc.methods import ClusterMethod, Method, Run
from lmc.models import Model
from lmc.sampling import Clusters
from lmc.stores import Placement

ROWS = 6000
"""Rows in the larger of the two small batches."""
SAMPLE = 32
"""Batches of an epoch that are measured for their size."""


@dataclass(frozen=True)
class BatchSize:
    """Rows of a batch, and directed edges: within the core, from core to halo, within the halo."""

    core: int
    halo: int
    inside: int
    across: int
    around: int

    @property
    def rows(self) -> int:
        return self.core + self.halo

    def scaled(self, factor: float) -> BatchSize:
        """The same proportions; at least two rows of the core, and a halo where there is one."""
        core, halo, *edges = (round(v * factor) for v in dataclasses.astuple(self))
        return BatchSize(max(2, core), max(min(1, self.halo), halo), *edges)


def batch_sizes(graph: Graph, clusters: Clusters, sample: int = SAMPLE) -> list[BatchSize]:
    """The sizes of about ``sample`` batches of an epoch, evenly spaced."""
    adj = graph.adj.to("cpu")
    drawn = clusters.epoch(0)
    return [_size(adj, clusters.order[clusters.core(parts)]) for parts in drawn[:: max(1, len(drawn) // sample)]]


def _size(adj: CSR, core: Tensor) -> BatchSize:
    CORE, HALO = 1, 2
    mark = torch.zeros(adj.num_rows, dtype=torch.int8)
    mark[core] = CORE
    read = adj.indices[row_entries(adj, core)[0]]
    outside = read[mark[read] == 0]
    mark[outside] = HALO
    halo = (mark == HALO).nonzero().squeeze(1)
    around = adj.indices[row_entries(adj, halo)[0]]
    inside = read.numel() - outside.numel()
    return BatchSize(core.numel(), halo.numel(), inside, outside.numel(), int((mark[around] == HALO).sum()))


@dataclass(frozen=True)
class Probe:
    """What one step takes (``step``, its peak beyond what stays), what a kept batch takes (``batch``), what rows on
    their way between tiers take (``travelling``, and ``standing`` where steps have fixed places), and a run of the
    small graph, for what does not depend on size."""

    step: int
    batch: int
    travelling: int
    standing: int
    run: Run


def probe(
    graph: Graph, model: Model, method: Method, size: BatchSize, device: torch.device, placement: Placement
) -> Probe:
    """Predict a step on a batch of this size, of this graph's widths."""
    large = min(1.0, ROWS / size.rows)
    scales = (large / 2, large)
    small: Method = method  # of one batch
    if isinstance(method, ClusterMethod):
        small = dataclasses.replace(method, num_parts=None, clusters_per_batch=1)
    found = [_measured(graph, model, small, size.scaled(scale), device, placement) for scale in scales]
    of = {
        name: _line(scales, [getattr(f, name) for f in found]) for name in ("step", "batch", "travelling", "standing")
    }
    return Probe(**of, run=found[1].run)


def _line(x: Sequence[float], y: Sequence[int]) -> int:
    """The value at 1 of the line through two points."""
    slope = (y[1] - y[0]) / (x[1] - x[0])
    return round(y[1] + slope * (1 - x[1]))


def _measured(
    graph: Graph, model: Model, method: Method, size: BatchSize, device: torch.device, placement: Placement
) -> Probe:
    stand_in, parts = proportioned(graph, size)
    mine = copy.deepcopy(model)
    run = method.bind(stand_in, mine, parts, placement, device=device)
    core = (run.clusters.order < size.core).nonzero().squeeze(1)
    whole = not isinstance(method, ClusterMethod)
    rows = slice(0, stand_in.num_nodes) if whole else slice(int(core[0]), int(core[-1]) + 1)
    kept = not run.clusters.redraw and placement.keep_batches
    batch = run.make_batch(rows, 1.0)

    def step() -> None:
        run.accumulate(batch if kept else run.make_batch(rows, 1.0))

    for _ in range(2):  # what is made once and kept is made now
        run.accumulate(batch)
        mine.zero_grad(set_to_none=True)
    peak = peak_bytes(step, device)
    return Probe(peak, held(batch), run.staging.held[0], run.staging.standing, run)


def proportioned(graph: Graph, size: BatchSize) -> tuple[Graph, Tensor]:
    """A random graph whose part 0 makes a batch of this size, and its parts: the core, the rest."""
    g = torch.Generator().manual_seed(0)
    c, h = size.core, size.halo
    rest = max(h, 1)

    def some(count: int, low: int, num: int) -> Tensor:
        return low + torch.randint(num, (max(0, count),), generator=g)

    halo = c + torch.arange(h)
    edges = [
        torch.stack([halo, some(h, 0, c)]),
        torch.stack([some(size.across - h, c, rest), some(size.across - h, 0, c)]),
        torch.stack([some(size.inside // 2, 0, c), some(size.inside // 2, 0, c)]),
        torch.stack([some(size.around // 2, c, rest), some(size.around // 2, c, rest)]),
    ]
    if h == 0:
        edges[1] = torch.tensor([[0], [1]])
    n = c + rest
    y = torch.zeros((n, graph.num_classes)) if graph.multi_label else torch.zeros(n, dtype=torch.int64)
    mask = torch.arange(n)
    stand_in = Graph.from_edges(
        torch.cat(edges, 1),
        _features(graph, n, g),
        y,
        train=mask < n - 2,
        val=mask == n - 2,
        test=mask == n - 1,
        num_classes=graph.num_classes,
        symmetrise=True,
    )
    return stand_in, (mask >= c).long()


def _features(graph: Graph, n: int, g: torch.Generator) -> Tensor | CSR:
    d = graph.num_features
    if not isinstance(graph.x, CSR):
        return torch.zeros(n, d, dtype=graph.x.dtype)
    each = max(1, min(d, round(graph.x.nnz / graph.num_nodes)))
    indptr = torch.arange(0, n * each + 1, each, dtype=torch.int32)
    columns = torch.rand(n, d, generator=g).argsort(1)[:, :each] if d < 4096 else torch.arange(each).expand(n, each)
    values = torch.zeros(n * each, dtype=graph.x.dtype)
    return CSR(indptr, columns.sort(1).values.reshape(-1).to(torch.int32), values, d)


def held(batch: Batch) -> int:
    """Bytes of the arrays a batch holds, with what was derived from them and kept."""
    seen: dict[int, int] = {}

    def walk(value: Any) -> None:
        if isinstance(value, Tensor):
            # values converted for a product are the sparse tensor's own
            storage = (value if value.layout == torch.strided else value.values()).untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, CSR):
            if id(value) not in walked:
                walked.add(id(value))
                walk([value.indptr, value.indices, value.values, list(value._cache.values())])
        elif dataclasses.is_dataclass(value):
            walk([getattr(value, f.name) for f in dataclasses.fields(value)])
        elif isinstance(value, list | tuple):
            for item in value:
                walk(item)

    walked: set[int] = set()
    walk([v for k, v in vars(batch).items() if k != "graph"])
    return sum(seen.values())
