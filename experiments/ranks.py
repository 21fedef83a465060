"""Loss curves of 1, 2 and 4 ranks with the same global batch: whether they fall together."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import fmean
from typing import Annotated, Any

import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.rank_training import Job, on_union, train_curve
from experiments.study import Seeds, TrainingStudy
from lmc.bench.launch import on_ranks
from lmc.bench.ranks import one_thread
from lmc.cli.console import TextTable, error_figure, number, percent
from lmc.cli.lists import at_least_one, parse_list
from lmc.cli.spec import parse_method, parse_methods
from lmc.cli.study import Hidden, Methods
from lmc.errors import ConfigError
from lmc.methods import Method
from lmc.report.looks import entitle, legend_below, new_figure, plain
from lmc.report.names import looks_of, shade

LMC = "lmc:alpha=1.0:score=1"
"""As in the preset of ogbn-arxiv, which also has half of the parts in a batch."""
CAPTION = (
    "loss: mean of the steps of the last epoch, over seeds. difference: of the mean curve of the ranks from that of "
    "one process, in the last epoch; spread: highest minus lowest seed of one process there; within: share of all "
    "epochs in which the difference is at most the spread. rounding: largest relative difference of an epoch's loss "
    "from one process on the union of the ranks' batches, in float64"
)


@dataclass(frozen=True)
class RankCurveCell:
    """One training: the method, how ranks exchange rows, their number, and the seed."""

    method: str
    sync: str
    ranks: int
    seed: int


@dataclass(frozen=True)
class RankCurve(RankCurveCell):
    """The loss of every epoch; ``union`` that of one process on the union of the ranks' batches, in float64."""

    losses: list[float]
    union: list[float] | None = None

    @property
    def rounding(self) -> float | None:
        """The largest relative difference from the union."""
        if self.union is None:
            return None
        return max(abs(a - b) / abs(b) for a, b in zip(self.losses, self.union, strict=True))


@dataclass(frozen=True, kw_only=True)
class RankCurves(TrainingStudy[RankCurveCell, RankCurve]):
    """Compare the loss curves of ranks with those of one process that has the same global batch.

    Ranks and batches of one process differ in which parts they join, except on the union of the ranks' batches.
    """

    name, cell, record = "ranks", RankCurveCell, RankCurve
    shared = (*TrainingStudy.shared, "epochs", "lr", "parts", "clusters")

    dataset: Annotated[str, typer.Argument(help="Name of a graph, or path to one.")] = "arxiv-like@0.1"
    ranks: Annotated[str, typer.Option(help="Numbers of ranks, comma-separated; 1 is one process.")] = "1,2,4"
    methods: Methods = f"{LMC},cmc,imc"
    exact: Annotated[str, typer.Option(help="Methods that exchange rows at every layer.")] = f"full,backward-sgd,{LMC}"
    parts: Annotated[int, typer.Option(help="Parts of the graph.")] = 40
    clusters: Annotated[int, typer.Option(help="Parts in a global batch; a rank has its share of them.")] = 20
    hidden: Hidden = 64
    epochs: Annotated[int, typer.Option(help="Epochs of every training.")] = 15
    lr: Annotated[float, typer.Option(help="Learning rate of Adam.")] = 0.01
    seeds: Seeds = 5

    @cached_property
    def numbers(self) -> list[int]:
        """Numbers of ranks, one process first."""
        found = sorted(parse_list(self.ranks, "--ranks", lambda text: at_least_one("--ranks", text)))
        uneven = [str(w) for w in found if at_least_one("--clusters", self.clusters) % w]
        if uneven or found[0] != 1:
            raise ConfigError(
                f"expected 1 and divisors of --clusters {self.clusters} for --ranks (got {self.ranks}): one process "
                "is the reference, and every rank has its share of a batch"
            )
        return found

    def cells(self) -> list[RankCurveCell]:
        at_least_one("--epochs", self.epochs)
        seeds = range(at_least_one("--seeds", self.seeds))
        layered = [
            RankCurveCell(label, "layer", w, 0) for label in self.of(self.exact, 1) for w in self.numbers if w > 1
        ]
        return layered + [
            RankCurveCell(label, "step", w, seed)
            for label in self.of(self.methods, 1)
            for seed in seeds
            for w in self.numbers
        ]

    def of(self, methods: str, ranks: int) -> dict[str, Method]:
        """The methods, with the share of a global batch that a rank has."""
        return {
            label: parse_method(label, parts=self.parts, clusters=self.clusters // ranks)
            for label in parse_methods(methods)
        }

    def measure(self, cell: RankCurveCell) -> list[RankCurve]:
        method = self.of(self.exact if cell.sync == "layer" else self.methods, cell.ranks)[cell.method]
        dataset = self.source if self.scale is None else f"{self.source}@{self.scale:g}"
        job = Job(dataset, method, cell.sync, self.hidden, self.layers, self.lr, cell.seed, self.epochs)
        with one_thread():
            seen = [train_curve(job, False)] if cell.ranks == 1 else on_ranks(cell.ranks, train_curve, job, True)
            union = on_union(job, seen).by_epoch if cell.sync == "layer" else None
        return [RankCurve(**asdict(cell), losses=seen[0].by_epoch, union=union)]

    def describe(self, record: RankCurve) -> str:
        found = record.rounding
        text = "" if found is None else f", {found:.1e} from one process"
        return f"{record.method}, {record.ranks} ranks, seed {record.seed}: loss {record.losses[-1]:.4f}{text}"

    def tables(self, records: Sequence[RankCurve]) -> list[TextTable]:
        headers = ["method", "sync", "ranks", "seeds", "loss", "difference", "spread", "within", "rounding"]
        return [TextTable(headers, [_row(rows) for rows in summaries(records)], CAPTION, named=3).without_empty()]

    def figure(self, records: Sequence[RankCurve]) -> Figure:
        saved = self.saved()
        title = f"{saved['graph']}: loss of the steps of an epoch, {saved['clusters']} of {saved['parts']} parts a step"
        return curves_figure(records, title)


@dataclass(frozen=True)
class Summary:
    """The curves of one method on one number of ranks, over seeds, beside those of one process."""

    curves: Sequence[RankCurve]
    alone: Sequence[RankCurve]

    @property
    def mean(self) -> list[float]:
        """Over seeds, by epoch."""
        return means(self.curves)

    @property
    def differences(self) -> list[float]:
        """Of the mean curve from that of one process."""
        return [abs(a - b) for a, b in zip(self.mean, means(self.alone), strict=True)] if self.alone else []

    @property
    def spreads(self) -> list[float]:
        """Highest minus lowest seed of one process, by epoch."""
        return [max(each) - min(each) for each in zip(*(c.losses for c in self.alone), strict=True)]

    @property
    def within(self) -> float | None:
        """The share of epochs in which the difference is at most the spread."""
        if len(self.alone) < 2 or self.curves[0].ranks == 1:
            return None
        return fmean(d <= s for d, s in zip(self.differences, self.spreads, strict=True))


def means(curves: Sequence[RankCurve]) -> list[float]:
    """The mean curve."""
    return [fmean(each) for each in zip(*(curve.losses for curve in curves), strict=True)]


def summaries(records: Sequence[RankCurve]) -> list[Summary]:
    """One for every method and number of ranks; seeds that not all numbers of ranks have are left out."""
    groups: dict[tuple[str, str], dict[int, dict[int, RankCurve]]] = {}
    for r in records:
        groups.setdefault((r.method, r.sync), {}).setdefault(r.ranks, {})[r.seed] = r
    found = []
    for by_ranks in groups.values():
        seeds = set.intersection(*(set(curves) for curves in by_ranks.values()))
        kept = {w: [curves[seed] for seed in sorted(seeds)] for w, curves in sorted(by_ranks.items())}
        found += [Summary(curves, kept.get(1, [])) for curves in kept.values() if curves]
    return found


def _row(s: Summary) -> list[str]:
    first, last = s.curves[0], s.curves[0].ranks > 1 and s.alone
    rounding = [c.rounding for c in s.curves if c.rounding is not None]
    return [
        first.method, first.sync, str(first.ranks), str(len(s.curves)), f"{s.mean[-1]:.4f}",
        number(s.differences[-1], 4) if last else "-", number(s.spreads[-1], 4) if s.alone else "-",
        percent(s.within), error_figure(max(rounding, default=None)),
    ]  # fmt: skip


DASHES: tuple[Any, ...] = ((0, ()), (0, (4, 2)), (0, (1.2, 1.4)), (0, (6, 1.5, 1.2, 1.5)))


def curves_figure(records: Sequence[RankCurve], title: str) -> Figure:
    """A panel for each method and sync: a curve for each number of ranks, and the range over seeds of one process."""
    panels: dict[tuple[str, str], list[Summary]] = {}
    for s in summaries(records):
        panels.setdefault((s.curves[0].method, s.curves[0].sync), []).append(s)
    numbers = sorted({r.ranks for r in records})
    columns = min(3, len(panels))
    figure = new_figure(3.9 * columns, 1.3 + 2.9 * -(-len(panels) // columns), title)
    looks = looks_of(list(dict.fromkeys(label for label, _ in panels)))
    for place, ((label, sync), rows) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(-(-len(panels) // columns), columns, place)
        colour = looks[label].colour
        entitle(axes, f'{looks[label].name}, sync="{sync}"', 10.5)
        axes.set_xlabel("epoch", fontsize=9)
        axes.set_ylabel("training loss", fontsize=9)
        _draw(axes, rows, numbers, colour)
        plain(axes)
    lines = [
        Line2D([], [], color="#4d4d4d", linestyle=DASHES[k % len(DASHES)], label=f"{w} ranks" if w > 1 else "1 process")
        for k, w in enumerate(numbers)
    ]
    union = Line2D([], [], color="#4d4d4d", marker="o", markerfacecolor="none", linestyle="", markersize=5)
    union.set_label("1 process on the batches of the ranks")
    band: Any = Patch(color="#4d4d4d", alpha=0.2, label="1 process, lowest to highest seed")
    legend_below(figure, {}, more=[*lines, union, band])
    return figure


def _draw(axes: Axes, rows: Sequence[Summary], numbers: Sequence[int], colour: str) -> None:
    """The curves of one method."""
    for s in rows:
        ranks, epochs = s.curves[0].ranks, range(1, len(s.mean) + 1)
        k = numbers.index(ranks)
        tone = shade(colour, (0.0, -0.35, 0.25, -0.6)[k % 4])
        axes.plot(epochs, s.mean, color=tone, linestyle=DASHES[k % len(DASHES)], linewidth=1.7)
        if ranks == 1 and len(s.curves) > 1:
            every = list(zip(*(c.losses for c in s.curves), strict=True))
            axes.fill_between(epochs, [min(e) for e in every], [max(e) for e in every], color=colour, alpha=0.2)
        if s.curves[0].union is not None:
            axes.plot(epochs, s.curves[0].union, "o", color=tone, markerfacecolor="none", markersize=5)
