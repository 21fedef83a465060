"""How old histories change a training: errors of states and adjoints, bias of the gradient, and the loss reached."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Annotated

import typer

from experiments.grid import exact_loss
from experiments.study import Rates, Seeds, TrainingStudy, parse_norm
from lmc.bench.epoch import free
from lmc.cli.console import TextTable, number
from lmc.cli.lists import at_least_one, methods_in, parse_list, parse_numbers
from lmc.cli.study import Methods
from lmc.diagnostics import BiasVariance, Staleness, bias_variance, staleness
from lmc.engine import Run
from lmc.train import adam, train_step
from lmc.train.evaluate import evaluate_problem

CAPTION = (
    "H, V: |stored - exact| / |exact| of states and adjoints, mean over layers and over three probes along the "
    "training; bias: |E g - g*| / |g*|; deviation: the root of E |g - E g|^2 / |g*|^2; loss: exact training loss of "
    "the whole graph at the end; refresh: steps after which all histories are made exact, 0: never; means over seeds"
)
PROBES = 3
"""Measurements along a training, at equal distances."""


@dataclass(frozen=True)
class StalenessCell:
    """One training. ``refresh``: steps between two refreshes of all histories; 0: never after the start."""

    method: str
    norm: str
    dropout: float
    lr: float
    refresh: int
    seed: int


@dataclass(frozen=True)
class StalenessRecord(StalenessCell):
    """The results of one training; errors are None where the method has no such histories."""

    H: float | None
    V: float | None
    bias: float
    deviation: float
    loss: float
    test: float


@dataclass(frozen=True, kw_only=True)
class StalenessStudy(TrainingStudy[StalenessCell, StalenessRecord]):
    """Train with histories that are refreshed seldom or often, and measure how old they are and what that changes."""

    name, cell, record = "staleness", StalenessCell, StalenessRecord
    shared = ("layers", "hidden", "config", "epochs")

    config: Annotated[str, typer.Option(help="parts/clusters.")] = "16/2"
    lrs: Rates = "1e-3,3e-3,1e-2"
    norms: Annotated[str, typer.Option(help="none, layer or batch, each with its dropout, comma-separated.")] = "layer"
    refresh: Annotated[str, typer.Option(help="Steps between refreshes, comma-separated; 0: never.")] = "0"
    seeds: Seeds = 2
    epochs: Annotated[int, typer.Option(help="Epochs of every training.")] = 12
    methods: Methods = "backward-sgd,gas,lmc,lmc:alpha=0,lmc:backward=no,lmc:forward=no,lmc:alpha=1:score=1,cmc"

    def cells(self) -> list[StalenessCell]:
        at_least_one("--epochs", self.epochs)
        norms = parse_list(self.norms, "--norms", parse_norm)
        lrs = parse_numbers(self.lrs, "--lrs")
        steps = parse_list(self.refresh, "--refresh", int)
        return [
            StalenessCell(method, norm, dropout, lr, refresh, seed)
            for seed in range(at_least_one("--seeds", self.seeds))
            for norm, dropout in norms
            for lr in lrs
            for refresh in steps
            for method in methods_in(self.config, self.methods)
        ]

    def measure(self, cell: StalenessCell) -> list[StalenessRecord]:
        method = methods_in(self.config, self.methods)[cell.method]
        run = self.testbed.bind(method, cell.seed, cell.norm, cell.dropout)
        ages, errors = zip(*self.probes(run, cell), strict=True)
        record = StalenessRecord(
            **asdict(cell),
            H=mean_of([error for age in ages for error in age.H.values()]),
            V=mean_of([error for age in ages for error in age.V.values()]),
            bias=fmean(error.relative_bias for error in errors),
            deviation=fmean(error.relative_variance**0.5 for error in errors),
            loss=exact_loss(run),
            test=evaluate_problem(run.problem)["test"],
        )
        del run
        free(self.on)
        return [record]

    def probes(self, run: Run, cell: StalenessCell) -> Iterator[tuple[Staleness, BiasVariance]]:
        """Train, and measure after each third of the epochs."""
        optimizer, step = adam(run.problem.model, cell.lr), 0
        run.refresh()
        due = {round(self.epochs * (k + 1) / PROBES) for k in range(PROBES)}
        for epoch in range(self.epochs):
            for batch in run.batches(epoch):
                if cell.refresh and step % cell.refresh == 0:
                    run.refresh()
                train_step(run, optimizer, batch)
                step += 1
            if epoch + 1 in due:
                yield staleness(run), bias_variance(run)

    def describe(self, record: StalenessRecord) -> str:
        r = record
        setting = f"{r.norm}:{r.dropout:g}, lr {r.lr:g}, refresh {r.refresh}, seed {r.seed}"
        return f"{setting}, {r.method}: loss {r.loss:.4f}, bias {r.bias:.3f}"

    def tables(self, records: Sequence[StalenessRecord]) -> list[TextTable]:
        groups: dict[tuple[str, float, float, int, str], list[StalenessRecord]] = {}
        for r in records:
            groups.setdefault((r.norm, r.dropout, r.lr, r.refresh, r.method), []).append(r)
        rows = []
        for (norm, dropout, lr, refresh, method), those in groups.items():
            kinds = [[v for r in those if (v := getattr(r, kind)) is not None] for kind in ("H", "V")]
            errors = [number(mean_of(values), 3) for values in kinds]
            rest = [f"{fmean(getattr(r, kind) for r in those):.3f}" for kind in ("bias", "deviation", "loss")]
            test = f"{100 * fmean(r.test for r in those):.2f}"
            name = norm if not dropout else f"{norm}:{dropout:g}"
            rows.append([name, f"{lr:g}", str(refresh), method, *errors, *rest, test])
        headers = ["norm", "lr", "refresh", "method", "H", "V", "bias", "deviation", "loss", "test %"]
        return [TextTable(headers, rows, CAPTION, named=4)]


def mean_of(values: Sequence[float]) -> float | None:
    """The mean, where there is one."""
    return fmean(values) if values else None
