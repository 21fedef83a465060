"""How cost grows: epoch time and memory over the size of a graph whose parts keep theirs, and over clusters per batch
on one of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch

from lmc.bench.epoch import FULL, Setup, ready, time_run
from lmc.bench.measure import allocated_bytes
from lmc.bench.memory import footprint
from lmc.bench.speed import WHOLE
from lmc.bench.testbed import free
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.methods import Method


@dataclass(frozen=True)
class ScaleCell:
    """One line: the scale of the graph, the label of a method, parts/clusters or WHOLE."""

    scale: float
    method: str
    config: str = WHOLE


@dataclass(frozen=True, kw_only=True)
class ScaleRecord(ScaleCell):
    """What was measured.

    Args:
        nodes, edges: of the graph, edges undirected.
        steps: in an epoch.
        ms: of an epoch.
        entries: non-zeros of the batches' operators, forward and backward, over those of the graph's.
        halo_ratio: halo rows over core rows, in the mean.
        step, lives, away: bytes, as in :class:`lmc.bench.memory.Footprint`.
    """

    nodes: int
    edges: int
    steps: int
    ms: float
    entries: float
    halo_ratio: float
    step: int
    lives: int
    away: Mapping[str, int]

    @property
    def peak(self) -> int:
        """Bytes on the training device at the peak of a step."""
        return self.step + self.lives

    @property
    def clusters(self) -> int | None:
        """Parts in a batch; None for a full batch."""
        return None if self.config == WHOLE else int(self.config.partition("/")[2])

    @property
    def ms_per_million(self) -> float:
        """Milliseconds of an epoch for a million edges of the graph."""
        return self.ms / self.edges * 1e6


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Args:
        scales: of the graph, ascending.
        parts: of the largest; the others have as many in proportion, so that a part keeps its size.
        clusters: parts in a batch, at every scale.
        sweep: parts in a batch, at the scale ``at``.
        labels: of the methods, FULL first.
    """

    scales: Sequence[float]
    parts: int
    clusters: int
    sweep: Sequence[int]
    at: float
    labels: Sequence[str]

    def __post_init__(self) -> None:
        if self.at not in self.scales:
            known = ", ".join(f"{scale:g}" for scale in self.scales)
            raise ConfigError(f"expected --at to be one of --scales {known} (got {self.at:g})")
        for scale, most in ((self.scales[0], self.clusters), (self.at, max(self.sweep, default=1))):
            if most > self.parts_at(scale):
                raise ConfigError(
                    f"expected at most {self.parts_at(scale)} clusters a batch at scale {scale:g} (got {most}): "
                    "use more --parts, or fewer clusters"
                )

    def parts_at(self, scale: float) -> int:
        """How many parts a graph of this scale has."""
        return max(1, round(self.parts * scale / self.scales[-1]))

    def cells(self) -> list[ScaleCell]:
        """All of it, graph by graph."""
        cells = []
        for scale in self.scales:
            clusters = sorted({self.clusters, *(self.sweep if scale == self.at else ())})
            for label in self.labels:
                if label == FULL:
                    cells.append(ScaleCell(scale, label))
                else:
                    cells += [ScaleCell(scale, label, f"{self.parts_at(scale)}/{c}") for c in clusters]
        return cells


def measure_cell(graph: Graph, cell: ScaleCell, method: Method, setup: Setup, device: torch.device) -> ScaleRecord:
    """Time epochs, then measure memory with a run of its own: recorded steps would count as what lives between them."""
    run, optimizer = ready(method, graph, setup, device)
    timing = time_run(cell.method, run, optimizer, setup)
    del run, optimizer
    free(device)
    before = allocated_bytes(device)
    run, optimizer = ready(method, graph, setup, device)
    del optimizer
    found = footprint(run, setup.lr, before)
    del run
    free(device)
    return ScaleRecord(
        **asdict(cell),
        nodes=graph.num_nodes,
        edges=graph.num_edges,
        steps=timing.steps,
        ms=timing.ms,
        entries=timing.nnz_share,
        halo_ratio=timing.halo_ratio,
        step=found.step,
        lives=found.lives,
        away=dict(found.away),
    )


class Shelf:
    """Graphs by scale, of which one at a time is kept."""

    def __init__(self, load: Callable[[float], Graph]) -> None:
        self._load = load
        self._scale: float | None = None
        self._graph: Graph | None = None

    def __call__(self, scale: float) -> Graph:
        if self._graph is None or self._scale != scale:
            self._graph = None  # freed before the next is made
            self._scale, self._graph = scale, self._load(scale)
        return self._graph


def over_sizes(records: Sequence[ScaleRecord], clusters: int) -> dict[str, list[ScaleRecord]]:
    """The lines of every method over graphs of ascending size, with so many clusters a batch."""
    found: dict[str, list[ScaleRecord]] = {}
    for r in sorted(records, key=lambda r: r.edges):
        if r.clusters in (None, clusters):
            found.setdefault(r.method, []).append(r)
    return found


def over_clusters(records: Sequence[ScaleRecord], scale: float) -> dict[str, list[ScaleRecord]]:
    """The lines of every method that has clusters over their number, on the graph of one scale."""
    found: dict[str, list[ScaleRecord]] = {}
    for r in sorted(records, key=lambda r: r.clusters or 0):
        if r.clusters is not None and r.scale == scale:
            found.setdefault(r.method, []).append(r)
    return found


def slope(x: Sequence[float], y: Sequence[float]) -> float | None:
    """The power p of y ~ x^p: the least-squares line through the logarithms; None for fewer than two points."""
    if len(set(x)) < 2:
        return None
    a, b = [math.log(v) for v in x], [math.log(v) for v in y]
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    return sum((u - mean_a) * (v - mean_b) for u, v in zip(a, b, strict=True)) / sum((u - mean_a) ** 2 for u in a)
