"""The figure of a comparison: loss, accuracy, gradient error. No global state: a figure is a value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from lmc.results import EpochRecord, RunRecord

Dashes = tuple[float, Sequence[float]]
X = Callable[[EpochRecord], float]

# Okabe and Ito's colours, told apart by colour-blind readers too; a method keeps its colour in every figure.
_COLOURS = {
    "full": "#4d4d4d",
    "cluster": "#e69f00",
    "gas": "#56b4e9",
    "fm": "#009e73",
    "lmc": "#d55e00",
    "cmc": "#0072b2",
    "backward-sgd": "#cc79a7",
    "sse": "#009e73",
    "lmc4rec": "#d55e00",
    "cmc4rec": "#0072b2",
}
_SPARE = ("#882255", "#999999", "#44aa99", "#b8a800")
_NAMES = {
    "full": "full batch",
    "cluster": "Cluster-GCN",
    "gas": "GAS",
    "fm": "GraphFM-OB",
    "lmc": "LMC",
    "cmc": "CMC",
    "backward-sgd": "backward SGD",
    "sse": "SSE",
    "lmc4rec": "LMC4Rec",
    "cmc4rec": "CMC4Rec",
}
# Variants of one method share its hue; they differ in lightness, lines also in dashes and bars in hatching.
_SHADES = (0.0, 0.45, -0.4, 0.7)
_DASHES: tuple[Dashes, ...] = ((0, ()), (0, (5, 2)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
_HATCHES = ("", "///", "...", "xxx")


@dataclass(frozen=True)
class Look:
    """How one method is drawn everywhere in a figure."""

    name: str
    colour: str
    dashes: Dashes
    hatch: str


def compare_figure(
    runs: Mapping[str, RunRecord],
    errors: Mapping[str, Mapping[str, float]],
    title: str,
    metric: str = "accuracy",
) -> Figure:
    """Loss and score over epochs and over seconds, and the gradient error of every layer.

    Args:
        runs: the record of every method by its label, e.g. "lmc" or "lmc:alpha=0.8".
        errors: {label: {layer: relative gradient error}}; a method without errors has no bars, and without any the
            panel is left out.
        title: over the figure.
        metric: what the scores are.
    """
    looks = looks_of(list(runs))
    wide = any(errors.values())
    columns = max(1, min(len(looks), (125 if wide else 85) // (7 + max(len(k.name) for k in looks.values()))))
    rows = -(-len(looks) // columns)
    figure = Figure(figsize=(13.0 if wide else 9.0, 6.6), dpi=140, facecolor="white")
    grid = figure.add_gridspec(
        2,
        3 if wide else 2,
        left=0.05 if wide else 0.07,
        right=0.99,
        top=0.86 - 0.035 * rows,
        bottom=0.085,
        hspace=0.42,
        wspace=0.2,
        width_ratios=[1, 1, 1.2] if wide else [1, 1],
    )
    for column, (x, label) in enumerate(((_epoch, "epoch"), (_seconds, "seconds of training"))):
        _draw_losses(figure.add_subplot(grid[0, column]), runs, looks, x, label)
        _draw_scores(figure.add_subplot(grid[1, column]), runs, looks, x, label, metric)
    if wide:
        _draw_errors(figure.add_subplot(grid[:, 2]), {k: v for k, v in errors.items() if v}, looks)
    left = 0.05 if wide else 0.07
    figure.text(left, 0.975, title, ha="left", va="top", fontsize=14, fontweight="bold")
    # over the panels, where it covers no curve
    figure.legend(
        handles=[
            Line2D([], [], color=k.colour, linestyle=k.dashes, linewidth=2.6, label=k.name) for k in looks.values()
        ],
        loc="upper left",
        bbox_to_anchor=(left - 0.008, 0.94),
        ncols=columns,
        frameon=False,
        fontsize=10.5,
        handlelength=2.0,
        columnspacing=1.8,
    )
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format its name ends with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def legend_below(figure: Figure, looks: Mapping[str, Look]) -> None:
    """The lines of all methods, under the panels."""
    handles = [Line2D([], [], color=k.colour, linestyle=k.dashes, label=k.name) for k in looks.values()]
    figure.legend(handles=handles, loc="outside lower left", ncols=len(looks), frameon=False, fontsize=9.5)


def plain(axes: Axes) -> None:
    """Lines to read values by, behind what is drawn, and no frame."""
    axes.grid(axis="y", color="#e2e2e2", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def looks_of(labels: Sequence[str]) -> dict[str, Look]:
    """How each method is drawn, by its label."""
    looks: dict[str, Look] = {}
    bases: list[str] = []
    for label in labels:
        base, _, options = label.partition(":")
        unknown = [b for b in bases if b not in _COLOURS and b != base]
        colour = _COLOURS.get(base) or _SPARE[len(dict.fromkeys(unknown)) % len(_SPARE)]
        name = _NAMES.get(base, base) + (f" ({options.replace(':', ', ')})" if options else "")
        variant = bases.count(base) % len(_DASHES)
        looks[label] = Look(name, _shade(colour, _SHADES[variant]), _DASHES[variant], _HATCHES[variant])
        bases.append(base)
    return looks


def _shade(colour: str, amount: float) -> str:
    """Towards white for positive amounts, towards black for negative ones."""
    goal = 1.0 if amount > 0 else 0.0
    red, green, blue = (c + abs(amount) * (goal - c) for c in to_rgb(colour))
    return to_hex((red, green, blue))


def _epoch(record: EpochRecord) -> float:
    return record.epoch


def _seconds(record: EpochRecord) -> float:
    return record.seconds


def _draw_losses(axes: Axes, runs: Mapping[str, RunRecord], looks: Mapping[str, Look], x: X, xlabel: str) -> None:
    losses: list[float] = []
    for label, run in runs.items():
        points = [(x(e), e.loss) for e in run.epochs if math.isfinite(e.loss) and e.loss > 0]
        _draw_line(axes, points, looks[label], width=1.8, alpha=1.0)
        losses += [loss for _, loss in points]
    if losses and max(losses) / min(losses) > 4:
        axes.set_yscale("log")
        _plain_decimals(axes)
    _dress(axes, "training loss", xlabel)


def _draw_scores(
    axes: Axes, runs: Mapping[str, RunRecord], looks: Mapping[str, Look], x: X, xlabel: str, metric: str
) -> None:
    scores: list[float] = []
    for label, run in runs.items():
        for split, width, alpha in (("val", 1.0, 0.35), ("test", 1.8, 1.0)):
            points = [(x(e), 100 * e.scores[split]) for e in run.epochs if e.scores]
            _draw_line(axes, points, looks[label], width, alpha)
            scores += [score for _, score in points]
    if scores:
        # the first epochs are low for everyone: leave most of the height to where the methods differ
        scores.sort()
        low, high = scores[len(scores) // 12], scores[-1]
        margin = max(0.5, 0.08 * (high - low))
        axes.set_ylim(max(0.0, low - margin), min(100.0, high + margin))
    _dress(axes, f"test {metric}, % (pale: validation)", xlabel)


def _draw_line(axes: Axes, points: Sequence[tuple[float, float]], look: Look, width: float, alpha: float) -> None:
    if points:
        xs, ys = zip(*points, strict=True)
        marker = "o" if len(points) == 1 else ""  # a line of one point would not be seen
        axes.plot(
            xs,
            ys,
            color=look.colour,
            linestyle=look.dashes,
            linewidth=width,
            alpha=alpha,
            marker=marker,
            solid_capstyle="round",
        )


def _draw_errors(axes: Axes, errors: Mapping[str, Mapping[str, float]], looks: Mapping[str, Look]) -> None:
    layers = list(dict.fromkeys(layer for by_layer in errors.values() for layer in by_layer))
    heights = [v for by_layer in errors.values() for v in by_layer.values() if 0 < v < math.inf]
    width = 0.82 / len(errors)
    named = len(errors) * len(layers) <= 16
    for k, (label, by_layer) in enumerate(errors.items()):
        offset = (k - (len(errors) - 1) / 2) * width
        bars = [
            (i + offset, by_layer[layer]) for i, layer in enumerate(layers) if 0 < by_layer.get(layer, 0) < math.inf
        ]
        look = looks[label]
        for place, height in bars:
            axes.bar(place, height, 0.9 * width, color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0)
            if named:
                axes.annotate(
                    f"{height:.2g}", (place, height), (0, 2), textcoords="offset points", ha="center", fontsize=8
                )
    axes.set_yscale("log")
    if heights:
        axes.set_ylim(min(heights) / 2, max(heights) * 1.25)
    _plain_decimals(axes)
    axes.set_xticks(range(len(layers)), layers)
    _dress(axes, "relative gradient error by layer", "")
    axes.set_xlabel("against the exact gradient of the same batch", fontsize=10)


def _plain_decimals(axes: Axes) -> None:
    """0.2, 0.5, 1: a logarithmic axis in numbers one reads."""
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _dress(axes: Axes, title: str, xlabel: str) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    if xlabel:
        axes.set_xlabel(xlabel, fontsize=10)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=xlabel == "epoch"))
    plain(axes)
    axes.tick_params(axis="y", which="minor", length=0)
