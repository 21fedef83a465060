"""The figure of a comparison: loss, accuracy, gradient error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from lmc.report.looks import Look, draw_curve, looks_of, plain, plain_decimals
from lmc.results import EpochRecord, RunRecord

X = Callable[[EpochRecord], float]


def compare_figure(
    runs: Mapping[str, RunRecord],
    errors: Mapping[str, Mapping[str, float]],
    title: str,
    metric: str = "accuracy",
) -> Figure:
    """Loss and score over epochs and over seconds, and the gradient error of every layer.

    Args:
        runs: the record of every method by its spec, e.g. "lmc" or "lmc:alpha=0.8".
        errors: {spec: {layer: relative gradient error}}; a method without errors has no bars, and without any error
            the panel is left out.
        title: text above the figure.
        metric: the name of the scores.
    """
    looks = looks_of(list(runs))
    with_errors = any(errors.values())
    width, left = (13.0, 0.05) if with_errors else (9.0, 0.07)
    columns = max(1, min(len(looks), (125 if with_errors else 85) // (7 + max(len(k.name) for k in looks.values()))))
    rows = -(-len(looks) // columns)
    ratios = [1, 1, 1.2] if with_errors else [1, 1]
    figure = Figure(figsize=(width, 6.6), dpi=140, facecolor="white")
    grid = figure.add_gridspec(
        2, len(ratios), left=left, right=0.99, top=0.86 - 0.035 * rows, bottom=0.085, hspace=0.42, wspace=0.2,
        width_ratios=ratios,
    )  # fmt: skip
    abscissas: tuple[tuple[X, str], ...] = ((lambda e: e.epoch, "epoch"), (lambda e: e.seconds, "seconds of training"))
    for column, (x, label) in enumerate(abscissas):
        _draw_losses(figure.add_subplot(grid[0, column]), runs, looks, x, label)
        _draw_scores(figure.add_subplot(grid[1, column]), runs, looks, x, label, metric)
    if with_errors:
        _draw_errors(figure.add_subplot(grid[:, 2]), {k: v for k, v in errors.items() if v}, looks)
    figure.text(left, 0.975, title, ha="left", va="top", fontsize=14, fontweight="bold")
    handles = [Line2D([], [], color=k.colour, linestyle=k.dashes, linewidth=2.6, label=k.name) for k in looks.values()]
    figure.legend(  # above the panels, where it covers no curve
        handles=handles, loc="upper left", bbox_to_anchor=(left - 0.008, 0.94), ncols=columns, frameon=False,
        fontsize=10.5, handlelength=2.0, columnspacing=1.8,
    )  # fmt: skip
    return figure


def _draw_losses(axes: Axes, runs: Mapping[str, RunRecord], looks: Mapping[str, Look], x: X, xlabel: str) -> None:
    losses: list[float] = []
    for label, run in runs.items():
        points = [(x(e), e.loss) for e in run.epochs if math.isfinite(e.loss) and e.loss > 0]
        draw_curve(axes, points, looks[label], linewidth=1.8)
        losses += [loss for _, loss in points]
    if losses and max(losses) / min(losses) > 4:
        axes.set_yscale("log")
        plain_decimals(axes.yaxis)
    _label(axes, "training loss", xlabel)


def _draw_scores(
    axes: Axes, runs: Mapping[str, RunRecord], looks: Mapping[str, Look], x: X, xlabel: str, metric: str
) -> None:
    scores: list[float] = []
    for label, run in runs.items():
        for split, width, alpha in (("val", 1.0, 0.35), ("test", 1.8, 1.0)):
            points = [(x(e), 100 * e.scores[split]) for e in run.epochs if e.scores]
            draw_curve(axes, points, looks[label], linewidth=width, alpha=alpha)
            scores += [score for _, score in points]
    if scores:
        # the scores of the first epochs are low for every method: leave most of the height to where they differ
        scores.sort()
        low, high = scores[len(scores) // 12], scores[-1]
        margin = max(0.5, 0.08 * (high - low))
        axes.set_ylim(max(0.0, low - margin), min(100.0, high + margin))
    _label(axes, f"test {metric}, % (pale: validation)", xlabel)


def _draw_errors(axes: Axes, errors: Mapping[str, Mapping[str, float]], looks: Mapping[str, Look]) -> None:
    layers = list(dict.fromkeys(layer for by_layer in errors.values() for layer in by_layer))
    heights = [v for by_layer in errors.values() for v in by_layer.values() if 0 < v < math.inf]
    width = 0.82 / len(errors)
    with_numbers = len(errors) * len(layers) <= 16
    for k, (label, by_layer) in enumerate(errors.items()):
        look, offset = looks[label], (k - (len(errors) - 1) / 2) * width
        for i, height in enumerate(by_layer.get(layer, 0) for layer in layers):
            if not 0 < height < math.inf:
                continue
            at, text = (i + offset, height), f"{height:.2g}" if with_numbers else ""
            axes.bar(*at, 0.9 * width, color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0)
            axes.annotate(text, at, (0, 2), textcoords="offset points", ha="center", fontsize=8)
    axes.set_yscale("log")
    if heights:
        axes.set_ylim(min(heights) / 2, max(heights) * 1.25)
    plain_decimals(axes.yaxis)
    axes.set_xticks(range(len(layers)), layers)
    _label(axes, "relative gradient error by layer", "")
    axes.set_xlabel("against the exact gradient of the same batch", fontsize=10)


def _label(axes: Axes, title: str, xlabel: str) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    if xlabel:
        axes.set_xlabel(xlabel, fontsize=10)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=xlabel == "epoch"))
    plain(axes)
    axes.tick_params(axis="y", which="minor", length=0)
