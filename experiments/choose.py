"""Whether the recommended method is the fastest: seconds to the full batch's accuracy over a grid of settings."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import torch
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from experiments.gradients import configs_of
from experiments.study import GraphsStudy, Rates, Seeds, parse_norm
from lmc.bench.epoch import WHOLE, free, wait
from lmc.cli.console import TextTable, ratio
from lmc.cli.lists import at_least_one, division, methods_in, parse_list, parse_numbers
from lmc.cli.study import Hidden, Methods
from lmc.data.synthetic import split_nodes
from lmc.diagnostics import Facts, choose, recommended
from lmc.diagnostics.choice import (
    LARGE_HALO,
    ROWS_PER_COLUMN,
    ROWS_WITH_BATCH_NORM,
    full_batch_fits,
    settings_for,
)
from lmc.engine import Run
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.methods import FullBatch
from lmc.report.looks import new_figure
from lmc.report.names import Look, looks_of, shade
from lmc.train import adam, train_epoch
from lmc.train.evaluate import evaluate_problem

FULL = "full"
CAPTION = (
    "seconds of the first filling of histories and of all training steps, sweeps and first visits included, until the "
    "test accuracy is that of the full batch with the same seed minus {within:g} points, at the rate with the highest "
    "mean accuracy of the full batch; on a CPU the processor time of the process; every method at its best rate; mean "
    "over seeds; ratio: the recommended method over the fastest"
)


@dataclass(frozen=True)
class ChooseCell:
    """One training. ``config`` is parts/clusters, or "-" for the full batch; ``norm`` is, for example, "layer:0.5"."""

    dataset: str
    config: str
    norm: str
    seed: int
    method: str
    lr: float


@dataclass(frozen=True)
class ChooseRecord(ChooseCell):
    """One training, which ends when it reaches the accuracy of the full batch.

    Args:
        seconds: after every evaluation; with the first filling of histories, without evaluations.
        val, test: accuracies.
        setup: seconds of partitioning and binding, which ``seconds`` does not contain.
        step, fits, rows_per_column, halo: what the recommendation depends on (:class:`lmc.diagnostics.Facts`); None
            for the full batch.
    """

    seconds: list[float]
    val: list[float]
    test: list[float]
    setup: float
    step: float | None = None
    fits: bool | None = None
    rows_per_column: float | None = None
    halo: float | None = None

    @property
    def chosen(self) -> float:
        """Test accuracy at the best validation accuracy."""
        return self.test[max(range(len(self.val)), key=self.val.__getitem__)]

    def reaches(self, target: float) -> float | None:
        """Seconds until the test accuracy first reaches the target."""
        return next((s for s, t in zip(self.seconds, self.test, strict=True) if t >= target), None)


@dataclass(frozen=True, kw_only=True)
class Choose(GraphsStudy[ChooseCell, ChooseRecord]):
    """Compare the recommended method with the fastest one, setting by setting. One folder holds one device."""

    name, cell, record = "choose", ChooseCell, ChooseRecord
    shared = ("layers", "hidden", "epochs", "full_epochs", "within", "lrs", "seeds")

    datasets: Annotated[str, typer.Argument(help="Names or paths, comma-separated.")] = (
        "arxiv-like,flickr-like,reddit-like,products-like@0.1"
    )
    configs: Annotated[
        str, typer.Option(help="parts/clusters, comma-separated; name=parts/clusters starts those of one graph.")
    ] = "arxiv-like=80/10,80/4,flickr-like=24/6,reddit-like=200/20,products-like@0.1=150/15,150/4"
    norms: Annotated[str, typer.Option(help="none, layer or batch, with a dropout, comma-separated.")] = (
        "layer:0.5,batch:0.5"
    )
    lrs: Rates = "1e-3,3e-3,1e-2"
    methods: Methods = "gas,lmc,cmc,imc,imc:basis=T"
    epochs: Annotated[int, typer.Option(help="At most so many epochs of a method with parts.")] = 40
    full_epochs: Annotated[int, typer.Option(help="Epochs of the full batch, which makes one step in each.")] = 400
    within: Annotated[float, typer.Option(help="Percentage points that may be missing to the full batch.")] = 0.1
    hidden: Hidden = 256
    seeds: Seeds = 1
    random_split: Annotated[
        bool, typer.Option(help="Draw 60, 20 and 20 % of the nodes at random for training, validation and tests.")
    ] = False

    @cached_property
    def graphs(self) -> dict[str, Graph]:
        graphs = super().graphs
        return {name: randomly_split(graph) for name, graph in graphs.items()} if self.random_split else graphs

    def cells(self) -> list[ChooseCell]:
        """All cells; those of the full batch, which give the targets, come first."""
        if at_least_one("--full-epochs", self.full_epochs) % at_least_one("--epochs", self.epochs):
            raise ConfigError(
                f"expected --full-epochs as a multiple of --epochs (got {self.full_epochs}, {self.epochs}): change one"
            )
        lrs, norms = parse_numbers(self.lrs, "--lrs"), parse_list(self.norms, "--norms", str)
        for norm in norms:
            parse_norm(norm)
        configs = configs_of(self.configs, parse_list(self.datasets, "DATASETS", str))
        return [
            ChooseCell(dataset, config, norm, seed, label, lr)
            for whole in (True, False)
            for seed in range(at_least_one("--seeds", self.seeds))
            for dataset, of_graph in configs.items()
            for norm in norms
            for config in ([WHOLE] if whole else of_graph)
            for label in ([FULL] if config == WHOLE else methods_in(config, self.methods))
            for lr in lrs
        ]

    def subject(self) -> str:
        return f"{self.datasets}-{self.on.type}"

    def measure(self, cell: ChooseCell) -> list[ChooseRecord]:
        whole = cell.config == WHOLE
        method = FullBatch() if whole else methods_in(cell.config, self.methods)[cell.method]
        target = None if whole else self.targets(self.lines()).get((cell.dataset, cell.norm, cell.seed))
        run = self.testbeds[cell.dataset].bind(method, cell.seed, *parse_norm(cell.norm))
        epochs, every = (self.full_epochs, self.full_epochs // self.epochs) if whole else (self.epochs, 1)
        seconds, scores = [], []
        optimizer, spent = adam(run.problem.model, cell.lr), 0.0
        now = time.process_time if self.on.type == "cpu" else time.perf_counter
        for epoch in range(epochs):
            started = now()
            if epoch == 0:
                run.refresh()
            train_epoch(run, optimizer, epoch=epoch)
            wait(self.on)
            spent += now() - started
            if (epoch + 1) % every == 0:
                seconds.append(spent)
                scores.append(evaluate_problem(run.problem))
                if target is not None and scores[-1]["test"] >= target:
                    break
        facts = {} if whole else self.facts_of(cell, run)
        record = ChooseRecord(
            **asdict(cell), seconds=seconds, val=[s["val"] for s in scores], test=[s["test"] for s in scores],
            setup=sum(run.setup_seconds.values()), **facts,
        )  # fmt: skip
        del run
        free(self.on)
        return [record]

    def facts_of(self, cell: ChooseCell, run: Run) -> dict[str, Any]:
        """What the recommendation depends on, with the full batch among the candidates."""
        model, graph, placement = run.problem.model, self.graphs[cell.dataset], run.problem.placement
        parts, clusters = division(cell.config).values()
        found = recommended(model, graph, placement, num_parts=parts, clusters_per_batch=clusters).facts
        fits = full_batch_fits(model, graph.training_graph, placement)
        return {"step": found.step, "fits": fits, "rows_per_column": found.rows_per_column, "halo": found.halo}

    def targets(self, records: Sequence[ChooseRecord]) -> dict[tuple[str, str, int], float]:
        """The accuracy to reach by graph, norm and seed, where the full batch is trained at every rate and with every
        seed. It is that of one rate, the best in the mean over seeds."""
        found: dict[tuple[str, str], dict[float, dict[int, float]]] = {}
        for r in records:
            if r.method == FULL:
                found.setdefault((r.dataset, r.norm), {}).setdefault(r.lr, {})[r.seed] = r.chosen
        rates = parse_numbers(self.lrs, "--lrs")
        best = {
            setting: max(by_rate.values(), key=lambda accuracies: fmean(accuracies.values()))
            for setting, by_rate in found.items()
            if all(len(by_rate.get(lr, ())) == self.seeds for lr in rates)
        }
        return {
            (*setting, seed): accuracy - self.within / 100
            for setting, accuracies in best.items()
            for seed, accuracy in accuracies.items()
        }

    def describe(self, record: ChooseRecord) -> str:
        r = record
        setting = f"seed {r.seed}, {r.dataset} {r.config}, {r.norm}, {r.method}, lr {r.lr:g}"
        return f"{setting}: {100 * max(r.test):.2f} % in {r.seconds[-1]:.2f} s"

    def tables(self, records: Sequence[ChooseRecord]) -> list[TextTable]:
        targets, found = self.targets(records), []
        for (dataset, config, norm), facts in settings_of(records, self.saved()["device"]).items():
            those = [r for r in records if (r.dataset, r.norm) == (dataset, norm) and r.config in (config, WHOLE)]
            times = seconds_of(those, targets)
            if times:
                cells, over = compared(times, recommended_spec(facts))
                found.append(([dataset, config, norm, *cells], over))
        if not found:
            return []
        rows, within = [row for row, _ in found], sum(over <= 1.1 for _, over in found)
        headers = ["graph", "parts/clusters", "norm", "fastest", "s", "recommended", "s", "ratio", "all that arrive"]
        caption = f"{within} of {len(rows)} settings within 1.1; " + CAPTION.format(within=self.within)
        return [TextTable(headers, rows, caption, named=3)]

    def figure(self, records: Sequence[ChooseRecord]) -> Figure:
        """The rule that the table tests."""
        return decision_figure()


def randomly_split(graph: Graph) -> Graph:
    """The graph with 60, 20 and 20 % of its nodes for training, validation and tests, always the same ones."""
    split = torch.from_numpy(split_nodes(graph.num_nodes, (0.6, 0.2, 0.2), np.random.default_rng(0)))
    return replace(graph, train=split == 0, val=split == 1, test=split == 2)


def settings_of(records: Sequence[ChooseRecord], on: str) -> dict[tuple[str, str, str], Facts]:
    """The settings of the grid and what is known of each; the model is a GCN."""
    found = {}
    for r in records:
        if r.step is not None and r.rows_per_column is not None:
            parts, clusters = division(r.config).values()
            found[r.dataset, r.config, r.norm] = Facts(
                "layered", True, on, r.step, bool(r.fits), parts / clusters, r.rows_per_column,
                batch_norm=r.norm.startswith("batch"), halo=r.halo,
            )  # fmt: skip
    return found


def recommended_spec(facts: Facts) -> str:
    """The recommended method as the command line spells it."""
    settings = (f"{name}={value}" for name, value in settings_for(facts).items())
    return ":".join([choose(facts)[0].traits.name, *settings])


def seconds_of(records: Sequence[ChooseRecord], targets: Mapping[tuple[str, str, int], float]) -> dict[str, float]:
    """Mean seconds to the target over seeds, by method, at its best rate; without methods that miss it on a seed."""
    found: dict[str, dict[float, list[float | None]]] = {}
    for r in records:
        target = targets.get((r.dataset, r.norm, r.seed))
        if target is not None:
            found.setdefault(r.method, {}).setdefault(r.lr, []).append(r.reaches(target))
    arrived = {
        label: [fmean(s for s in each if s is not None) for each in rates.values() if None not in each]
        for label, rates in found.items()
    }
    return {label: min(means) for label, means in arrived.items() if means}


def compared(times: Mapping[str, float], chosen: str) -> tuple[list[str], float]:
    """The cells that compare the chosen method with the fastest one, and the ratio of their seconds."""
    fastest = min(times, key=times.__getitem__)
    over = times[chosen] / times[fastest] if chosen in times else math.inf
    each = [f"{label} {seconds:.3f}" for label, seconds in sorted(times.items(), key=lambda item: item[1])]
    reached, shown = (f"{times[chosen]:.3f}", ratio(over)) if chosen in times else ("never", "-")
    return [fastest, f"{times[fastest]:.3f}", chosen, reached, shown, ", ".join(each)], over


def decision_figure() -> Figure:
    """The rule as a chart: a question in every box, the method that is recommended at its right."""
    figure = new_figure(8.6, 5.4, "Which method?")
    axes = figure.add_subplot()
    axes.set_axis_off()
    questions = [
        ("Does the model aggregate before training?", "sign"),
        ("Is the model recurrent?", "lmc4rec"),
        ("Does the full batch fit, and is it expected\nto be faster than steps on parts?", "full"),
        ("Is the aggregation not linear (attention, maxima)?", "gas"),
        ("On a CPU, without batch norm, with large batches:\nis the halo smaller than the core?", "gas"),
        (
            f"Do batches have {ROWS_PER_COLUMN} core rows or more for each hidden column?\n"
            f"(CPU, batch norm: {ROWS_WITH_BATCH_NORM}, or is the halo smaller than the core?)",
            "imc",
        ),
        (f"Is the halo at least {LARGE_HALO:g} times the core?", "cmc"),
    ]
    looks = looks_of([method for _, method in questions])
    arrow: dict[str, Any] = {"arrowstyle": "->", "color": "#4d4d4d"}
    left, right, half, step = 0.02, 0.62, 0.055, 1 / len(questions)
    for k, (question, method) in enumerate(questions):
        at, below = 1 - k * step, 1 - (k + 1) * step
        axes.add_patch(Rectangle((left, at - half), right - left, 2 * half, facecolor="white", edgecolor="#4d4d4d"))
        axes.text((left + right) / 2, at, question, ha="center", va="center", fontsize=9.5)
        axes.annotate("", (0.32, below + half), (0.32, at - half), arrowprops=arrow)
        axes.text(0.335, (at + below) / 2, "no", fontsize=8.5, va="center")
        axes.annotate("", (0.78, at), (right, at), arrowprops=arrow)
        axes.text(0.7, at + 0.015, "yes", fontsize=8.5, ha="center")
        _name_method(axes, 0.8, at, looks[method])
    _name_method(axes, 0.295, -0.015, looks["gas"])
    axes.set(xlim=(0, 1), ylim=(-0.05, 1.08))
    return figure


def _name_method(axes: Axes, x: float, y: float, look: Look) -> None:
    axes.text(x, y, look.name, va="center", fontsize=11, fontweight="bold", color=shade(look.colour, -0.15))
