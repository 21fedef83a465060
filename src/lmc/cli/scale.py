"""``lmc bench scale``: how cost grows with the size of a graph, whose parts have a constant size, and of batches."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import linear_regression
from typing import Annotated, Any

import torch
import typer
from matplotlib.figure import Figure

import lmc.data
from lmc.bench.epoch import FULL, WHOLE, Setup, allocated_bytes, free, ready, timed_run
from lmc.bench.memory import Footprint, footprint
from lmc.cli.console import TextTable, megabytes, milliseconds, ratio, share
from lmc.cli.costs import RIVALS, TimedStudy, epochs_text
from lmc.cli.lists import at_least_one, division, methods_in, parse_list, parse_numbers
from lmc.cli.ranks import RankScale
from lmc.cli.spec import parse_method
from lmc.cli.study import Study
from lmc.data import lookalikes
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.methods import ClusterMethod, FullBatch, Method
from lmc.report import Growth, scale_figure

CAPTION = (
    "ms / epoch: median over epochs of training steps; ms / M edges: for a million edges of the graph; time / full: "
    "an epoch takes so many times as long as one of the full batch on the same graph; non-zeros: of all batches over "
    "the graph's; time / work: time over (non-zeros x full-batch time); MB: peak of a step, what is kept between steps "
    "on the device, and both"
)
HEADERS = (
    "edges", "method", "parts/clusters", "steps", "ms / epoch", "ms / M edges", "time / full", "non-zeros",
    "time / work", "halo/core", "step MB", "between MB", "peak MB",
)  # fmt: skip
OF_RANKS = "lmc,cmc,imc"
_RANKS = "Ranks"
_SHARED = (
    "dataset", "parts", "clusters", "partition", "bandwidth", "latency", "repeat", "warmup", "hidden", "layers",
    "dropout", "norm", "seed", "device", "run_dir", "limit", "summary_only",
)  # fmt: skip
SLOPES = "the powers p of time ~ edges^p and of memory ~ edges^p, the least-squares line through the logarithms"


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


@dataclass(frozen=True, kw_only=True)
class Scale(TimedStudy[ScaleCell, ScaleRecord]):
    """Measure epoch time and memory for graphs of several sizes with parts of constant size, and of batch sizes.

    With --ranks: epochs of ranks on this machine, and a model of more ranks.
    """

    name, cell, record = "scale", ScaleCell, ScaleRecord

    dataset: Annotated[str, typer.Argument(help="A lookalike, drawn at every scale.")] = "arxiv-like"
    scales: Annotated[
        str | None,
        typer.Option(help="Comma-separated.", show_default="0.02,0.05,0.13,0.32; on a GPU 0.125,0.315,0.794,2"),
    ] = None
    methods: Annotated[
        str | None,
        typer.Option(help="Comma-separated; options after colons.", show_default=f"{RIVALS}; with --ranks {OF_RANKS}"),
    ] = None
    parts: Annotated[int, typer.Option(help="Parts of the largest graph; the others in proportion.")] = 160
    clusters: Annotated[int, typer.Option(help="Parts in a batch, at every scale.")] = 2
    sweep: Annotated[str, typer.Option(help="Parts in a batch, comma-separated, at the scale --at.")] = "1,2,4,8,16,32"
    at: Annotated[float | None, typer.Option(help="The scale of --sweep.", show_default="the last but one")] = None
    partition: Annotated[str, typer.Option(help="metis, kaminpar, random, label-propagation or stream.")] = "metis"
    ranks: Annotated[
        str | None,
        typer.Option(
            help="Measure epochs of so many ranks on this machine instead, e.g. 1,2; those beyond its cores are "
            "modelled.",
            rich_help_panel=_RANKS,
        ),
    ] = None
    modelled: Annotated[
        str | None,
        typer.Option(help="More ranks to model.", show_default="4,8,16,64", rich_help_panel=_RANKS),
    ] = None
    bandwidth: Annotated[
        str, typer.Option(help="Bytes a second into and out of a modelled rank.", rich_help_panel=_RANKS)
    ] = "25GB"
    latency: Annotated[float, typer.Option(help="Microseconds of a modelled message.", rich_help_panel=_RANKS)] = 20.0

    @cached_property
    def sizes(self) -> list[float]:
        """The scales of the graph, ascending."""
        default = "0.125,0.315,0.794,2" if self.on.type == "cuda" else "0.02,0.05,0.13,0.32"
        return sorted(parse_numbers(self.scales or default, "--scales"))

    @property
    def swept(self) -> float:
        """The scale at which the number of clusters is varied."""
        return self.at if self.at is not None else self.sizes[-2:][0]

    def parts_at(self, scale: float) -> int:
        """The number of parts of a graph of this scale, in proportion, so that a part keeps its size."""
        return max(1, round(self.parts * scale / self.sizes[-1]))

    def cells(self) -> list[ScaleCell]:
        """All lines, graph by graph, the full batch first."""
        _ = self.setup  # a wrong shape is refused before a graph is loaded
        sweep = parse_list(self.sweep, "--sweep", lambda text: at_least_one("--sweep", text))
        parts, clusters = at_least_one("--parts", self.parts), at_least_one("--clusters", self.clusters)
        methods = methods_in(f"{max(parts, clusters)}/{clusters}", self.methods or RIVALS, partition=self.partition)
        wrong = [label for label, m in methods.items() if not isinstance(m, ClusterMethod | FullBatch)]
        if wrong:
            names = ", ".join(wrong)
            raise ConfigError(f"expected methods whose batches are parts of the graph (got {names}): drop them")
        self._check(max(sweep))
        cells = []
        for scale in self.sizes:
            cells.append(ScaleCell(scale, FULL))
            configs = [
                f"{self.parts_at(scale)}/{c}" for c in sorted({clusters, *(sweep if scale == self.swept else ())})
            ]
            cells += [ScaleCell(scale, label, config) for label in methods if label != FULL for config in configs]
        return cells

    def _check(self, most: int) -> None:
        """Refuse scales and a graph that do not fit; ``most``: the largest number of clusters at the scale --at."""
        if self.swept not in self.sizes:
            known = ", ".join(f"{scale:g}" for scale in self.sizes)
            raise ConfigError(f"expected --at to be one of --scales {known} (got {self.swept:g})")
        for scale, clusters in ((self.sizes[0], self.clusters), (self.swept, most)):
            if clusters > self.parts_at(scale):
                raise ConfigError(
                    f"expected at most {self.parts_at(scale)} clusters a batch at scale {scale:g} (got {clusters}): "
                    "use more --parts, or fewer clusters"
                )
        found = lookalikes.parse(self.dataset)
        if found is None or found[1] is not None:
            known = ", ".join(lookalikes.LOOKALIKES)
            raise ConfigError(
                f"expected a lookalike without a scale, one of {known} (got {self.dataset!r}): it is drawn at each of "
                "--scales"
            )

    def subject(self) -> str:
        return f"{self.dataset}-{self.on.type}"

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"graph": self.dataset, "clusters": self.clusters, "at": self.swept}

    def facts(self) -> list[tuple[str, str]]:
        graph = f"{self.dataset} at {', '.join(f'{scale:g}' for scale in self.sizes)}"
        return [("graph", graph), *super().facts(), ("time", epochs_text(self.setup))]

    def measure(self, cell: ScaleCell) -> list[ScaleRecord]:
        return [measure_cell(self._graph(cell.scale), cell, self.method_of(cell), self.setup, self.on)]

    @cached_property
    def _graph(self) -> "OneGraph":
        return OneGraph(self.dataset)

    def method_of(self, cell: ScaleCell) -> Method:
        """The method of a line."""
        if cell.config == WHOLE:
            return FullBatch()
        return parse_method(cell.method, **division(cell.config), partition=self.partition)

    def describe(self, record: ScaleRecord) -> str:
        r, config = record, "" if record.config == WHOLE else f" {record.config}"
        return f"{r.edges:,} edges, {r.method}{config}: {milliseconds(r.ms)} ms, {megabytes(r.peak)} MB"

    def tables(self, records: Sequence[ScaleRecord]) -> list[TextTable]:
        full = {r.scale: r.ms for r in records if r.method == FULL}
        tables = [TextTable(HEADERS, [_row(r, full.get(r.scale)) for r in records], CAPTION, named=2)]
        slopes = slopes_of(over_sizes(records, self.saved()["clusters"]))
        if slopes:
            tables.append(TextTable(["method", "time", "step memory", "memory between steps"], slopes, SLOPES))
        return tables

    def figure(self, records: Sequence[ScaleRecord]) -> Figure:
        saved = self.saved()
        sizes, swept = over_sizes(records, saved["clusters"]), over_clusters(records, saved["at"])
        edges = f"{next((r.edges for lines in swept.values() for r in lines), 0) / 1e6:.2g} M edges"
        panels = [
            Growth("milliseconds an epoch", "edges, millions", _points(sizes, "edges", "ms"), True),
            Growth("MB at the peak of a step, in all", "edges, millions", _points(sizes, "edges", "peak"), True),
            Growth(f"milliseconds an epoch, {edges}", "clusters per batch", _points(swept, "clusters", "ms")),
            Growth(f"MB of a step, {edges}", "clusters per batch", _points(swept, "clusters", "step")),
        ]
        title = f"{saved['graph']}: cost over size ({saved['clusters']} parts a batch) and over parts a batch"
        return scale_figure(panels, title)


def scale_or_ranks(study: Study[Any, Any]) -> Study[Any, Any]:
    """The study of ranks, where ``--ranks`` asks for it."""
    if not isinstance(study, Scale) or study.ranks is None:
        return study
    if study.scales is not None or study.at is not None:
        raise ConfigError("expected one graph for --ranks (got --scales or --at): name it as arxiv-like@0.3")
    same = {name: getattr(study, name) for name in _SHARED}
    modelled, methods = study.modelled or "4,8,16,64", study.methods or OF_RANKS
    return RankScale(**same, ranks=study.ranks, modelled=modelled, methods=methods)


class OneGraph:
    """Graphs by scale, of which one at a time is kept."""

    def __init__(self, dataset: str) -> None:
        self._dataset = dataset
        self._kept: dict[float, Graph] = {}

    def __call__(self, scale: float) -> Graph:
        if scale not in self._kept:
            self._kept.clear()  # freed before the next graph is made
            self._kept[scale] = lmc.data.load(self._dataset, scale=scale).training_graph
        return self._kept[scale]


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


def _row(r: ScaleRecord, full_ms: float | None) -> list[str]:
    """The cells of a line; ``full_ms``: an epoch of the full batch on the same graph."""
    over = None if full_ms is None else r.ms / full_ms
    work = over / r.entries if over is not None and r.entries else None
    times = [str(r.steps), milliseconds(r.ms), milliseconds(r.ms_per_million), ratio(over), share(r.entries)]
    memory = [megabytes(count) for count in (r.step, r.lives, r.peak)]
    return [f"{r.edges:,}", r.method, r.config, *times, ratio(work), f"{r.halo_ratio:.2f}", *memory]


def slopes_of(sizes: Mapping[str, Sequence[ScaleRecord]]) -> list[list[str]]:
    """One row for each method that was measured at several sizes."""
    rows = []
    for label, lines in sizes.items():
        edges = [r.edges for r in lines]
        powers = [slope(edges, values) for values in zip(*[(r.ms, r.step, r.lives) for r in lines], strict=True)]
        if None not in powers:
            rows.append([label, *[f"{power:.2f}" for power in powers]])
    return rows


def _points(curves: Mapping[str, Sequence[ScaleRecord]], x: str, y: str) -> dict[str, list[tuple[float, float]]]:
    """The curves of a panel: edges in millions or clusters, against milliseconds or megabytes."""
    units = {"edges": 1e6, "peak": 1e6, "step": 1e6}
    return {
        label: [(getattr(r, x) / units.get(x, 1), getattr(r, y) / units.get(y, 1)) for r in lines]
        for label, lines in curves.items()
    }
