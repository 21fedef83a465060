"""What the tables and figures of the paper share: options, groups of trainings, and numbers of many seeds."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, ClassVar

import numpy as np
import typer

from experiments.paper.graphs import WIDTHS, Graphs, check_scale, shared_graphs
from experiments.paper.numbers import Comparison, Entry, Verdict, joined, value_of
from experiments.paper.training import EPOCHS, NO_TIME, TIME, TIMED, Group, Trained, Training, preset_of
from experiments.study import Seeds
from lmc.cli.console import TextTable
from lmc.cli.lists import at_least_one
from lmc.cli.study import DataDir, Study
from lmc.files import writable
from lmc.results import append_lines

SCALE_HELP = "Size of lookalikes: a share of the original, auto (by device) or tiny."
TITLES = {
    "full": "GD", "backward-sgd": "backward SGD", "cluster": "Cluster-GCN", "gas": "GAS", "fm": "FM",
    "lmc": "LMC4Conv", "lmc4rec": "LMC4Rec", "sse": "SSE", "graphsage": "GraphSAGE", "vrgcn": "VR-GCN",
    "fastgcn": "FastGCN", "ladies": "LADIES", "graphsaint": "GraphSAINT", "sign": "SIGN", "ignn": "IGNN",
}  # fmt: skip
"""Methods as the paper's tables write them."""
DATASETS = {
    "ogbn-arxiv": "Ogbn-arxiv", "flickr": "FLICKR", "reddit": "REDDIT", "ppi": "PPI", "amazon": "AMAZON",
    "ogbn-products": "Ogbn-products", "cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed",
}  # fmt: skip
LEAST_SECONDS = 1.0
"""A group has at least so much time: where there is less, later groups are not begun."""
WINDOW = 3
"""Evaluations over which a curve is smoothed, as in the paper."""
Number = Callable[[Trained], float | None]
"""What is read from one training."""


class Results:
    """The records of trainings, by group (whatever its seed) and method."""

    def __init__(self, records: Sequence[Trained]) -> None:
        self._found: dict[tuple[Any, ...], list[Trained]] = {}
        for record in records:
            self._found.setdefault((*_group_key(record), record.method), []).append(record)

    def of(self, group: Training, method: str) -> list[Trained]:
        """The records of all seeds."""
        return self._found.get((*_group_key(group), method), [])

    def entry(self, group: Training, method: str, number: Number) -> Entry | None:
        """Mean and deviation over seeds of what ``number`` reads; "failed" where every seed failed."""
        records = self.of(group, method)
        found = [value for record in records if (value := number(record)) is not None]
        failed = any(record.error not in (None, NO_TIME) for record in records)
        return value_of(found) or ("failed" if failed else None)


def _group_key(group: Training) -> tuple[Any, ...]:
    return astuple(Training(**{f.name: getattr(group, f.name) for f in fields(Training)} | {"seed": 0}))


def pace_key(cell: Training, method: str) -> tuple[Any, ...]:
    """What the time of an epoch depends on."""
    return cell.dataset, cell.model, cell.parts, cell.clusters, cell.partition, cell.dropout, method


def title_of(spec: str) -> str:
    """The paper's name of a method."""
    return TITLES.get(spec.partition(":")[0], spec)


def smooth(values: Sequence[float]) -> list[float]:
    """Means over a window that ends at each value."""
    return [fmean(values[max(0, k + 1 - WINDOW) : k + 1]) for k in range(len(values))]


def accuracy(record: Trained) -> float | None:
    """Test accuracy in percent at the best validation accuracy."""
    return None if record.chosen is None else 100 * record.chosen


@dataclass(frozen=True, kw_only=True)
class Item(Study[Training, Trained]):
    """A table or a figure of the paper."""

    cell, record, store = Training, Trained, "trainings"
    shared = ("scale", "epochs", "max_width")
    title: ClassVar[str]
    """What the table or the figure shows."""
    label: ClassVar[str]
    """Its label in the source of the paper."""
    remark: ClassVar[str] = ""
    """What differs from the paper, and what the paper says where it prints no numbers."""
    timed: ClassVar[tuple[str, ...]] = ()
    """The methods whose seconds are shown."""

    scale: Annotated[str, typer.Option(help=SCALE_HELP)] = "auto"
    seeds: Seeds = 5
    epochs: Annotated[int | None, typer.Option(help="At most so many epochs.", show_default="the preset's")] = None
    max_width: Annotated[
        int | None, typer.Option(help="Largest hidden width.", show_default="the preset's; less on a CPU")
    ] = None
    data_dir: DataDir = None

    @abstractmethod
    def groups(self) -> dict[str, Training]:
        """The groups of trainings by the names of their settings, with seed 0."""

    @abstractmethod
    def comparisons(self, results: Results) -> list[Comparison]:
        """Our numbers beside the paper's."""

    def group(self, dataset: str, model: str, methods: Sequence[str], **settings: Any) -> Training:
        """A group whose epochs are those of the preset, or ``--epochs`` where that is less."""
        preset = preset_of(model, dataset).fit_options.get("epochs", EPOCHS[model])
        epochs = min(settings.pop("epochs", preset), self.epochs or preset)
        return Training(dataset, model, ",".join(methods), epochs, **settings)

    def cells(self) -> list[Training]:
        """All groups of one seed after those of the other."""
        check_scale(self.scale)
        seeds = range(at_least_one("--seeds", self.seeds))
        return [replace(group, seed=seed) for seed in seeds for group in self.groups().values()]

    @cached_property
    def graphs(self) -> Graphs:
        """The graphs, which all items of a process share."""
        return shared_graphs(self.scale, self.on, self.data_dir)

    @cached_property
    def folder(self) -> Path:
        return self.run_dir or Path("runs") / f"paper-{self.scale}-{self.on.type}"

    def measure(self, cell: Training) -> Sequence[Trained]:
        return self.measure_within(cell, None)

    def measure_within(self, cell: Training, seconds: float | None) -> Sequence[Trained]:
        return self.train(cell, None if seconds is None else max(seconds, LEAST_SECONDS))

    def train(
        self, cell: Training, seconds: float | None, until: float = math.inf, settle: bool = False
    ) -> Sequence[Trained]:
        """Train the methods of a group; see :class:`Group`. Loading the graph does not count as its time."""
        self.graphs.load(cell.dataset)
        width = self.max_width or WIDTHS.get((self.scale, self.on.type))
        return Group(cell, self.graphs, width, seconds, until, settle).train()

    def timings(self) -> list[Training]:
        """Short groups that measure the time of an epoch of the methods whose seconds are shown."""
        found = []
        for group in self.groups().values():
            methods = ",".join(spec for spec in group.specs if spec in self.timed)
            if methods:
                found.append(replace(group, methods=methods, epochs=TIMED, probe=TIME))
        return found

    def keep(self, records: Sequence[Trained]) -> None:
        """Add lines to the folder."""
        with writable(self.folder):
            append_lines(self.file("jsonl"), records)

    def is_done(self, record: Trained) -> bool:
        return not record.cut_short

    def describe(self, record: Trained) -> str:
        score = "" if record.chosen is None else f", {100 * record.chosen:.2f} % after {record.at[-1]} epochs"
        what = f"{self.name}: {record.dataset}, {record.model}, {record.method}, seed {record.seed}{score}"
        return what if record.error is None else f"{what}: {record.error}"

    def lines(self) -> list[Trained]:
        """The line of every method of every group with the most epochs, the newest of several."""
        found: dict[tuple[Any, ...], Trained] = {}
        for record in super().lines():
            key = (*_group_key(record), record.seed, record.method)
            if key not in found or record.at[-1:] >= found[key].at[-1:]:
                found[key] = record
        return list(found.values())

    def own(self, lines: Sequence[Trained]) -> list[Trained]:
        """The lines of this item among those of the folder, in seconds of epochs that ran alone where there are any."""
        cells, names = set(self.cells()), [f.name for f in fields(Training)]
        found = [r for r in lines if Training(**{name: getattr(r, name) for name in names}) in cells]
        paces = {pace_key(r, r.method): r.epoch_ms for r in lines if r.probe == TIME and r.epoch_ms}
        return [r.at_pace(paces[key]) if (key := pace_key(r, r.method)) in paces else r for r in found]

    def verdict(self, comparisons: Sequence[Comparison]) -> Verdict:
        """Whether the paper's order holds in all of the comparisons."""
        return joined([comparison.verdict for comparison in comparisons])

    def of_record(self, record: Training) -> Training:
        """The group of a record, with seed 0."""
        return Training(*_group_key(record))

    def compare(
        self, what: str, groups: Mapping[str, Training], methods: Sequence[str], results: Results, number: Number,
        **options: Any,
    ) -> Comparison:  # fmt: skip
        """A comparison whose settings are groups and whose methods are specs, named by ``titles`` or the paper."""
        titles = dict(zip(methods, options.pop("titles", map(title_of, methods)), strict=True))
        ours = {
            (setting, title): entry
            for setting, group in groups.items()
            for method, title in titles.items()
            if (entry := results.entry(group, method, number)) is not None
        }
        return Comparison(what, list(groups), list(titles.values()), ours, **options)

    def tables(self, records: Sequence[Trained]) -> list[TextTable]:
        own = self.own(records)
        found = self.comparisons(Results(own))
        tables = [comparison.table() for comparison in found]
        text = f"Graphs: {graphs_of(own)}. Does the paper's order hold? {self.verdict(found).text}"
        return [*tables[:-1], replace(tables[-1], caption=f"{tables[-1].caption}. {text}")] if tables else []


def graphs_of(records: Sequence[Trained]) -> str:
    """The graphs of records in words."""
    found = {DATASETS[record.dataset]: record.graph for record in records}
    return "; ".join(f"{name}: {graph}" for name, graph in found.items()) or "none"


def times(results: Results, group: Training, methods: Sequence[str]) -> dict[int, float]:
    """The runtime in seconds that all of the methods have, by seed."""
    ends: dict[int, list[float]] = {}
    for record in (record for method in methods for record in results.of(group, method) if record.seconds):
        ends.setdefault(record.seed, []).append(record.seconds[-1])
    return {seed: min(seconds) for seed, seconds in ends.items()}


def mean_over_time(record: Trained, until: Mapping[int, float]) -> float | None:
    """The mean of the smoothed test accuracy in percent over the runtime that all methods have."""
    if not record.test or record.seed not in until:
        return None
    at = np.linspace(0.0, until[record.seed], 201)[1:]
    return float(100 * np.interp(at, record.seconds, smooth(record.test)).mean())


def loss_after(record: Trained, until: Mapping[int, float]) -> float | None:
    """The smoothed training loss after the runtime that all methods have."""
    if not record.loss or record.seed not in until:
        return None
    return float(np.interp(until[record.seed], record.seconds, smooth(record.loss)))


def mean_along(record: Trained) -> float | None:
    """The mean of the test accuracy in percent over the evaluations."""
    return 100 * fmean(record.test) if record.test else None
