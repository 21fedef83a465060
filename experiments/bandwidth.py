"""How close an epoch is to what the memory of the device allows: bytes that have to move a second, over a copy's."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Annotated, Any

import typer

from experiments import traffic
from lmc.bench.epoch import FULL, MODELS, Timed, free, timed_run
from lmc.cli.console import TextTable, milliseconds, number, ratio, share
from lmc.cli.costs import RIVALS, TimedStudy, epochs_text
from lmc.cli.lists import division, methods_in, parse_configs, parse_words
from lmc.cli.spec import parse_method
from lmc.cli.speed import labels_for
from lmc.cli.study import Configs, GraphStudy, Methods
from lmc.methods import FullBatch

CAPTION = (
    "one sparse product with a batch's matrix at the hidden width, the fastest of 16, and the whole epoch: bytes that "
    "have to move (experiments/traffic.py) a second, over those of a copy within the device's memory, the fastest of "
    "16; gathered: counting a row for every entry; iterations: of both solves of all steps; iteration ms: of the "
    "forward solver; time / bound: an iteration takes so many times as long as one sparse plus one dense product of "
    "its sizes"
)
HEADERS = (
    "model", "method", "parts/clusters", "ms / epoch", "product ms", "GB/s", "of copy", "gathered GB/s", "epoch GB",
    "GB/s", "of copy", "iterations", "iteration ms", "time / bound",
)  # fmt: skip


@dataclass(frozen=True)
class BandwidthCell:
    """One line: a model of MODELS, parts/clusters, and the spec of a method or FULL."""

    model: str
    config: str
    method: str


@dataclass(frozen=True, kw_only=True)
class BandwidthRecord(BandwidthCell):
    """The measurements of one line.

    Args:
        ms: time of an epoch.
        copied: bytes that a copy within the device's memory reads and writes in a second.
        moved: bytes that an epoch has to move.
        product_ms: one sparse product with the matrix of a batch at its fastest, mean over batches.
        product_moved, product_gathered: its bytes, every row counted once, and once for each entry.
        dense_ms: one linear map of as many rows, from the hidden width to itself.
        iterations: of both solves, all steps of an epoch together; None for models with layers.
        iteration_ms: one iteration of the forward solver; mean over batches.
    """

    ms: float
    copied: float
    moved: float
    product_ms: float | None = None
    product_moved: float | None = None
    product_gathered: float | None = None
    dense_ms: float | None = None
    iterations: float | None = None
    iteration_ms: float | None = None

    @property
    def vs_bound(self) -> float | None:
        """Time of a solver iteration over one sparse product plus one dense one."""
        least = (self.product_ms or 0) + (self.dense_ms or 0)
        return self.iteration_ms / least if self.iteration_ms and least else None


@dataclass(frozen=True, kw_only=True)
class Bandwidth(TimedStudy[BandwidthCell, BandwidthRecord], GraphStudy[BandwidthCell, BandwidthRecord]):
    """Compare the bytes that epochs and their sparse products move a second with those of a copy."""

    name, cell, record = "bandwidth", BandwidthCell, BandwidthRecord

    models: Annotated[str, typer.Option(help="gcn, gcnii (one layer more) and recgcn (lmc4rec for lmc).")] = "gcn"
    methods: Methods = RIVALS
    configs: Configs = "80/10"

    def cells(self) -> list[BandwidthCell]:
        configs, models = parse_configs(self.configs), parse_words(self.models, "--models", MODELS)
        labels = {model: [FULL, *labels_for(model, methods_in(configs[0], self.methods))] for model in models}
        return [
            BandwidthCell(model, config, label) for model in models for config in configs for label in labels[model]
        ]

    def facts(self) -> list[tuple[str, str]]:
        return [*super().facts(), ("time", epochs_text(self.setup))]

    def measure(self, cell: BandwidthCell) -> list[BandwidthRecord]:
        method = FullBatch() if cell.method == FULL else parse_method(cell.method, **division(cell.config))
        timed = timed_run(method, self.graph, self.setup, self.on, cell.model)
        for _ in range(self.setup.repeat):
            timed.time_epoch()
        ms, size = traffic.copy_ms(self.on)
        record = BandwidthRecord(**asdict(cell), ms=timed.ms, copied=size / ms * 1e3, **bytes_of(timed, self.hidden))
        del timed
        free(self.on)
        return [record]

    def describe(self, record: BandwidthRecord) -> str:
        r = record
        of_copy = share(r.moved / r.ms * 1e3 / r.copied)
        return f"{r.model} {r.config}, {r.method}: {milliseconds(r.ms)} ms, {of_copy} of the bytes of a copy a second"

    def tables(self, records: Sequence[BandwidthRecord]) -> list[TextTable]:
        return [TextTable(HEADERS, [_row(r) for r in records], CAPTION, named=2).without_empty()]


def bytes_of(timed: Timed, width: int) -> dict[str, Any]:
    """Bytes of an epoch, and times and bytes of its kernels."""
    run, iterations = timed.run, None
    assert run is not None
    if run.problem.model.recurrent:
        run.solves()  # what is counted starts anew
        timed.epoch()
        counts = run.solves()
        if counts is not None:
            iterations = run.num_batches * (counts["forward_steps"] + counts["backward_steps"])
    batches = list(run.batches(0))
    matrices, item = traffic.matrices_of(run, batches), run.problem.dtype.itemsize
    each = iterations / len(batches) if iterations else 0
    found: dict[str, Any] = {"iterations": iterations}
    found["moved"] = sum(traffic.step_bytes(run, batch, each) for batch in batches)
    if matrices:
        found |= {
            "product_ms": traffic.product_ms(matrices, width),
            "product_moved": fmean(traffic.product_bytes(A, width, item) for A in matrices),
            "product_gathered": fmean(traffic.product_bytes(A, width, item, True) for A in matrices),
            "dense_ms": traffic.dense_ms(matrices, width),
        }
    if iterations:
        found["iteration_ms"] = traffic.iteration_ms(run, matrices)
    return found


def _row(r: BandwidthRecord) -> list[str]:
    def a_second(count: float | None, ms: float | None) -> float | None:
        return count / ms * 1e3 if count and ms else None

    def of_copy(rate: float | None) -> str:
        return share(None if rate is None else rate / r.copied)

    product, gathered = (a_second(count, r.product_ms) for count in (r.product_moved, r.product_gathered))
    epoch = a_second(r.moved, r.ms)
    row = [r.model, r.method, r.config, milliseconds(r.ms), milliseconds(r.product_ms), number(product, 1, 1e9)]
    row += [of_copy(product), number(gathered, 1, 1e9), number(r.moved, 3, 1e9), number(epoch, 1, 1e9), of_copy(epoch)]
    return [*row, number(r.iterations, 0), milliseconds(r.iteration_ms), ratio(r.vs_bound)]
