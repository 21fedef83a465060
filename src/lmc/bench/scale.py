"""How cost grows: epoch time and memory over the size of a graph whose parts keep theirs, and over clusters per batch
on one of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import linear_regression
from typing import Any

import torch

from lmc.bench.epoch import FULL, WHOLE, Setup, allocated_bytes, free, ready, timed_run
from lmc.bench.memory import Footprint, footprint
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.methods import Method


@dataclass(frozen=True)
class ScaleCell:
    """One line: the scale of the graph, the spec of a method, parts/clusters or WHOLE."""

    scale: float
    method: str
    config: str = WHOLE


@dataclass(frozen=True, kw_only=True)
class ScaleRecord(Footprint, ScaleCell):
    """The measurements of one line."""

    nodes: int
    edges: int  # undirected
    ms: float  # of an epoch
    entries: float  # non-zeros of the batches' operators, forward and backward, over those of the graph
    halo_ratio: float  # halo rows over core rows

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
    """The graphs and divisions that are measured."""

    scales: Sequence[float]  # ascending
    parts: int  # of the largest graph; the others have as many in proportion, so that a part keeps its size
    clusters: int  # parts in a batch, at every scale
    sweep: Sequence[int]  # parts in a batch, at the scale ``at``
    at: float
    labels: Sequence[str]  # specs of the methods, FULL first

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
        """The number of parts of a graph of this scale."""
        return max(1, round(self.parts * scale / self.scales[-1]))

    def cells(self) -> list[ScaleCell]:
        """All lines, graph by graph."""
        cells = []
        for scale in self.scales:
            clusters = sorted({self.clusters, *(self.sweep if scale == self.at else ())})
            for label in self.labels:
                divided = [f"{self.parts_at(scale)}/{c}" for c in clusters]
                cells += [ScaleCell(scale, label, config) for config in ([WHOLE] if label == FULL else divided)]
        return cells


def measure_cell(graph: Graph, cell: ScaleCell, method: Method, setup: Setup, device: torch.device) -> ScaleRecord:
    """Time epochs, then measure memory with another run, in which no recorded steps live between steps."""
    timed = timed_run(method, graph, setup, device)
    for _ in range(setup.repeat):
        timed.time_epoch()
    facts: dict[str, Any] = {"ms": timed.ms, "entries": timed.nnz_share, "halo_ratio": timed.halo_ratio}
    del timed
    free(device)
    before = allocated_bytes(device)
    run, _ = ready(method, graph, setup, device)
    found = footprint(run, setup.lr, before)
    del run
    free(device)
    return ScaleRecord(**asdict(cell), **asdict(found), nodes=graph.num_nodes, edges=graph.num_edges, **facts)


def over_sizes(records: Sequence[ScaleRecord], clusters: int) -> dict[str, list[ScaleRecord]]:
    """The lines of every method over graphs of ascending size, with so many clusters a batch."""
    return _by_method(sorted((r for r in records if r.clusters in (None, clusters)), key=lambda r: r.edges))


def over_clusters(records: Sequence[ScaleRecord], scale: float) -> dict[str, list[ScaleRecord]]:
    """The lines of every method that has clusters over their number, on the graph of one scale."""
    return _by_method(sorted((r for r in records if r.clusters and r.scale == scale), key=lambda r: r.clusters or 0))


def _by_method(records: Sequence[ScaleRecord]) -> dict[str, list[ScaleRecord]]:
    return {method: [r for r in records if r.method == method] for method in dict.fromkeys(r.method for r in records)}


def slope(x: Sequence[float], y: Sequence[float]) -> float | None:
    """The power p of y ~ x^p: the least-squares line through the logarithms; None for fewer than two points."""
    if len(set(x)) < 2:
        return None
    return linear_regression(list(map(math.log, x)), list(map(math.log, y))).slope
