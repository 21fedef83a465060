"""The paper's theorems as numbers: bias of a method's gradient by learning rate and by beta, and gradient norms.

Theorems 2 and 4 bound the bias of LMC4Conv and LMC4Rec by a term that vanishes with the learning rate (and with beta)
and a term that vanishes with the number of steps; Theorems 3 and 5 follow for the gradient norm. Everything is float64
on a small graph, and expectations are means over all batches.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Annotated

import numpy as np
import torch
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.study import Seeds
from lmc.bench.compare import Partitions, shared_parts
from lmc.cli.console import TextTable
from lmc.cli.lists import at_least_one, methods_in, parse_numbers
from lmc.cli.study import GraphStudy, Hidden, Layers
from lmc.diagnostics import bias_variance
from lmc.engine import Run
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.methods import FullBatch
from lmc.models import APPNP, GCN, MODELS, Model, RecGCN
from lmc.report.compare import EXACT
from lmc.report.looks import entitle, legend_below, new_figure, plain
from lmc.report.names import Look, looks_of

BIAS = (
    "relative bias |E g - g*| / |g*| over all batches, after {sweeps} epochs of SGD from exact histories; slope: of "
    "its logarithm by that of the {axis}; variance: E |g - E g|^2 / |g*|^2 in the first column; means over seeds"
)
NORM = (
    "|g*| over |g*| at the start, after every quarter of {epochs} epochs of SGD whose rate is halved after each "
    "quarter; start: {lr:g}; geometric means over seeds"
)
STATIONARY = (
    "after {steps} exact gradient steps, with exact histories: bias |E g - g*| over |g*| of the start; movement: the "
    "change of the parameters in an exact step over its rate, over |g*| of the start; loss: the exact one over that of "
    "the start; means over seeds"
)
QUESTIONS = ("rate", "beta", "norm", "stationary")
METHODS = {
    "appnp": "backward-sgd,lmc:alpha=0,lmc:alpha=0.1:score=1,gas,cluster",
    "gcn": "backward-sgd,lmc:alpha=0,lmc:alpha=0.1:score=1,lmc:alpha=0:cut=after:first_layer=pruned,gas,cluster",
    "recgcn": "backward-sgd,lmc4rec:update=step:undo_drift=no,lmc4rec:undo_drift=no,gas,cluster",
}
"""Methods by model."""


@dataclass(frozen=True)
class TheoremCell:
    """One training. ``question`` is one of :data:`QUESTIONS`; with "beta" alpha is an option of the method."""

    question: str
    model: str
    method: str
    lr: float
    seed: int


@dataclass(frozen=True)
class TheoremRecord(TheoremCell):
    """``bias`` and ``variance`` are relative to the exact gradient ("rate" and "beta"); ``norms`` are gradient norms by
    epoch, relative to that of the start ("norm"). With "stationary" the bias is relative to the gradient of the start,
    and ``norms`` has the movement of an exact step and the loss."""

    bias: float
    variance: float
    norms: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Theorems(GraphStudy[TheoremCell, TheoremRecord]):
    """Measure bias and gradient norms under SGD in float64, as Theorems 2 to 5 of the paper bound them."""

    name, cell, record = "theorems", TheoremCell, TheoremRecord
    shared = ("config", "hidden", "layers", "warmup", "sweeps", "epochs", "start", "steps")

    dataset: Annotated[str, typer.Argument(help="Name of a graph, or path to one.")] = "tiny-like"
    scale: Annotated[float | None, typer.Option(help="Size of a lookalike, as a share of the original.")] = 0.1
    config: Annotated[str, typer.Option(help="parts/clusters.")] = "5/1"
    models: Annotated[str, typer.Option(help="gcn, recgcn: bias; recgcn, appnp: gradient norm; comma-separated.")] = (
        "gcn,recgcn,appnp"
    )
    lrs: Annotated[str, typer.Option(help="Learning rates of SGD for the bias, comma-separated.")] = (
        "0.1,0.03,0.01,0.003,0.001"
    )
    alphas: Annotated[str, typer.Option(help="Values of beta for LMC4Conv, at the smallest rate.")] = (
        "1,0.3,0.1,0.03,0.01"
    )
    start: Annotated[float, typer.Option(help="First learning rate for the gradient norm.")] = 1.0
    warmup: Annotated[int, typer.Option(help="Exact gradient steps before the measurements of the bias.")] = 50
    sweeps: Annotated[int, typer.Option(help="Epochs of the method before its bias is measured.")] = 12
    epochs: Annotated[int, typer.Option(help="Epochs for the gradient norm.")] = 800
    steps: Annotated[int, typer.Option(help="Exact gradient steps before the bias at a stationary point.")] = 2000
    questions: Annotated[str, typer.Option(help=f"Some of {', '.join(QUESTIONS)}, comma-separated.")] = "rate,beta,norm"
    hidden: Hidden = 8
    layers: Layers = 3
    seeds: Seeds = 2

    def cells(self) -> list[TheoremCell]:
        for flag in ("sweeps", "epochs", "warmup", "seeds", "steps"):
            at_least_one(f"--{flag}", getattr(self, flag))
        if not set(self.models.split(",")) <= set(METHODS):
            raise ConfigError(f"expected --models among {', '.join(METHODS)} (got {self.models!r}): name some of these")
        models, asked = self.models.split(","), self.questions.split(",")
        if not set(asked) <= set(QUESTIONS):
            raise ConfigError(f"expected --questions among {', '.join(QUESTIONS)} (got {self.questions!r}): name some")
        found = [cell for seed in range(self.seeds) for model in models for cell in self._cells_of(model, seed)]
        return [cell for cell in found if cell.question in asked]

    def _cells_of(self, model: str, seed: int) -> list[TheoremCell]:
        """The trainings of one model with one seed."""
        rates, alphas = parse_numbers(self.lrs, "--lrs"), parse_numbers(self.alphas, "--alphas")
        methods, found = methods_in(self.config, METHODS[model]), []
        if model != "appnp":
            found += [TheoremCell("rate", model, m, lr, seed) for m in methods for lr in rates]
        if model != "gcn":
            found += [TheoremCell("norm", model, m, self.start, seed) for m in methods]
        else:
            specs = [f"lmc:alpha={alpha:g}:score=1" for alpha in alphas]
            found += [TheoremCell("beta", model, m, min(rates), seed) for m in specs]
        return found + [TheoremCell("stationary", model, m, self.start, seed) for m in methods]

    def facts(self) -> list[tuple[str, str]]:
        shape = f"GCN, {self.layers} layers of {self.hidden}; RecGCN, width {self.hidden}; float64"
        return [*super().facts(), ("models", shape), ("parts/clusters", self.config)]

    @cached_property
    def noisy(self) -> Graph:
        """The graph with all nodes labelled, half of them at random: no model fits them all, so that the gradients of
        single nodes do not vanish at a minimum."""
        g, n = torch.Generator().manual_seed(0), self.graph.num_nodes
        drawn = torch.randint(self.graph.num_classes, (n,), generator=g)
        y, no = torch.where(torch.rand(n, generator=g) < 0.5, drawn, self.graph.y), torch.zeros(n, dtype=torch.bool)
        return replace(self.graph, y=y, train=~no, val=no, test=no)

    @cached_property
    def _parts(self) -> Partitions:
        return {}

    def _model(self, name: str, seed: int, warmup: int) -> Model:
        """The model after ``warmup`` exact gradient steps."""
        d, c = self.graph.num_features, self.graph.num_classes
        if name == "appnp":
            predictor = APPNP(d, self.hidden, c, num_layers=self.layers, seed=seed).double()
            assert predictor.lin_in is not None
            predictor.lin_in.requires_grad_(False)  # the loss is convex in the rest
            return predictor
        shape = {"num_layers": self.layers} if name == "gcn" else {"kappa": 0.8, "tol": 1e-12}
        model: Model = (GCN if name == "gcn" else RecGCN)(d, self.hidden, c, seed=seed, **shape)
        run = FullBatch().bind(self.noisy, model.double(), device=self.on)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        for _ in range(warmup):
            run.step(next(run.batches()), optimizer)
        return model

    @cached_property
    def _stationary(self) -> dict[tuple[str, int], tuple[Model, float, dict[str, float]]]:
        """Models by name and seed after ``steps`` exact steps, with what :func:`_descend` returns."""
        return {}

    def _at_stationary_point(self, cell: TheoremCell) -> TheoremRecord:
        """The bias of a method with exact histories where exact gradient steps have nearly ended."""
        key = cell.model, cell.seed
        if key not in self._stationary:
            model = self._model(*key, warmup=0)
            full = FullBatch().bind(self.noisy, model, device=self.on)
            self._stationary[key] = model, *_descend(full, cell.lr, self.steps)
        model, first, facts = self._stationary[key]
        ((_, method),) = methods_in(self.config, cell.method).items()
        run = method.bind(self.noisy, model, shared_parts(method, self.noisy, 0, self._parts), device=self.on)
        run.refresh()
        found = bias_variance(run)
        bias, variance = math.hypot(*found.bias.values()) / first, sum(found.variance.values()) / first**2
        return TheoremRecord(**asdict(cell), bias=bias, variance=variance, norms=facts)

    def measure(self, cell: TheoremCell) -> list[TheoremRecord]:
        if cell.question == "stationary":
            return [self._at_stationary_point(cell)]
        ((_, method),) = methods_in(self.config, cell.method).items()
        model = self._model(cell.model, cell.seed, 0 if cell.question == "norm" else self.warmup)
        parts = shared_parts(method, self.noisy, 0, self._parts)
        run = method.bind(self.noisy, model, parts, device=self.on, seed=cell.seed)
        run.refresh()
        if cell.question == "norm":
            norms = _norms(run, cell.lr, self.epochs)
            return [TheoremRecord(**asdict(cell), bias=0.0, variance=0.0, norms=norms)]
        optimizer = torch.optim.SGD(model.parameters(), lr=cell.lr)
        found = []
        for epoch in range(self.sweeps):
            for batch in run.batches():
                run.step(batch, optimizer)
            if epoch >= self.sweeps - 3:
                found.append(bias_variance(run))
        bias, variance = fmean(f.relative_bias for f in found), fmean(f.relative_variance for f in found)
        return [TheoremRecord(**asdict(cell), bias=bias, variance=variance, norms={})]

    def describe(self, record: TheoremRecord) -> str:
        value = (
            f"norm {list(record.norms.values())[-1]:.2e}" if record.question == "norm" else f"bias {record.bias:.2e}"
        )
        return f"{record.question}: {record.model}, {record.method}, lr {record.lr:g}, seed {record.seed}: {value}"

    def tables(self, records: Sequence[TheoremRecord]) -> list[TextTable]:
        found = []
        for model, question in _panels(records):
            chosen = [r for r in records if (r.model, r.question) == (model, question)]
            kinds = {"rate": self._rates, "beta": self._betas, "norm": self._quarters, "stationary": self._points}
            found.append(kinds[question](model, chosen))
        return found

    def _rates(self, model: str, records: Sequence[TheoremRecord]) -> TextTable:
        rates = sorted({r.lr for r in records}, reverse=True)
        rows = []
        for method in dict.fromkeys(r.method for r in records):
            points = [(lr, _mean(records, method, lr)) for lr in rates]
            variance = fmean(r.variance for r in records if r.method == method and r.lr == rates[0])
            rows.append([method, *(f"{bias:.1e}" for _, bias in points), f"{slope(points):.2f}", f"{variance:.2g}"])
        headers = [f"{model}, bias at lr", *(f"{lr:g}" for lr in rates), "slope", "variance"]
        return TextTable(headers, rows, BIAS.format(sweeps=self.sweeps, axis="learning rate"))

    def _betas(self, model: str, records: Sequence[TheoremRecord]) -> TextTable:
        points = [(beta_of(m), fmean(r.bias for r in records if r.method == m))
                  for m in dict.fromkeys(r.method for r in records)]  # fmt: skip
        row = ["lmc", *(f"{bias:.1e}" for _, bias in points), f"{slope(points):.2f}"]
        headers = [f"{model}, bias at beta", *(f"{beta:g}" for beta, _ in points), "slope"]
        return TextTable(headers, [row], BIAS.format(sweeps=self.sweeps, axis="beta"))

    def _quarters(self, model: str, records: Sequence[TheoremRecord]) -> TextTable:
        quarters = [epoch for epoch in records[0].norms if int(epoch) % max(1, self.epochs // 4) == 0]
        curves = {method: _curve(records, method) for method in dict.fromkeys(r.method for r in records)}
        rows = [[method, *(f"{curve[epoch]:.1e}" for epoch in quarters)] for method, curve in curves.items()]
        return TextTable([f"{model}, norm after", *quarters], rows, NORM.format(epochs=self.epochs, lr=self.start))

    def _points(self, model: str, records: Sequence[TheoremRecord]) -> TextTable:
        rows = []
        for method in dict.fromkeys(r.method for r in records):
            those = [r for r in records if r.method == method]
            values = [fmean(r.bias for r in those), *(fmean(r.norms[k] for r in those) for k in ("movement", "loss"))]
            rows.append([method, *(f"{value:.1e}" for value in values)])
        headers = [f"{model}, at a stationary point", "bias", "movement", "loss"]
        return TextTable(headers, rows, STATIONARY.format(steps=self.steps))

    def figure(self, records: Sequence[TheoremRecord]) -> Figure | None:
        panels = [panel for panel in _panels(records) if panel[1] in ("rate", "norm")]
        if not panels:
            return None
        looks = looks_of(list(dict.fromkeys(r.method for r in records if r.question in ("rate", "norm"))))
        figure = new_figure(4.5 * len(panels), 4.5, "Bias by learning rate, and gradient norms in training by SGD")
        for panel, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
            _draw(axes, *panel, [r for r in records if (r.model, r.question) == panel], looks)
        legend_below(figure, looks, columns=3)
        return figure


def _draw(axes: Axes, model: str, question: str, records: Sequence[TheoremRecord], looks: Mapping[str, Look]) -> None:
    """One panel of the figure: the bias by learning rate, or the gradient norm by epoch."""
    for method in dict.fromkeys(r.method for r in records):
        points = _biases(records, method) if question == "rate" else _curve(records, method)
        look, marker = looks[method], "o" if question == "rate" else ""
        if max(points.values()) < EXACT:  # below every axis
            axes.text(0.02, 0.03, f"{look.name}: exact", transform=axes.transAxes, fontsize=9, color=look.colour)
            continue
        axes.semilogy([float(x) for x in points], list(points.values()), color=look.colour, linestyle=look.dashes,
                      marker=marker, markersize=3)  # fmt: skip
    if question == "norm":
        words = "gradient norm"
        axes.set(xlabel="epoch", ylabel="gradient norm / first gradient norm")
    else:
        words = "bias of the gradient"
        axes.set(xlabel="learning rate", ylabel="relative bias", xscale="log", ylim=(1e-4, 2))
    entitle(axes, f"{MODELS[model].__name__}: {words}")
    plain(axes, "both")


def _panels(records: Sequence[TheoremRecord]) -> list[tuple[str, str]]:
    """The models and questions that were measured."""
    return list(dict.fromkeys((r.model, r.question) for r in records))


def _biases(records: Sequence[TheoremRecord], method: str) -> dict[str, float]:
    """Means over seeds of the bias by learning rate."""
    return {str(lr): _mean(records, method, lr) for lr in sorted({r.lr for r in records})}


def _mean(records: Sequence[TheoremRecord], method: str, lr: float) -> float:
    return fmean(r.bias for r in records if r.method == method and r.lr == lr)


def _curve(records: Sequence[TheoremRecord], method: str) -> dict[str, float]:
    """Geometric means over seeds of the gradient norms by epoch."""
    chosen = [r.norms for r in records if r.method == method]
    return {epoch: math.exp(fmean(math.log(n[epoch]) for n in chosen)) for epoch in (chosen[0] if chosen else {})}


def beta_of(method: str) -> float:
    """The alpha of a spec ``lmc:alpha=...:score=1``."""
    return float(method.split("alpha=")[1].split(":")[0])


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope of a line through the points on logarithmic axes, by least squares."""
    x, y = np.log(np.array(points)).T
    return float(np.polyfit(x, y, 1)[0])


def _norms(run: Run, lr: float, epochs: int) -> dict[str, float]:
    """Norms of the exact gradient over the first, twenty in a training whose rate is halved after each quarter."""
    model, problem = run.problem.model, run.problem
    full = FullBatch().bind(problem.graph, model, device=problem.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def norm() -> float:
        return math.hypot(*(float(g.norm()) for g in full.gradient(next(full.batches())).values()))

    first, found = norm(), {}
    for epoch in range(1, epochs + 1):
        for batch in run.batches():
            run.step(batch, optimizer)
        if epoch % max(1, epochs // 20) == 0:
            found[str(epoch)] = norm() / first
        if epoch % max(1, epochs // 4) == 0:
            optimizer.param_groups[0]["lr"] /= 2
    return found


def _descend(full: Run, lr: float, steps: int) -> tuple[float, dict[str, float]]:
    """Exact gradient steps whose rate is halved after each quarter.

    Returns the norm of the first gradient, and the movement of the last step and the loss, relative to the start. Where
    a model bounds its parameters, the gradient does not vanish at a minimum, but the movement does.
    """
    parameters = list(full.problem.model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=lr)
    batch = next(full.batches())
    first = math.hypot(*(float(g.norm()) for g in full.gradient(batch).values()))
    losses, moved = [], 0.0
    for step in range(1, steps + 1):
        before = [p.detach().clone() for p in parameters]
        losses.append(float(full.step(batch, optimizer).loss))
        rate = optimizer.param_groups[0]["lr"]
        moved = math.hypot(*(float((p.detach() - b).norm()) for p, b in zip(parameters, before, strict=True))) / rate
        if step % max(1, steps // 4) == 0:
            optimizer.param_groups[0]["lr"] /= 2
    return first, {"movement": moved / first, "loss": losses[-1] / losses[0]}
