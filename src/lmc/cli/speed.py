"""``lmc bench speed``."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import typer
from matplotlib.figure import Figure

from lmc.bench.epoch import MODELS, Setup
from lmc.bench.speed import Line, SpeedCell, SpeedPlan, SpeedRecord, SpeedRow, Stopwatch, speed_rows
from lmc.cli.console import TextTable, milliseconds, number, ratio, seconds, share
from lmc.cli.costs import RIVALS, AutoDataset, SomeConfigs, Tiers, TimedStudy, epochs_text
from lmc.cli.lists import division, first_of, methods_in, parse_configs, parse_list, parse_words
from lmc.cli.spec import parse_method
from lmc.cli.study import GraphStudy, Methods
from lmc.errors import ConfigError
from lmc.methods import METHODS, ClusterMethod, HistoryMethod, Method
from lmc.report import Panel, rows_figure

_RECURRENT = {"lmc": "lmc4rec", "cmc": "cmc4rec"}
"""The method of the same idea for a fixed point."""

TIMES = (
    "ms / epoch: median over epochs of training steps; of a method that sweeps, the medians of epochs with and without "
    "a sweep, weighted by their numbers. The lines of one model and parts/clusters are timed in turn, "
    "one epoch each, and compared with each other only; on a GPU, lines with histories elsewhere follow, one after the "
    "other. time / full: an epoch takes so many times as long as one of "
    "our full batch of the same model; time / pyg-full: as one of torch_geometric.nn.GCN on edge_index; time / lmc: "
    "as one of LMC on the same batches. non-zeros: of all batches over the graph's; time / work: time over "
    "(non-zeros x full-batch time), 1 where time is proportional to the work; of device speed: speed over that of the "
    "same line with histories on the device and fixed batches; partition s, bind s: time of setting up; stored "
    "parts are read"
)


@dataclass(frozen=True, kw_only=True)
class Speed(TimedStudy[SpeedCell, SpeedRecord], GraphStudy[SpeedCell, SpeedRecord]):
    """Time epochs of several models, methods, divisions and tiers in turn."""

    name, cell, record = "speed", SpeedCell, SpeedRecord
    shared = (*TimedStudy.shared, "precision")

    dataset: AutoDataset = "auto"
    models: Annotated[str, typer.Option(help="gcn, gcnii (one layer more) and recgcn (lmc4rec for lmc).")] = (
        "gcn,gcnii,recgcn"
    )
    methods: Methods = RIVALS
    configs: SomeConfigs = None
    tiers: Tiers = None
    tier_methods: Annotated[
        str | None, typer.Option(help="Those of --methods that are timed on every tier.", show_default="lmc")
    ] = None
    tier_configs: Annotated[
        str | None, typer.Option(help="parts/clusters of these.", show_default="80/10, or the first of --configs")
    ] = None
    redraw: Annotated[bool, typer.Option(help="Also time them with clusters redrawn every epoch.")] = False
    precision: Annotated[str, typer.Option(help="float32 or bfloat16: precision of rows.")] = "float32"
    pyg: Annotated[bool, typer.Option(help="Also time PyG's full batch.")] = True

    @cached_property
    def setup(self) -> Setup:
        """The shape of the models, and how often they are timed."""
        return self.setup_with(self.repeat, self.warmup, self.precision)

    @cached_property
    def plan(self) -> SpeedPlan:
        """What is timed, as the options say."""
        models = parse_words(self.models, "--models", MODELS)
        configs = parse_configs(self.configs or ("80/40,80/10,80/1" if self.on.type == "cuda" else "80/40,80/10"))
        labels = {model: labels_for(model, methods_in(configs[0], self.methods)) for model in models}
        varied, tiers = self._varied(models[0], labels[models[0]]), self.parse_tiers(self.tiers)
        varied_in = parse_configs(self.tier_configs or ("80/10" if "80/10" in configs else configs[0]))
        return SpeedPlan(models, labels, configs, self.pyg, tiers, self.redraw, varied, varied_in)

    def _varied(self, model: str, labels: Sequence[str]) -> list[str]:
        """The methods for other tiers and redrawn batches; by default LMC, else the first that keeps histories."""
        keeping = [label for label in labels if isinstance(parse_method(label), HistoryMethod)]
        if self.tier_methods is None:
            return [first_of(keeping, "lmc") or first_of(keeping, "lmc4rec") or keeping[0]] if keeping else []
        varied = []
        for wanted in parse_list(self.tier_methods, "--tier-methods", str):
            found = [label for label in keeping if wanted in (label, label.partition(":")[0])]
            if not found:
                raise ConfigError(
                    f"expected --tier-methods among those timed on {model} that keep histories, "
                    f"{', '.join(keeping) or 'none'} (got {wanted!r})"
                )
            varied += found
        return varied

    def cells(self) -> list[SpeedCell]:
        _ = self.setup  # a wrong shape is refused before a graph is loaded
        groups = self.plan.groups()
        for cell, lines in groups.items():  # a wrong option is refused before a graph is loaded
            for line in lines:
                if not line.is_baseline:
                    self.method_of(cell, line)
        return list(groups)

    def method_of(self, cell: SpeedCell, line: Line) -> Method:
        return parse_method(line.method, **division(cell.config), redraw=line.redraw or None)

    def facts(self) -> list[tuple[str, str]]:
        models = f"{', '.join(self.plan.models)}; layers of {self.hidden}, dropout {self.dropout:g}"
        loaded = ("loaded in", seconds(self.loaded[1]))
        return [*GraphStudy.facts(self), loaded, ("models", models), ("time", epochs_text(self.setup))]

    def measure(self, cell: SpeedCell) -> list[SpeedRecord]:
        watch = Stopwatch(self.graph, self.setup, self.on, self.method_of)
        return watch.time_in_turn(cell, self.plan.groups()[cell])

    def describe(self, record: SpeedRecord) -> str:
        return f"{record.model} {record.config}, {record.line}: {milliseconds(record.ms)} ms"

    def tables(self, records: Sequence[SpeedRecord]) -> list[TextTable]:
        return [times_table(speed_rows(records))]

    def figure(self, records: Sequence[SpeedRecord]) -> Figure:
        rows, saved = speed_rows(records), self.saved()
        panel = Panel("milliseconds per epoch", [row.record.ms for row in rows], log=True)
        named = len({row.record.model for row in rows}) > 1
        names = [f"{row.record.model} " * named + f"{row.record.config}, {row.record.line}" for row in rows]
        title = f"One training epoch on {saved['graph']}: {saved['device']}"
        return rows_figure(names, [row.record.method for row in rows], [panel], title)


def labels_for(model: str, methods: dict[str, Method]) -> list[str]:
    """The specs of the methods that train a model: lmc4rec for lmc where it is a fixed point."""
    found, kind = [], "recurrent" if model == "recgcn" else "layered"
    for label, method in methods.items():
        name = label.partition(":")[0]
        replaced = _RECURRENT.get(name, name) if model == "recgcn" else name
        if kind not in METHODS[replaced].traits.trains:
            continue
        if not isinstance(method, ClusterMethod):
            raise ConfigError(f"expected methods whose batches are parts of the graph (got {label}): drop it")
        found.append(label if replaced == name else replaced)
    if not found:
        raise ConfigError(f"expected a method that trains {model} (got {', '.join(methods)}): add one")
    return found


def times_table(rows: Sequence[SpeedRow]) -> TextTable:
    """The table of all lines, without columns that have no value."""
    headers = ["model", "method", "parts/clusters", "histories", "batches", "steps", "ms / epoch", "time / pyg-full"]
    headers += ["time / full", "non-zeros", "time / work", "time / lmc", "of device speed", "step MB", "resident MB"]
    headers += ["halo/core", "partition s", "bind s"]
    cells = []
    for row in rows:
        r = row.record
        kind = ["-", "-"] if r.line.is_baseline else [r.tier, "redrawn" if r.redraw else "fixed"]
        line = [r.model, r.method, r.config, *kind, str(r.steps), milliseconds(r.ms)]
        line += [ratio(row.vs_pyg), ratio(row.vs_full), share(r.nnz_share), ratio(row.vs_work), ratio(row.vs_lmc)]
        line += [share(row.of_device), number(r.step_mb, 1), number(r.resident_mb, 1), number(r.halo_ratio, 2)]
        cells.append([*line, number(r.partition_s, 2), number(r.bind_s, 2)])
    return TextTable(headers, cells, TIMES, named=2).without_empty()
