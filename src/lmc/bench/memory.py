"""Bytes that runs hold between steps and that a step takes: predicted, then measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from lmc.bench.epoch import WHOLE, Setup, allocated_bytes, build, free
from lmc.diagnostics import divide, peak_bytes, plan
from lmc.diagnostics.plan import has_plan
from lmc.engine import Run
from lmc.graph import Graph, live_tensors
from lmc.methods import ClusterMethod, FullBatch, Method
from lmc.stores import Placement
from lmc.train import adam, train_step

SEEN = 4
"""Number of batches, of a method that draws new ones, of which the largest is measured."""
TIERS = ("device", "host", "disk")


@dataclass(frozen=True)
class MemoryCell:
    """One line: the spec of a method, parts/clusters or WHOLE, and the tier of its histories and features."""

    method: str
    config: str = WHOLE
    tier: str = "device"


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Measured bytes of a run."""

    steps: int  # in an epoch
    core: int  # rows of the largest batch
    halo: int
    step: int  # peak of a step on it, beyond what lives between steps; drawing the batch is not part of it
    lives: int  # between steps, on the training device (which on a CPU is the host)
    away: Mapping[str, int]  # on every other tier

    @property
    def peak(self) -> int:
        """Bytes on the training device at the peak of a step."""
        return self.lives + self.step


@dataclass(frozen=True, kw_only=True)
class MemoryRecord(Footprint, MemoryCell):
    """Measured and predicted bytes; predictions are None where there is no plan. Errors: predicted / measured - 1."""

    predicted_step: int | None = None
    predicted_lives: int | None = None
    predicted_away: Mapping[str, int] | None = None

    @property
    def step_error(self) -> float | None:
        """The relative error of the predicted step."""
        return self.predicted_step / self.step - 1 if self.predicted_step is not None and self.step else None

    @property
    def lives_error(self) -> float | None:
        """The relative error of what was predicted to be kept between steps."""
        return self.predicted_lives / self.lives - 1 if self.predicted_lives is not None and self.lives else None


def measure_cell(graph: Graph, cell: MemoryCell, method: Method, setup: Setup, device: torch.device) -> MemoryRecord:
    """Plan, then train an epoch and measure; a method without a plan is measured only."""
    placement = Placement(device, cell.tier, cell.tier)
    planned = _plan(graph, method, setup, placement)
    free(device)
    before = allocated_bytes(device)
    run = method.bind(graph, build("gcn", graph, setup), placement=placement, seed=setup.seed)
    measured = footprint(run, setup.lr, before)
    del run
    free(device)
    return MemoryRecord(**asdict(cell), **asdict(measured), **planned)


def _plan(graph: Graph, method: Method, setup: Setup, placement: Placement) -> dict[str, Any]:
    """The predictions of a record."""
    if not has_plan(method):
        return {}
    found = plan(divide(graph, method, setup.seed), build("gcn", graph, setup), method, placement)
    here = ("device", "host") if found.on_host else ("device",)
    away = {tier: found.tier(tier) for tier in TIERS if tier not in here and found.tier(tier)}
    lives = found.device - found.step
    return {"predicted_step": found.step, "predicted_lives": lives, "predicted_away": away}


def footprint(run: Run, lr: float, before: int | None = None) -> Footprint:
    """Train an epoch, then measure a step on the largest batch; ``before``: bytes on a GPU before the run was bound."""
    device = run.problem.device
    run.pipeline.recorder = None  # the memory of a recording is not the peak of a step
    optimizer = adam(run.problem.model, lr)
    keeps = run.source.kept and isinstance(run.method, ClusterMethod | FullBatch)
    drawn = run.batches()
    batches = list(drawn) if keeps else list(islice(drawn, SEEN))
    for batch in batches:  # whatever is made once and kept is made now
        train_step(run, optimizer, batch)
    optimizer.zero_grad(set_to_none=True)
    largest = max(batches, key=lambda b: b.num_core + b.num_halo)
    core, halo = largest.num_core, largest.num_halo
    step = peak_bytes(lambda: run.accumulate(largest), device)
    optimizer.zero_grad(set_to_none=True)
    del batches, batch, drawn
    if not keeps:
        del largest
    now = allocated_bytes(device)  # before a table is read, which would complete pending writes
    here, away = holds(run, optimizer)
    if now is not None and before is not None:
        here = now - before
    return Footprint(steps=run.num_batches, core=core, halo=halo, step=step, lives=here, away=away)


def holds(run: Run, optimizer: torch.optim.Optimizer) -> tuple[int, dict[str, int]]:
    """Bytes that a run and its optimiser hold: on the device (on a CPU including the host), and on each other tier.

    All tensors that can be reached from them are found, and every piece of memory counts once.
    """
    device = run.problem.device
    sizes: dict[int, tuple[str, int]] = {}
    found = [(t, "device" if t.device.type == device.type else "host") for t in live_tensors([run, optimizer])]
    for tensor, tier in [*_tables(run), *found]:
        storage = tensor.untyped_storage()
        sizes.setdefault(storage.data_ptr(), (tier, storage.nbytes()))
    held = {tier: sum(size for t, size in sizes.values() if t == tier) for tier in TIERS}
    here = held.pop("device") + (held.pop("host") if device.type == "cpu" else 0)
    return here, {tier: size for tier, size in held.items() if size}


def _tables(run: Run) -> list[tuple[Tensor, str]]:
    """The histories and the features with their tiers."""
    problem = run.problem
    stored = [] if problem.stored is None else [problem.stored]
    tables = [(table.data(), table.tier) for table in (*run.named_tables().values(), *stored)]
    if isinstance(problem.graph.x, Tensor):  # the features as given, beside P X
        on_device = problem.graph.x.device.type == problem.device.type
        tables.append((problem.graph.x, "disk" if problem.features == "disk" else "device" if on_device else "host"))
    return tables
