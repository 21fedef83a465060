"""Epochs of recurrent models: their time, and the solver steps that starting from the histories saves."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean, median

import torch

from lmc.bench.measure import wait
from lmc.engine.recurrent import local
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.methods import Method, Run
from lmc.models import RecGCN
from lmc.train.optimiser import adam


@dataclass(frozen=True)
class RecurrentSetup:
    """What is timed: a RecGCN of this shape, in training. After ``warmup`` epochs ``repeat`` are timed; then the solver
    steps of ``counted`` more are counted."""

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
    """One line of the benchmark; steps are those of a forward and of a backward solve, in the mean over batches.

    Args:
        ms: milliseconds of an epoch; on a CPU those of this process, whatever else runs.
        vs_first: ms over that of the first method.
        warm, cold: steps from the histories, and from zero at the same parameters; None where nothing is solved for.
        fewer: all cold steps over all warm ones.
        halo_ratio: halo rows over core rows, in the mean.
        loss: of the last epoch.
    """

    method: str
    ms: float
    vs_first: float
    warm: tuple[float, float] | None
    cold: tuple[float, float] | None
    fewer: float | None
    halo_ratio: float
    loss: float


def time_recurrent(
    graph: Graph, methods: Mapping[str, Method], setup: RecurrentSetup, device: torch.device
) -> Iterator[RecurrentTiming]:
    """Train every method, an epoch each in turn, so that what disturbs the machine disturbs all; a line for each."""
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
            _epoch(run, optimizer)
            wait(device)
            times[label].append(1000 * (clock() - start))
    first = None
    for label, (run, optimizer) in runs.items():
        ms = median(times[label][setup.warmup :])
        first = first or ms
        warm, cold, loss = _steps(run, optimizer, setup.counted)
        batches = list(run.batches())
        yield RecurrentTiming(
            method=label,
            ms=ms,
            vs_first=ms / first,
            warm=warm,
            cold=cold,
            fewer=sum(cold) / sum(warm) if warm and cold else None,
            halo_ratio=sum(b.num_halo for b in batches) / sum(b.num_core for b in batches),
            loss=loss,
        )


def _epoch(run: Run, optimizer: torch.optim.Optimizer) -> None:
    for batch in run.batches():
        optimizer.zero_grad(set_to_none=True)
        run.accumulate(batch)
        optimizer.step()
        run.problem.model.project()


Steps = tuple[float, float]


def _steps(run: Run, optimizer: torch.optim.Optimizer, epochs: int) -> tuple[Steps | None, Steps | None, float]:
    """Solver steps from the histories and from zero over ``epochs`` epochs of training, and the last one's loss."""
    run.solves()
    cold: list[tuple[int, int]] = []
    losses: list[float] = []
    for _ in range(epochs):
        losses.clear()
        for batch in run.batches():
            found = local(run, batch, dropout=False, warm=False) if run.V else None
            if found is not None and found.solves is not None:
                cold.append((found.solves[0].steps, found.solves[1].steps))
            optimizer.zero_grad(set_to_none=True)
            losses.append(float(run.accumulate(batch).loss))
            optimizer.step()
            run.problem.model.project()
    solved = run.solves()
    if solved is None or not cold:
        return None, None, fmean(losses)
    warm = solved["forward_steps"], solved["backward_steps"]
    return warm, (fmean(f for f, _ in cold), fmean(b for _, b in cold)), fmean(losses)
