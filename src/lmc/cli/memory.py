"""``lmc bench memory``."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from lmc.bench.epoch import WHOLE
from lmc.bench.memory import MemoryCell, MemoryRecord, measure_cell
from lmc.cli.console import TextTable, megabytes
from lmc.cli.costs import AutoDataset, CostStudy, SomeConfigs, Tiers
from lmc.cli.lists import division, methods_in, parse_configs
from lmc.cli.spec import parse_method
from lmc.cli.study import GraphStudy, Methods
from lmc.methods import ClusterMethod, HistoryMethod, Method
from lmc.report import Panel, rows_figure

CAPTION = (
    "MB; step: peak of a step on the largest batch, beyond what is kept between steps; between: kept between "
    "steps on the training device; on host, on disk: between steps there; measured (predicted as --dry-run does, "
    "before anything is made); error: of the prediction; total: between + step, measured"
)
HEADERS = (
    "method", "parts/clusters", "tier", "core", "halo", "step (predicted)", "error", "between (predicted)", "error",
    "on host (predicted)", "on disk (predicted)", "total",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Memory(CostStudy[MemoryCell, MemoryRecord], GraphStudy[MemoryCell, MemoryRecord]):
    """Measure the memory of a step and between steps, beside what --dry-run predicts.

    A tier holds the histories and the features.
    """

    name, cell, record, tf32 = "memory", MemoryCell, MemoryRecord, False

    dataset: AutoDataset = "auto"
    methods: Methods = "full,backward-sgd,cluster,gas,lmc,cmc,graphsage"
    configs: SomeConfigs = None
    tiers: Tiers = None

    def cells(self) -> list[MemoryCell]:
        """Every method in every division and on every tier that it has."""
        _ = self.setup  # a wrong shape is refused before a graph is loaded
        configs, tiers = parse_configs(self.configs or "80/40,80/10,80/1"), self.parse_tiers(self.tiers)
        cells = [
            MemoryCell(label, config, tier)
            for label, method in methods_in(configs[0], self.methods).items()
            for config in (configs if isinstance(method, ClusterMethod) else [WHOLE])
            for tier in (tiers if isinstance(method, HistoryMethod) else ["device"])
        ]
        for cell in cells:
            self.method_of(cell)
        return cells

    def method_of(self, cell: MemoryCell) -> Method:
        return parse_method(cell.method, **({} if cell.config == WHOLE else division(cell.config)))

    def measure(self, cell: MemoryCell) -> list[MemoryRecord]:
        return [measure_cell(self.graph, cell, self.method_of(cell), self.setup, self.on)]

    def describe(self, record: MemoryRecord) -> str:
        predicted = record.predicted_step
        text = "no prediction" if predicted is None else f"predicted {megabytes(predicted)}"
        return f"{_name(record)}: a step of {megabytes(record.step)} MB ({text})"

    def tables(self, records: Sequence[MemoryRecord]) -> list[TextTable]:
        return [TextTable(HEADERS, [_row(r) for r in records], CAPTION).without_empty()]

    def figure(self, records: Sequence[MemoryRecord]) -> Figure:
        def panel(title: str, field: str) -> Panel:
            names = (field, f"predicted_{field}")
            found = [[None if (v := getattr(r, k)) is None else v / 1e6 for r in records] for k in names]
            return Panel(title, found[0], found[1], "predicted")

        panels = [panel("peak of a step, MB", "step"), panel("between steps on the device, MB", "lives")]
        title = f"Memory on {self.saved()['graph']}: {self.saved()['device']}"
        return rows_figure([_name(r) for r in records], [r.method for r in records], panels, title)


def _name(r: MemoryRecord) -> str:
    return " ".join([r.method, *([r.config] if r.config != WHOLE else []), *([r.tier] if r.tier != "device" else [])])


def _row(r: MemoryRecord) -> list[str]:
    row = [r.method, r.config, r.tier, f"{r.core:,}", f"{r.halo:,}"]
    row += [_both(r.step, r.predicted_step), _error(r.step_error)]
    row += [_both(r.lives, r.predicted_lives), _error(r.lives_error)]
    row += [_both(r.away.get(tier), (r.predicted_away or {}).get(tier)) for tier in ("host", "disk")]
    return [*row, megabytes(r.peak)]


def _both(measured: int | None, predicted: int | None) -> str:
    return megabytes(measured) + ("" if predicted is None else f" ({megabytes(predicted)})")


def _error(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:+.1f} %"
