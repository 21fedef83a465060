"""Epoch times over models, methods, divisions, tiers and redrawn batches.

The lines of a group are set up and warmed up together and then timed in turn, one epoch each, so that other load on the
machine affects a line and its baselines alike. Ratios compare lines of one group only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch

from lmc.bench.epoch import FULL, Setup, Timed, free, timed_pyg, timed_run
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.methods import FullBatch, Method

PYG = "pyg-full"


@dataclass(frozen=True)
class Line:
    """What is timed: the spec of a method, FULL or PYG; the tier of histories; whether batches are redrawn."""

    method: str
    tier: str = "device"
    redraw: bool = False

    @property
    def is_baseline(self) -> bool:
        """Whether the line is timed for others to be compared with."""
        return self.method in (PYG, FULL)

    def __str__(self) -> str:
        away = [self.tier] if self.tier != "device" else []
        return " ".join([self.method, *away, *(["redrawn"] if self.redraw else [])])


@dataclass(frozen=True)
class SpeedCell:
    """A group of lines that are timed in turn: a model of MODELS, parts/clusters, and the names of the lines."""

    model: str
    config: str
    lines: str


@dataclass(frozen=True, kw_only=True)
class SpeedRecord(Line, SpeedCell):
    """The measurements of one line; :class:`lmc.bench.epoch.Timed` explains those that it has too.

    Args:
        ms: time of an epoch.
        partition_s, bind_s: seconds of partitioning, from the cache where the parts are there, and of binding.
    """

    steps: int
    ms: float
    step_mb: float | None = None
    resident_mb: float | None = None
    nnz_share: float | None = None
    halo_ratio: float | None = None
    partition_s: float | None = None
    bind_s: float | None = None

    @property
    def line(self) -> Line:
        """The line that was timed."""
        return Line(self.method, self.tier, self.redraw)


@dataclass(frozen=True)
class SpeedPlan:
    """What is timed.

    The methods ``labels`` of every model are timed in the parts/clusters ``configs``, and with ``pyg`` PyG's full batch
    beside the GCN. The methods ``varied`` of the first model are also timed on ``tiers`` and, with ``redraw``, with
    redrawn batches, in the parts/clusters ``varied_in``.
    """

    models: Sequence[str]
    labels: Mapping[str, Sequence[str]]
    configs: Sequence[str]
    pyg: bool = True
    tiers: Sequence[str] = ()
    redraw: bool = False
    varied: Sequence[str] = ()
    varied_in: Sequence[str] = ()

    def groups(self) -> dict[SpeedCell, list[Line]]:
        """The lines of every group: one model in one division, with its baselines."""
        groups = {}
        for model in self.models:
            varied_in = self.varied_in if model == self.models[0] and self.varied else ()
            for config in dict.fromkeys([*self.configs, *varied_in]):
                lines = [Line(label) for label in self.labels[model] if config in self.configs]
                lines += self._variations() if config in varied_in else []
                lines = self.with_baselines(model, lines)
                groups[SpeedCell(model, config, ", ".join(map(str, lines)))] = lines
        return groups

    def _variations(self) -> list[Line]:
        """The varied methods on other tiers and with redrawn batches."""
        kinds = [(tier, False) for tier in self.tiers if tier != "device"] + [("device", True)] * self.redraw
        return [Line(label, *kind) for label in self.varied for kind in kinds]

    def with_baselines(self, model: str, lines: Iterable[Line]) -> list[Line]:
        """Every line after the lines that it is compared with."""
        found: dict[Line, None] = {}
        for line in lines:
            found |= dict.fromkeys([*self.with_baselines(model, self.baselines(model, line)), line])
        return list(found)

    def baselines(self, model: str, line: Line) -> list[Line]:
        """The lines that a line is compared with."""
        bases = []
        if line.method != PYG and model == "gcn" and self.pyg:
            bases.append(Line(PYG))
        if not line.is_baseline:
            bases.append(Line(FULL))
        if line.tier != "device" or line.redraw:
            bases.append(Line(line.method))
        baseline = baseline_of(line.method, self.labels[model])
        if baseline is not None:
            bases.append(dataclasses.replace(line, method=baseline))
        return bases


def transfers_rows(line: Line, device: torch.device) -> bool:
    """Whether the steps of a line transfer rows in the background."""
    return device.type == "cuda" and line.tier != "device"


def baseline_of(label: str, labels: Iterable[str]) -> str | None:
    """The LMC with which a CMC is compared."""
    wanted = {"cmc": "lmc", "cmc4rec": "lmc4rec"}.get(label.partition(":")[0])
    return next((other for other in labels if other.partition(":")[0] == wanted), None) if wanted else None


@dataclass(frozen=True)
class Stopwatch:
    """Times the lines of a group in turn."""

    graph: Graph
    setup: Setup
    device: torch.device
    method_of: Callable[[SpeedCell, Line], Method]

    def time_in_turn(self, cell: SpeedCell, lines: Sequence[Line]) -> list[SpeedRecord]:
        """Set the lines up, then time one epoch of each, ``repeat`` times. Fixed points take long: they are timed a
        quarter as often.

        A line that transfers rows in the background is timed afterwards, alone: it fetches rows of the next epoch in
        the present one, its transfers would slow the epochs of others down, and the speed of its files depends on the
        memory that is left for them.
        """
        repeat = max(1, self.setup.repeat // 4) if cell.model == "recgcn" else self.setup.repeat
        background = [line for line in lines if transfers_rows(line, self.device)]
        try:
            timed = {line: self._set_up(cell, line) for line in lines if line not in background}
            for _ in range(repeat):
                for line in timed:
                    timed[line].time_epoch()
            records = {line: self._record(cell, line, each) for line, each in timed.items()}
            timed.clear()
            for line in background:
                free(self.device)
                records[line] = self._timed_alone(cell, line, repeat)
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"expected memory for the {len(lines)} lines of {cell.model} {cell.config} together (got too little): "
                "time fewer --methods or --tiers at once, or a smaller --scale"
            ) from error
        free(self.device)
        return [records[line] for line in lines]

    def _timed_alone(self, cell: SpeedCell, line: Line, repeat: int) -> SpeedRecord:
        timed = self._set_up(cell, line)
        for _ in range(repeat):
            timed.time_epoch()
        return self._record(cell, line, timed)

    def _set_up(self, cell: SpeedCell, line: Line) -> Timed:
        if line.method == PYG:
            return timed_pyg(self.graph, self.setup, self.device)
        method = FullBatch() if line.method == FULL else self.method_of(cell, line)
        return timed_run(method, self.graph, self.setup, self.device, cell.model, line.tier)

    def _record(self, cell: SpeedCell, line: Line, timed: Timed) -> SpeedRecord:
        resident = None if timed.resident_bytes is None else timed.resident_bytes / 1e6
        spent = {} if timed.run is None else timed.run.setup_seconds
        return SpeedRecord(
            **asdict(cell), **asdict(line), steps=timed.steps, ms=timed.ms, step_mb=timed.step_bytes / 1e6,
            resident_mb=resident, nnz_share=timed.nnz_share, halo_ratio=timed.halo_ratio,
            partition_s=spent.get("partition"), bind_s=spent.get("bind"),
        )  # fmt: skip


@dataclass(frozen=True)
class SpeedRow:
    """A line and its ratios to the lines of its group; None where there is no such line."""

    record: SpeedRecord
    vs_pyg: float | None  # time over that of PyG's full batch
    vs_full: float | None  # time over that of our full batch
    vs_work: float | None  # time over (share of non-zeros x full-batch time)
    vs_lmc: float | None  # time over that of LMC on the same batches
    of_device: float | None  # speed over that of the device tier with fixed batches


def speed_rows(records: Sequence[SpeedRecord]) -> list[SpeedRow]:
    """One row for each line, in their order."""
    groups: dict[tuple[str, str, str], dict[Line, SpeedRecord]] = {}
    for r in records:
        groups.setdefault((r.model, r.config, r.lines), {})[r.line] = r
    return [_row(r, group) for group in groups.values() for r in group.values()]


def _row(r: SpeedRecord, group: Mapping[Line, SpeedRecord]) -> SpeedRow:
    line, ms = r.line, {other: record.ms for other, record in group.items()}
    baseline = dataclasses.replace(line, method=baseline_of(line.method, [other.method for other in group]) or "")
    full = ms.get(Line(FULL))
    varied = line.tier != "device" or line.redraw
    return SpeedRow(
        record=r,
        vs_pyg=_over(r.ms, ms.get(Line(PYG))),
        vs_full=_over(r.ms, full) if line.method != PYG else None,
        vs_work=_over(r.ms, (r.nnz_share or 0) * (full or 0)) if r.model != "recgcn" else None,
        vs_lmc=_over(r.ms, ms.get(baseline)),
        of_device=_over(ms.get(Line(line.method)), r.ms) if varied else None,
    )


def _over(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None
