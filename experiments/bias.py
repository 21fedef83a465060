"""Bias and error of batch gradients along short trainings, over a grid of graphs, batches and models."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

import lmc.data
from experiments.gradients import best_of
from experiments.study import PARTITION_SEED, Seeds, train_epochs
from lmc.bench.compare import PROBED, Partitions, shared_parts
from lmc.bench.epoch import free
from lmc.cli.console import TextTable, error_figure, number
from lmc.cli.lists import at_least_one, methods_in, parse_list
from lmc.cli.spec import parse_model
from lmc.cli.study import DataDir, Methods, Study
from lmc.data import lookalikes
from lmc.diagnostics import GradientProbe, bias
from lmc.errors import ConfigError
from lmc.grammar import split_spec
from lmc.graph import Graph

GRID = (
    "cora 10/2 gcn, citeseer 10/2 gcn, pubmed 40/4 gcn, dblp 40/4 gcn, dblp 40/1 gcn, "
    "amazon-photo 20/2 gcn:norm=layer, arxiv-like@0.05 40/5 gcn, arxiv-like@0.05 40/5 gcn:norm=batch, "
    "arxiv-like@0.05 40/5 gcnii, flickr-like@0.1 24/6 gcn:norm=layer, products-like@0.005 40/4 sage, "
    "reddit-like@0.02 20/2 gcn:norm=layer"
)
BIAS = (
    "bias: |mean gradient of an epoch - full gradient| / |full gradient| at fixed parameters, mean over parameters, "
    "measurements and seeds; marked: the best LMC4Conv"
)
ERROR = (
    "error: that of a batch's gradient against the exact one of the method's family, mean over parameters, 3 batches, "
    "measurements and seeds; marked: the best LMC4Conv"
)


@dataclass(frozen=True)
class BiasCell:
    """One training with measurements on its way."""

    dataset: str
    config: str
    model: str
    seed: int
    method: str


@dataclass(frozen=True)
class BiasRecord(BiasCell):
    """Relative bias and error of one training, mean over parameters and measurements; None where not finite."""

    bias: float | None
    error: float | None
    biases: Mapping[str, float | None]  # by epoch


@dataclass(frozen=True, kw_only=True)
class Bias(Study[BiasCell, BiasRecord]):
    """Measure the bias of the mean gradient of an epoch, and the error of a batch's, over a grid of settings."""

    name, cell, record, tf32 = "bias", BiasCell, BiasRecord, False
    shared = ("layers", "hidden", "lr", "epochs", "every")

    grid: Annotated[
        str,
        typer.Option(
            help="Settings as GRAPH PARTS/CLUSTERS MODEL, comma-separated. A lookalike takes its seed and other "
            "statistics after colons, as in arxiv-like@0.05:seed=7:near=0.3."
        ),
    ] = GRID
    methods: Methods = "gas,lmc,lmc:alpha=0,lmc:alpha=0.4,cmc,imc,imc:halo=0"
    layers: Annotated[int, typer.Option(help="Number of layers.")] = 3
    hidden: Annotated[int, typer.Option(help="Width of the hidden layers.")] = 64
    lr: Annotated[float, typer.Option(help="Learning rate of Adam.")] = 1e-2
    epochs: Annotated[int, typer.Option(help="Epochs of training by the method itself.")] = 12
    every: Annotated[int, typer.Option(help="Epochs between measurements.")] = 3
    seeds: Seeds = 1
    data_dir: DataDir = None

    def cells(self) -> list[BiasCell]:
        """All cells, a whole grid for each seed in turn."""
        if not 1 <= self.every <= self.epochs:
            raise ConfigError(f"expected --every from 1 to --epochs = {self.epochs} (got {self.every})")
        settings = parse_list(self.grid, "--grid", parse_setting)
        return [
            BiasCell(*setting, seed, method)
            for seed in range(at_least_one("--seeds", self.seeds))
            for setting in settings
            for method in methods_in(setting[1], self.methods)
        ]

    def measure(self, cell: BiasCell) -> list[BiasRecord]:
        """Train from scratch without dropout, and measure after every ``every`` epochs."""
        method = methods_in(cell.config, self.methods)[cell.method]
        graph, partitions = load(cell.dataset, self.data_dir)
        model = parse_model(f"{cell.model}:hidden={self.hidden}:layers={self.layers}", graph, cell.seed)
        parts = shared_parts(method, graph, PARTITION_SEED, partitions)
        run = method.bind(graph, model, parts=parts, device=self.on, seed=cell.seed)
        probe, found = GradientProbe(run), dict[int, tuple[float, float]]()
        for epoch, _ in train_epochs(run, self.epochs, self.lr):
            if epoch % self.every == 0:
                batches = islice(run.source.epoch(run.epoch, 0), PROBED)
                found[epoch] = fmean(bias(run).values()), fmean(probe(batch).mean for batch in batches)
        biases, errors = zip(*found.values(), strict=True)
        record = BiasRecord(
            **asdict(cell), bias=finite(fmean(biases)), error=finite(fmean(errors)),
            biases={str(epoch): finite(value) for epoch, (value, _) in found.items()},
        )  # fmt: skip
        del run, probe
        free(self.on)
        return [record]

    def describe(self, record: BiasRecord) -> str:
        r = record
        return (
            f"seed {r.seed}, {r.dataset} {r.config} {r.model}, {r.method}: bias {error_figure(r.bias)}, "
            f"error {error_figure(r.error)}"
        )

    def tables(self, records: Sequence[BiasRecord]) -> list[TextTable]:
        return [table_of(records, "bias", "imc", BIAS), table_of(records, "error", "cmc", ERROR)]


def parse_setting(text: str) -> tuple[str, str, str]:
    """ "cora 10/2 gcn" -> graph, parts/clusters and model."""
    words = text.split()
    if len(words) != 3:
        raise ConfigError(f"expected a setting as GRAPH PARTS/CLUSTERS MODEL (got {text!r})")
    return words[0], words[1], words[2]


@cache
def load(source: str, data_dir: Path | None) -> tuple[Graph, Partitions]:
    """A graph and an empty record of its partitions; "arxiv-like@0.05:seed=7:near=0.3" is a lookalike with other
    statistics."""
    name, written = split_spec(source)
    lookalike = lookalikes.parse(name)
    if not written or lookalike is None:
        return lmc.data.load(source, data_dir=data_dir).training_graph, {}
    changes = {key: float(value) for key, value in written.items()}
    seed = int(changes.pop("seed", 0))
    return lookalikes.make(lookalike[0], seed=seed, scale=lookalike[1] or 1.0, **changes), {}


def finite(value: float) -> float | None:
    """The value, or None where it is not finite."""
    return value if math.isfinite(value) else None


def table_of(records: Sequence[BiasRecord], kind: str, ours: str, caption: str) -> TextTable:
    """One row a setting: ``kind`` of every method, and that of each ``ours`` over that of the best LMC4Conv."""
    labels = list(dict.fromkeys(r.method for r in records))
    mine = [label for label in labels if split_spec(label)[0] == ours]
    rows = []
    for setting, values in means(records, kind):
        best = best_of(values)
        texts = [error_figure(values.get(label)) for label in labels]
        line = [f"**{text}**" if label == best else text for label, text in zip(labels, texts, strict=True)]
        theirs = values[best] if best else None
        ratios = [own / theirs if own and theirs else None for own in map(values.get, mine)]
        rows.append([*setting, *line, *(number(ratio, 2) for ratio in ratios)])
    columns = ["graph", "parts/clusters", "model", *labels, *(f"{label} / best lmc" for label in mine)]
    return TextTable(columns, rows, caption, named=3)


def means(records: Sequence[BiasRecord], kind: str) -> Iterator[tuple[tuple[str, str, str], dict[str, float | None]]]:
    """(graph, parts/clusters, model) and the mean over seeds by method; None where a seed is not finite."""
    found: dict[tuple[str, str, str], dict[str, list[float | None]]] = {}
    for r in records:
        found.setdefault((r.dataset, r.config, r.model), {}).setdefault(r.method, []).append(getattr(r, kind))
    for setting, by_method in found.items():
        yield setting, {m: None if None in v else fmean(x for x in v if x is not None) for m, v in by_method.items()}
