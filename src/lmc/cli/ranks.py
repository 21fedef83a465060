"""``lmc bench scale --ranks``: epochs of several ranks, measured on this machine, and modelled beyond."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from matplotlib.figure import Figure

from lmc.bench.rank_model import Network
from lmc.bench.ranks import HERE, MEASURED, MODELLED, RankCell, RankRecord, measure_ranks, model_ranks, one_thread
from lmc.cli.console import TextTable, megabytes, number, ratio, share
from lmc.cli.costs import TimedStudy, epochs_text
from lmc.cli.lists import at_least_one, methods_in, parse_list, positive
from lmc.cli.plan import parse_memory
from lmc.cli.spec import parse_methods
from lmc.cli.study import GraphStudy
from lmc.engine.distributed import launched
from lmc.errors import ConfigError
from lmc.methods import ClusterMethod
from lmc.report import Growth, scale_figure
from lmc.stores import check_device

CAPTION = (
    "measured: ranks of this machine with one thread each, connected by gloo, and one process in turn with them; "
    "modelled: the batches of so many ranks timed alone in one process (on a CPU its processor time), and the rows "
    "that they would exchange, counted. s / epoch = compute + wait (for the slowest rank) + transfer, mean over ranks; "
    "sweeps are contained. faster: one process, measured or modelled, takes so many times as long; efficiency: that "
    "over ranks. MB: rows that a rank sends in an epoch, from the lists and as sent. mirrors: over owned rows"
)
HEADERS = (
    "method", "ranks", "how", "network", "steps", "s / epoch", "compute", "wait", "transfer", "faster", "efficiency",
    "bound by", "MB counted", "MB sent", "mirrors",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RankScale(TimedStudy[RankCell, RankRecord], GraphStudy[RankCell, RankRecord]):
    """Measure the epochs of ranks on this machine, and model those of more ranks."""

    name, cell, record = "ranks", RankCell, RankRecord
    shared = (*TimedStudy.shared, "parts", "clusters", "partition")

    ranks: str
    modelled: str
    bandwidth: str
    latency: float
    methods: str
    parts: int
    clusters: int
    partition: str

    @cached_property
    def on(self) -> torch.device:
        """The device of the steps: by default a CPU, since ranks of one machine are measured there."""
        return torch.device("cpu") if self.device == "auto" else check_device(self.device)

    @cached_property
    def network(self) -> Network:
        """That of modelled ranks."""
        return Network(parse_memory(self.bandwidth), positive(str(self.latency), "--latency") * 1e-6)

    @cached_property
    def by_label(self) -> dict[str, ClusterMethod]:
        """The methods; those that exchange rows after every step can be counted."""
        every = parse_methods(self.methods)
        wrong = [k for k, m in every.items() if not isinstance(m, ClusterMethod) or "step" not in m.traits.sync]
        if wrong:
            raise ConfigError(f'expected methods of parts that have sync="step" (got {", ".join(wrong)}): drop them')
        parts, clusters = at_least_one("--parts", self.parts), at_least_one("--clusters", self.clusters)
        found = methods_in(f"{parts}/{clusters}", self.methods, partition=self.partition)
        return {label: method for label, method in found.items() if isinstance(method, ClusterMethod)}

    def cells(self) -> list[RankCell]:
        """Measured ranks first; one process is measured with them, or alone where there are no others."""
        if launched():
            raise ConfigError("expected one process (got torchrun): lmc bench scale --ranks starts its ranks itself")
        ranks = parse_list(self.ranks, "--ranks", partial(at_least_one, "--ranks"))
        modelled = parse_list(self.modelled, "--modelled", partial(at_least_one, "--modelled"))
        cores = (os.cpu_count() or 1) if self.on.type == "cpu" else 1
        here = sorted(w for w in ranks if 1 < w <= cores)
        beyond = sorted({w for w in (*ranks, *modelled) if w > 1} - set(here))
        most = max([1, *here, *beyond])
        if self.parts < most:
            raise ConfigError(
                f"expected at least one part for each of {most} ranks (got {self.parts}): raise --parts, or lower "
                "--ranks and --modelled"
            )
        given = f"{self.network.bandwidth / 1e9:g} GB/s, {self.network.latency * 1e6:g} us"
        methods = ",".join(self.by_label)
        return [
            *(RankCell(w, MEASURED, HERE, methods) for w in here or [1]),
            *(RankCell(w, MODELLED, HERE, methods) for w in [1, *here] if here or beyond),
            *(RankCell(w, MODELLED, given, methods) for w in beyond),
        ]

    def subject(self) -> str:
        return f"{self.source}-{self.on.type}"

    def facts(self) -> list[tuple[str, str]]:
        network = f"modelled ranks: {self.bandwidth}/s into and out of every rank, {self.latency:g} us a message"
        batches = f"{self.parts} parts, {self.clusters} in a batch of a rank"
        return [*super().facts(), ("batches", batches), ("network", network), ("time", epochs_text(self.setup))]

    def measure(self, cell: RankCell) -> list[RankRecord]:
        if cell.how == MEASURED and cell.ranks > 1:
            return measure_ranks(cell, self.source, self.graph, self.by_label, self.setup)
        lines = [r for r in self.lines() if r.methods == cell.methods]
        alone = {r.method: r.seconds for r in lines if r.ranks == 1 and r.how == MODELLED}
        network = self.network
        if cell.network == HERE and cell.ranks > 1:
            line = next(r for r in lines if r.ranks == cell.ranks and r.how == MEASURED)
            network = Network(line.bandwidth or 1.0, line.seconds_per_message or 0.0)
        with one_thread():
            return model_ranks(cell, self.graph, self.by_label, self.setup, network, str(self.on), alone)

    def describe(self, record: RankRecord) -> str:
        r = record
        return f"{r.method}, {r.ranks} ranks, {r.how}: {r.seconds:.3f} s an epoch, {megabytes(r.counted / r.ranks)} MB"

    def tables(self, records: Sequence[RankRecord]) -> list[TextTable]:
        records = sorted(self._with_one(records), key=lambda r: (r.ranks, r.how))
        labels = dict.fromkeys(r.method for r in records)
        return [TextTable(HEADERS, [_row(r) for label in labels for r in records if r.method == label], CAPTION, 4)]

    def figure(self, records: Sequence[RankRecord]) -> Figure:
        saved = self.saved()
        measured: dict[str, list[RankRecord]] = {}
        modelled: dict[str, list[RankRecord]] = {}
        for r in sorted(self._with_one(records), key=lambda r: r.ranks):
            if r.how == MEASURED:
                measured.setdefault(r.method, []).append(r)
            elif r.ranks == 1 or r.network != HERE:
                modelled.setdefault(r.method, []).append(r)

        def panel(words: str, field: str, proportional: bool = False) -> Growth:
            solid, dashed = (
                {label: [(r.ranks, getattr(r, field)) for r in lines] for label, lines in curves.items()}
                for curves in (measured, modelled)
            )
            return Growth(words, "ranks", solid, proportional, dashed)

        title = f"{saved['graph']}, {saved['parts']} parts, {saved['clusters']} in a batch of a rank"
        panels = [panel("seconds an epoch", "seconds"), panel("times as fast as one process", "speed_up", True)]
        return scale_figure(panels, title)

    def _with_one(self, records: Sequence[RankRecord]) -> list[RankRecord]:
        saved = self.saved()
        return with_one_process(records, -(-saved["parts"] // saved["clusters"]))

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"cores": os.cpu_count()}


def with_one_process(records: Sequence[RankRecord], steps: int) -> list[RankRecord]:
    """The lines, and for every method one of the process that was timed in turn with the fewest ranks.

    Args:
        steps: of one process in an epoch.
    """
    found = list(records)
    for r in sorted(records, key=lambda r: r.ranks):
        known = any((other.ranks, other.how, other.method) == (1, MEASURED, r.method) for other in found)
        if r.how == MEASURED and r.alone is not None and not known:
            times: dict[str, Any] = {"seconds": r.alone, "compute": r.alone, "wait": 0.0, "transfer": 0.0}
            times |= {"counted": 0.0, "sent": 0.0, "mirrors": 0.0, "network": "-"}
            found.append(replace(r, ranks=1, steps=steps, **times))
    return found


def _row(r: RankRecord) -> list[str]:
    times = [number(value, 3) for value in (r.seconds, r.compute, r.wait, r.transfer)]
    sent = [megabytes(r.counted / r.ranks), megabytes(None if r.sent is None else r.sent / r.ranks)]
    network = r.network
    if r.ranks == 1:
        network = "-"
    elif r.network == HERE and r.bandwidth and r.seconds_per_message:
        network = f"{r.bandwidth / 1e9:.2g} GB/s, {r.seconds_per_message * 1e6:.0f} us"
    return [
        r.method, str(r.ranks), r.how, network, str(r.steps), *times, ratio(r.speed_up), share(r.efficiency), r.bound,
        *sent, number(r.mirrors, 2),
    ]  # fmt: skip
