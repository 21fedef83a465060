"""Epochs of a recurrent model: their time, and the solver steps that starting from the histories saves."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Annotated

import torch
import typer

from lmc.bench.epoch import free, halo_ratio, wait
from lmc.cli.console import TextTable, number
from lmc.cli.lists import methods_in, parse_numbers, positive
from lmc.cli.study import Dataset, Dropout, GraphStudy, Hidden, Methods, Seed
from lmc.engine import Run
from lmc.engine.recurrent import rules_of
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.methods import Method
from lmc.methods.recurrent import solve_batch
from lmc.models import RecGCN
from lmc.train import adam, train_epoch, train_step

CAPTION = (
    "ms / epoch: median over epochs of training, the methods in turn; time / first: so many times as long as an epoch "
    "of the first method takes; cold, warm: steps of a forward + a backward solve from zero and from the histories, "
    "mean over batches; cold / warm: all cold steps over all warm ones"
)
Steps = tuple[float, float]


@dataclass(frozen=True)
class RecurrentSetup:
    """A RecGCN of this shape, in training. After ``warmup`` epochs ``repeat`` epochs are timed; then the solver steps
    of ``counted`` more epochs are counted."""

    hidden: int = 128
    lr: float = 0.003
    dropout: float = 0.0
    solver: str = "picard"
    tol: float = 1e-4
    seed: int = 0
    warmup: int = 40
    repeat: int = 16
    counted: int = 4

    def __post_init__(self) -> None:
        if self.repeat < 1 or self.warmup < 0 or self.counted < 1:
            raise ConfigError(
                "expected repeat and counted of at least 1 and warmup of at least 0 "
                f"(got {self.repeat}, {self.counted} and {self.warmup})"
            )


@dataclass(frozen=True)
class RecurrentTiming:
    """The measurements of one method; steps are those of a forward and of a backward solve, mean over batches."""

    method: str
    ms: float  # of an epoch; on a CPU the time of this process, whatever else runs
    vs_first: float  # ms over that of the first method
    warm: Steps | None  # steps from the histories; None where nothing is solved
    cold: Steps | None  # steps from zero at the same parameters
    fewer: float | None  # all cold steps over all warm ones
    halo_ratio: float  # halo rows over core rows
    loss: float  # mean of the last epoch


@dataclass(frozen=True)
class RecurrentCell:
    """The methods of one partition and tolerance, which are trained in turn."""

    partition: str
    lr: float
    tol: float
    methods: str


@dataclass(frozen=True, kw_only=True)
class RecurrentRecord(RecurrentCell, RecurrentTiming):
    """One method in one cell."""


@dataclass(frozen=True, kw_only=True)
class Recurrent(GraphStudy[RecurrentCell, RecurrentRecord]):
    """Time epochs of a RecGCN in training, and count the solver steps that starting from the histories saves."""

    name, cell, record = "recurrent", RecurrentCell, RecurrentRecord
    shared = ("solver", "parts", "clusters", "hidden", "dropout", "warmup", "repeat", "counted", "seed")

    dataset: Dataset = "cora"
    methods: Methods = "gas,lmc4rec"
    partitions: Annotated[str, typer.Option(help="metis, random; comma-separated.")] = "metis,random"
    lrs: Annotated[str, typer.Option(help="A learning rate for each partition.")] = "3e-3,1e-3"
    tols: Annotated[str, typer.Option(help="Tolerances of the solver, comma-separated.")] = "1e-4"
    solver: Annotated[str, typer.Option(help="picard or anderson.")] = "picard"
    parts: Annotated[int, typer.Option(help="Parts of the graph.")] = 10
    clusters: Annotated[int, typer.Option(help="Parts in a batch.")] = 2
    hidden: Hidden = 128
    dropout: Dropout = 0.0
    warmup: Annotated[int, typer.Option(help="Epochs of training before anything is measured.")] = 40
    repeat: Annotated[int, typer.Option(help="Epochs to take the median of.")] = 16
    counted: Annotated[int, typer.Option(help="Epochs after them whose solver steps are counted.")] = 4
    seed: Seed = 0

    def cells(self) -> list[RecurrentCell]:
        partitions = self.partitions.split(",")
        lrs = [positive(rate.strip(), "--lrs") for rate in self.lrs.split(",")]
        tols = parse_numbers(self.tols, "--tols")
        if len(partitions) != len(lrs):
            raise ConfigError(f"expected a learning rate for each of {len(partitions)} partitions (got {len(lrs)})")
        cells = [
            RecurrentCell(partition, lr, tol, self.methods)
            for partition, lr in zip(partitions, lrs, strict=True)
            for tol in tols
        ]
        for cell in cells:
            self.methods_of(cell)
            self.setup_of(cell)
        return cells

    def methods_of(self, cell: RecurrentCell) -> dict[str, Method]:
        """The methods of a cell by spec."""
        return methods_in(f"{self.parts}/{self.clusters}", cell.methods, partition=cell.partition)

    def setup_of(self, cell: RecurrentCell) -> RecurrentSetup:
        """The model and the lengths."""
        return RecurrentSetup(
            self.hidden, cell.lr, self.dropout, self.solver, cell.tol, self.seed, self.warmup, self.repeat, self.counted
        )

    def facts(self) -> list[tuple[str, str]]:
        model = f"RecGCN, width {self.hidden}, dropout {self.dropout:g}, {self.solver}"
        time_text = f"median of {self.repeat} epochs after {self.warmup}; solver steps of {self.counted} more"
        return [*super().facts(), ("model", model), ("time", time_text)]

    def measure(self, cell: RecurrentCell) -> list[RecurrentRecord]:
        timings = list(time_recurrent(self.graph, self.methods_of(cell), self.setup_of(cell), self.on))
        free(self.on)
        return [RecurrentRecord(**asdict(cell), **asdict(timing)) for timing in timings]

    def describe(self, record: RecurrentRecord) -> str:
        return " | ".join(_line(record))

    def tables(self, records: Sequence[RecurrentRecord]) -> list[TextTable]:
        headers = ["partition, tol, method", "halo/core", "ms / epoch", "time / first", "cold steps", "warm steps"]
        return [TextTable([*headers, "cold / warm", "loss"], [_line(r) for r in records], CAPTION)]


def _line(r: RecurrentRecord) -> list[str]:
    line = [f"{r.partition}, {r.tol:g}, {r.method}", number(r.halo_ratio, 2), number(r.ms, 1), number(r.vs_first, 2)]
    steps = ["-" if s is None else f"{s[0]:.1f} + {s[1]:.1f}" for s in (r.cold, r.warm)]
    return [*line, *steps, number(r.fewer, 2), number(r.loss, 4)]


def time_recurrent(
    graph: Graph, methods: Mapping[str, Method], setup: RecurrentSetup, device: torch.device
) -> Iterator[RecurrentTiming]:
    """Train every method, an epoch each in turn, so that other load on the machine affects all alike."""
    runs: dict[str, tuple[Run, torch.optim.Adam]] = {}
    for label, method in methods.items():
        model = RecGCN(
            graph.num_features, setup.hidden, graph.num_classes, setup.dropout,
            solver=setup.solver, tol=setup.tol, seed=setup.seed,
        )  # fmt: skip
        run = method.bind(graph, model, device=device, seed=setup.seed)
        run.refresh()
        runs[label] = run, adam(model, setup.lr)
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    times: dict[str, list[float]] = {label: [] for label in runs}
    for _ in range(setup.warmup + setup.repeat):
        for label, (run, optimizer) in runs.items():
            wait(device)
            start = clock()
            train_epoch(run, optimizer)
            wait(device)
            times[label].append(1000 * (clock() - start))
    first = None
    for label, (run, optimizer) in runs.items():
        ms = median(times[label][setup.warmup :])
        first = first or ms
        warm, cold, loss = _steps(run, optimizer, setup.counted)
        fewer = sum(cold) / sum(warm) if warm and cold else None
        yield RecurrentTiming(label, ms, ms / first, warm, cold, fewer, halo_ratio(list(run.batches())), loss)


def _steps(run: Run, optimizer: torch.optim.Optimizer, epochs: int) -> tuple[Steps | None, Steps | None, float]:
    """Solver steps from the histories and from zero over ``epochs`` epochs of training, and the last one's loss."""
    run.solves()
    cold: list[tuple[int, int]] = []
    losses: list[float] = []
    for _ in range(epochs):
        losses.clear()
        for batch in run.batches():
            if run.V:
                found = solve_batch(rules_of(run.method), run.method_step(batch, keep=False, dropout=False), warm=False)
                if found.solves is not None:
                    cold.append((found.solves[0].steps, found.solves[1].steps))
            losses.append(float(train_step(run, optimizer, batch)))
    solved = run.solves()
    if solved is None or not cold:
        return None, None, fmean(losses)
    warm = solved["forward_steps"], solved["backward_steps"]
    return warm, (fmean(f for f, _ in cold), fmean(b for _, b in cold)), fmean(losses)
