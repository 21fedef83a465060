"""Relative errors of batch gradients against backward SGD along training, graph by graph."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Annotated

import typer

from experiments.study import GraphsStudy, Rates, Seeds, train_epochs
from lmc.bench.compare import has_error, measure
from lmc.bench.epoch import free
from lmc.cli.console import TextTable, error_figure, number
from lmc.cli.lists import at_least_one, first_of, methods_in, parse_configs, parse_list, parse_numbers
from lmc.cli.study import Hidden, Methods
from lmc.diagnostics import GradientProbe
from lmc.errors import ConfigError

CAPTION = (
    "relative error of a batch's gradient against backward SGD on the same batch, mean over parameters, 3 batches, "
    "measurements and seeds; marked: the best LMC4Conv"
)


@dataclass(frozen=True)
class GradientCell:
    """One training with measurements on its way. ``dataset`` is the name that the user gave."""

    dataset: str
    config: str
    lr: float
    seed: int
    method: str


@dataclass(frozen=True)
class GradientRecord(GradientCell):
    """The errors of one training against backward SGD; None where one is not finite."""

    error: float | None  # relative; mean over parameters, batches and measurements
    errors: Mapping[str, float | None]  # the same by epoch
    diverged: bool  # whether a measurement is not finite


@dataclass(frozen=True, kw_only=True)
class Gradients(GraphsStudy[GradientCell, GradientRecord]):
    """Measure the relative error of batch gradients against backward SGD along training, graph by graph."""

    name, cell, record, tf32 = "gradients", GradientCell, GradientRecord, False
    shared = ("layers", "hidden", "epochs", "every")

    datasets: Annotated[str, typer.Argument(help="Names or paths, comma-separated.")] = "cora,amazon-photo"
    configs: Annotated[
        str, typer.Option(help="parts/clusters, comma-separated; name=parts/clusters starts those of one graph.")
    ] = "10/2"
    lrs: Rates = "3e-3"
    epochs: Annotated[int, typer.Option(help="Epochs of training by the method itself.")] = 20
    every: Annotated[int, typer.Option(help="Epochs between measurements.")] = 2
    methods: Methods = "gas,lmc:alpha=0,lmc:alpha=0.4,lmc,lmc:alpha=1:score=2x-x^2,cmc"
    hidden: Hidden = 64
    seeds: Seeds = 1

    def cells(self) -> list[GradientCell]:
        """All cells, all graphs for each seed in turn."""
        configs = configs_of(self.configs, parse_list(self.datasets, "DATASETS", str))
        methods = [methods_in(config, self.methods) for of_graph in configs.values() for config in of_graph]
        exact = [label for label, method in methods[0].items() if not has_error(method)]
        if exact:
            raise ConfigError(f"expected methods whose gradient may err (got {', '.join(exact)}): drop it")
        if not 1 <= self.every <= self.epochs:
            raise ConfigError(f"expected --every from 1 to --epochs = {self.epochs} (got {self.every})")
        lrs = parse_numbers(self.lrs, "--lrs")
        return [
            GradientCell(dataset, config, lr, seed, method)
            for seed in range(at_least_one("--seeds", self.seeds))
            for dataset, of_graph in configs.items()
            for config in of_graph
            for lr in lrs
            for method in methods[0]
        ]

    def measure(self, cell: GradientCell) -> list[GradientRecord]:
        """Train from scratch, without norm and dropout, and measure after every ``every`` epochs."""
        run = self.testbeds[cell.dataset].bind(methods_in(cell.config, self.methods)[cell.method], cell.seed)
        probe = GradientProbe(run)
        trained = train_epochs(run, self.epochs, cell.lr)
        errors = {epoch: measure(probe, run, epoch).mean for epoch, _ in trained if epoch % self.every == 0}
        mean = fmean(errors.values())
        record = GradientRecord(
            **asdict(cell),
            error=mean if math.isfinite(mean) else None,
            errors={str(epoch): error if math.isfinite(error) else None for epoch, error in errors.items()},
            diverged=not math.isfinite(mean),
        )
        del run, probe, trained
        free(self.on)
        return [record]

    def describe(self, record: GradientRecord) -> str:
        r, error = record, "diverged" if record.error is None else f"error {error_figure(record.error)}"
        return f"seed {r.seed}, {r.dataset} {r.config}, lr {r.lr:g}, {r.method}: {error}"

    def tables(self, records: Sequence[GradientRecord]) -> list[TextTable]:
        labels = list(dict.fromkeys(r.method for r in records))
        cmc, lmc4conv = first_of(labels, "cmc"), first_of(labels, "lmc")
        headers = ["graph", "parts/clusters", "lr", *labels, *([f"{cmc} / best lmc"] if cmc and lmc4conv else [])]
        rows = []
        for row in gradient_rows(records):
            line = [row.dataset, row.config, f"{row.lr:g}"]
            for label in labels:
                text = row.text(label)
                line.append(f"**{text}**" if label == row.best else text)
            if cmc and lmc4conv:
                line.append(number(row.over_best(cmc), 2))
            rows.append(line)
        return [TextTable(headers, rows, CAPTION, named=3)]


def configs_of(text: str, datasets: Sequence[str]) -> dict[str, list[str]]:
    """``"10/2,20/2"`` for every graph, or ``"cora=10/2,10/5,dblp=20/2"`` for each graph its own."""
    own: dict[str, list[str]] = {}
    name = ""
    for part in text.split(","):
        before, mark, config = part.strip().rpartition("=")
        name = before.strip() if mark else name
        own.setdefault(name, []).append(config)
    shared = own.pop("", [])
    unknown = [name for name in own if name not in datasets]
    missing = [name for name in datasets if not shared and name not in own]
    if unknown or missing:
        raise ConfigError(
            f"expected --configs for {', '.join(datasets)} (got {text!r}): "
            + (f"{', '.join(unknown)} is none of them" if unknown else f"{', '.join(missing)} has none")
        )
    return {name: parse_configs(",".join([*shared, *own.get(name, [])])) for name in datasets}


@dataclass(frozen=True)
class GradientRow:
    """The errors of one graph, configuration and rate: the mean over seeds by method, None where a seed diverged."""

    dataset: str
    config: str
    lr: float
    errors: Mapping[str, float | None]

    @property
    def best(self) -> str | None:
        """The spec of the best LMC4Conv."""
        return best_of(self.errors)

    def text(self, method: str) -> str:
        """The error of a method in words; "-" where it is not measured yet."""
        diverged = method in self.errors and self.errors[method] is None
        return "diverged" if diverged else error_figure(self.errors.get(method))

    def over_best(self, method: str) -> float | None:
        """A method's error over that of the best LMC4Conv."""
        mine, best = self.errors.get(method), self.errors[self.best] if self.best else None
        return mine / best if mine is not None and best else None


def best_of(errors: Mapping[str, float | None]) -> str | None:
    """The spec of the LMC4Conv with the smallest error."""
    tried = {k: v for k, v in errors.items() if k.partition(":")[0] == "lmc" and v is not None}
    return min(tried, key=lambda label: tried[label], default=None)


def gradient_rows(records: Sequence[GradientRecord]) -> Iterator[GradientRow]:
    """One row per graph, configuration and rate, in the order of the lines."""
    found: dict[tuple[str, str, float], dict[str, list[float | None]]] = {}
    for r in records:
        found.setdefault((r.dataset, r.config, r.lr), {}).setdefault(r.method, []).append(r.error)
    for setting, by_method in found.items():
        yield GradientRow(*setting, {method: _mean(errors) for method, errors in by_method.items()})


def _mean(errors: Sequence[float | None]) -> float | None:
    finite = [e for e in errors if e is not None]
    return fmean(finite) if len(finite) == len(errors) else None
