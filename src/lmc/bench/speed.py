"""Epoch times over models, methods, divisions, tiers and redrawn batches, and the bytes they move, each beside its
baselines of the same sitting."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from lmc.bench import traffic
from lmc.bench.epoch import FULL, PYG, Setup, ready, time_pyg, time_run, train_epoch
from lmc.bench.measure import allocated_bytes
from lmc.bench.testbed import free
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.methods import FullBatch, Method, Run
from lmc.models import GCN, GCNII, Model, RecGCN

COPY = "copy"
WHOLE = "-"
"""The division of what is not divided."""
MODELS = ("gcn", "gcnii", "recgcn")


@dataclass(frozen=True)
class SpeedCell:
    """One line.

    Args:
        model: of MODELS; WHOLE for the copy.
        method: the label of a method, FULL, PYG or COPY.
        config: parts/clusters, or WHOLE.
        tier: of the histories.
        redraw: new batches every epoch.
        sitting: the process that measures it, counted in its folder from 1. Speeds of two of them do not compare.
    """

    model: str
    method: str
    config: str = WHOLE
    tier: str = "device"
    redraw: bool = False
    sitting: int = 1


@dataclass(frozen=True, kw_only=True)
class SpeedRecord(SpeedCell):
    """What was measured.

    Args:
        steps: in an epoch.
        ms: of an epoch (of one copy).
        moved: bytes an epoch has to move (:mod:`lmc.bench.traffic`); None where they are not counted.
        step_mb, resident_mb, nnz_share, halo_ratio: as in :class:`lmc.bench.EpochTiming`.
        product_ms: one sparse product with the matrix of a batch, at the hidden width, at its fastest; the mean over
            batches.
        product_moved, product_gathered: its bytes, every row counted once, and once for each entry.
        dense_ms: one linear map of as many rows, from the hidden width to itself.
        iterations: of both solves, all steps of an epoch together; None for models with layers.
        iteration_ms: one iteration of the forward solver; the mean over batches.
    """

    steps: int
    ms: float
    moved: float | None = None
    step_mb: float | None = None
    resident_mb: float | None = None
    nnz_share: float | None = None
    halo_ratio: float | None = None
    product_ms: float | None = None
    product_moved: float | None = None
    product_gathered: float | None = None
    dense_ms: float | None = None
    iterations: float | None = None
    iteration_ms: float | None = None

    @property
    def rate(self) -> float | None:
        """Bytes a second."""
        return None if self.moved is None else self.moved / self.ms * 1e3

    @property
    def product_rate(self) -> float | None:
        """Bytes a second of the sparse product."""
        return self.product_moved / self.product_ms * 1e3 if self.product_moved and self.product_ms else None


@dataclass(frozen=True)
class Course:
    """What is timed.

    Args:
        models: of MODELS.
        labels: the methods of every model.
        configs: the divisions they are timed in.
        pyg: PyG's full batch beside the GCN.
        varied: the methods of the first model that are timed on ``tiers`` and, where ``redraw``, redrawn, in
            ``varied_in``.
    """

    models: Sequence[str]
    labels: Mapping[str, Sequence[str]]
    configs: Sequence[str]
    pyg: bool = True
    tiers: Sequence[str] = ()
    redraw: bool = False
    varied: Sequence[str] = ()
    varied_in: Sequence[str] = ()

    def cells(self) -> list[SpeedCell]:
        """All of it."""
        cells: list[SpeedCell] = []
        for model in self.models:
            cells.append(SpeedCell(model, FULL))
            cells += [SpeedCell(model, label, config) for config in self.configs for label in self.labels[model]]
            if model == self.models[0]:
                cells += self._variations(model)
        return self._with_baselines(cells)

    def _variations(self, model: str) -> Iterator[SpeedCell]:
        for label in self.varied:
            for config in self.varied_in:
                base = SpeedCell(model, label, config)
                yield from (dataclasses.replace(base, tier=tier) for tier in self.tiers if tier != base.tier)
                if self.redraw:
                    yield dataclasses.replace(base, redraw=True)

    def continued(self, done: Iterable[SpeedRecord]) -> list[SpeedCell]:
        """What is done, and the rest as a further sitting: its baselines are measured anew in it."""
        known = {dataclasses.replace(_cell(r), sitting=1): r.sitting for r in done}
        sitting = max(known.values(), default=0) + 1
        cells = self.cells()
        left = self._with_baselines([cell for cell in cells if cell not in known])
        mine = [dataclasses.replace(cell, sitting=sitting) for cell in left]
        return [dataclasses.replace(cell, sitting=known[cell]) for cell in cells if cell in known] + mine

    def _with_baselines(self, cells: Sequence[SpeedCell]) -> list[SpeedCell]:
        """Every line after what it is measured against."""
        found: dict[SpeedCell, None] = {}

        def add(cell: SpeedCell) -> None:
            for base in self.baselines(cell):
                if base not in found:
                    add(base)
            found[cell] = None

        for cell in cells:
            add(cell)
        return list(found)

    def baselines(self, cell: SpeedCell) -> list[SpeedCell]:
        """What a line is measured against."""
        if cell.method == COPY:
            return []
        bases = [SpeedCell(WHOLE, COPY)]
        if cell.method != PYG and cell.model == "gcn" and self.pyg:
            bases.append(SpeedCell("gcn", PYG))
        if cell.method not in (PYG, FULL):
            bases.append(SpeedCell(cell.model, FULL))
        if cell.tier != "device" or cell.redraw:
            bases.append(dataclasses.replace(cell, tier="device", redraw=False))
        rival = rival_of(cell.method, self.labels[cell.model])
        if rival is not None and cell.config != WHOLE:
            bases.append(dataclasses.replace(cell, method=rival))
        return bases


def rival_of(label: str, labels: Iterable[str]) -> str | None:
    """The LMC that a CMC is measured against."""
    wanted = {"cmc": "lmc", "cmc4rec": "lmc4rec"}.get(label.partition(":")[0])
    return next((other for other in labels if other.partition(":")[0] == wanted), None) if wanted else None


def build(model: str, graph: Graph, setup: Setup) -> Model:
    """The model of a line: GCN as set up; GCNII with one layer more; RecGCN without dropout, which would solve for
    histories in a part of the steps only."""
    d, c = graph.num_features, graph.num_classes
    if model == "recgcn":
        return RecGCN(d, setup.hidden, c, seed=setup.seed)
    cls, layers = (GCN, setup.layers) if model == "gcn" else (GCNII, setup.layers + 1)
    return cls(d, setup.hidden, c, num_layers=layers, dropout=setup.dropout, norm=setup.norm, seed=setup.seed)


Built = Callable[[SpeedCell], Method]


def time_cell(graph: Graph, cell: SpeedCell, setup: Setup, device: torch.device, method_of: Built) -> SpeedRecord:
    """Set up, measure, and free; ``method_of`` gives the method of a line. Fixed points take long, and are timed a
    quarter as often."""
    base = asdict(cell)
    if cell.model == "recgcn":
        setup = dataclasses.replace(setup, repeat=max(1, setup.repeat // 4))
    if cell.method == COPY:
        ms, moved = traffic.copy_ms(device)
        record = SpeedRecord(**base, steps=1, ms=ms, moved=moved)
    elif cell.method == PYG:
        timing = time_pyg(graph, setup, device)
        record = SpeedRecord(**base, steps=1, ms=timing.ms, step_mb=timing.step_mb, resident_mb=timing.resident_mb)
    else:
        record = _time_method(graph, cell, setup, device, FullBatch() if cell.method == FULL else method_of(cell))
    free(device)
    return record


def _time_method(graph: Graph, cell: SpeedCell, setup: Setup, device: torch.device, method: Method) -> SpeedRecord:
    before = allocated_bytes(device)
    run, optimizer = ready(
        method, graph, dataclasses.replace(setup, history=cell.tier), device, build(cell.model, graph, setup)
    )
    timing = time_run(cell.method, run, optimizer, setup, before)
    iterations = _iterations(run, optimizer)
    batches = list(run.batches(0))
    each = iterations / len(batches) if iterations else 0
    found: dict[str, Any] = {}
    matrices = traffic.matrices_of(run, batches)
    if matrices:
        item, width = run.problem.dtype.itemsize, setup.hidden
        found = {
            "product_ms": traffic.product_ms(matrices, width),
            "product_moved": sum(traffic.product_bytes(A, width, item) for A in matrices) / len(matrices),
            "product_gathered": sum(traffic.product_bytes(A, width, item, True) for A in matrices) / len(matrices),
            "dense_ms": traffic.dense_ms(matrices, width),
        }
    if iterations:
        found["iteration_ms"] = traffic.iteration_ms(run, matrices)
    return SpeedRecord(
        **asdict(cell),
        steps=timing.steps,
        ms=timing.ms,
        moved=sum(traffic.step_bytes(run, batch, each) for batch in batches),
        step_mb=timing.step_mb,
        resident_mb=timing.resident_mb,
        nnz_share=timing.nnz_share,
        halo_ratio=timing.halo_ratio,
        iterations=iterations,
        **found,
    )


def _iterations(run: Run, optimizer: torch.optim.Optimizer) -> float | None:
    """Of both solves in one epoch; None where nothing is solved."""
    run.solves()
    if not run.problem.model.recurrent:
        return None
    train_epoch(run, optimizer)
    counts = run.solves()
    return None if counts is None else run.num_batches * (counts["forward_steps"] + counts["backward_steps"])


@dataclass(frozen=True)
class SpeedRow:
    """A line and its ratios to the baselines of its sitting; None where there is none.

    Args:
        vs_pyg, vs_full, vs_rival: time over that of PyG's and of our full batch, of LMC on the same batches.
        vs_work: time over (share of non-zeros x full-batch time).
        of_device: speed over that of the device tier with fixed batches.
        of_copy, product_of_copy: bytes a second over those of a copy, of the epoch and of the sparse product.
        vs_bound: time of a solver iteration over one sparse product plus one dense one.
    """

    record: SpeedRecord
    vs_pyg: float | None
    vs_full: float | None
    vs_work: float | None
    vs_rival: float | None
    of_device: float | None
    of_copy: float | None
    product_of_copy: float | None
    vs_bound: float | None


def speed_rows(records: Sequence[SpeedRecord]) -> list[SpeedRow]:
    """One row a line, the copy apart, in the order of the lines."""
    known = {_cell(r): r for r in records}
    labels = [r.method for r in records]

    def at(cell: SpeedCell, **changes: object) -> SpeedRecord | None:
        return known.get(dataclasses.replace(cell, **changes))  # type: ignore[arg-type]

    rows = []
    for r in records:
        if r.method == COPY:
            continue
        cell = _cell(r)
        whole = SpeedCell(r.model, FULL, sitting=r.sitting)
        full, pyg, copy = known.get(whole), at(whole, method=PYG), at(whole, model=WHOLE, method=COPY)
        device = at(cell, tier="device", redraw=False) if r.tier != "device" or r.redraw else None
        rival = at(cell, method=rival_of(r.method, labels) or "") if r.config != WHOLE else None
        bound = (r.product_ms or 0) + (r.dense_ms or 0)
        rate = copy.rate if copy else None
        rows.append(
            SpeedRow(
                record=r,
                vs_pyg=_over(r.ms, _ms(pyg)),
                vs_full=_over(r.ms, _ms(full)) if r.method != PYG else None,
                vs_work=_over(r.ms, (r.nnz_share or 0) * (_ms(full) or 0)) if not r.iterations else None,
                vs_rival=_over(r.ms, _ms(rival)),
                of_device=_over(_ms(device), r.ms),
                of_copy=_over(r.rate, rate),
                product_of_copy=_over(r.product_rate, rate),
                vs_bound=_over(r.iteration_ms, bound),
            )
        )
    return rows


def check_models(names: Sequence[str]) -> None:
    """Models that can be timed."""
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise ConfigError(f"expected models of {', '.join(MODELS)} (got {', '.join(unknown)})")


def _cell(record: SpeedRecord) -> SpeedCell:
    return SpeedCell(**{f.name: getattr(record, f.name) for f in dataclasses.fields(SpeedCell)})


def _ms(record: SpeedRecord | None) -> float | None:
    return None if record is None else record.ms


def _over(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None
