"""The figure of a comparison: loss, accuracy, gradient error."""

from __future__ import annotations

import math
from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lmc.report.looks import Look, draw_curve, legend_below, looks_of, new_figure, plain, plain_decimals
from lmc.results import RunRecord

Looks = Mapping[str, Look]


def compare_figure(
    runs: Mapping[str, RunRecord], errors: Mapping[str, Mapping[str, float]], title: str, metric: str = "accuracy"
) -> Figure:
    """Loss and score over epochs and over seconds, and the gradient error of every layer.

    Args:
        runs: the record of every method by its spec, e.g. "lmc" or "lmc:alpha=0.8".
        errors: {spec: {layer: relative gradient error}}; a method without errors has no bars, and without any error
            the panel is left out.
        metric: the name of the scores; accuracy and micro-F1 are drawn as percentages.
    """
    looks, with_errors = looks_of(list(runs)), any(errors.values())
    figure = new_figure(13.0 if with_errors else 9.0, 6.6, title)
    ratios = [1, 1, 1.2] if with_errors else [1, 1]
    grid = figure.add_gridspec(2, len(ratios), width_ratios=ratios)
    for column, (x, xlabel) in enumerate((("epoch", "epoch"), ("seconds", "seconds of training"))):
        upper, lower = (figure.add_subplot(grid[row, column]) for row in range(2))
        _draw_losses(upper, runs, looks, x)
        percent = metric.lower() in ("accuracy", "micro-f1")
        _draw_scores(lower, runs, looks, x, percent)
        for axes, name in ((upper, "training loss"), (lower, f"test {metric}{', %' * percent} (pale: validation)")):
            _label(axes, name, xlabel)
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=x == "epoch"))
    if with_errors:
        _draw_errors(figure.add_subplot(grid[:, 2]), {k: v for k, v in errors.items() if v}, looks)
    columns = (125 if with_errors else 85) // (7 + max(len(look.name) for look in looks.values()))
    legend_below(figure, looks, columns=max(1, min(len(looks), columns)))
    return figure


def _draw_losses(axes: Axes, runs: Mapping[str, RunRecord], looks: Looks, x: str) -> None:
    losses: list[float] = []
    for label, run in runs.items():
        points = [(getattr(e, x), e.loss) for e in run.epochs if math.isfinite(e.loss) and e.loss > 0]
        draw_curve(axes, points, looks[label], linewidth=1.8)
        losses += [loss for _, loss in points]
    if losses and max(losses) / min(losses) > 4:
        axes.set_yscale("log")
        plain_decimals(axes.yaxis)


def _draw_scores(axes: Axes, runs: Mapping[str, RunRecord], looks: Looks, x: str, percent: bool) -> None:
    scores: list[float] = []
    unit = 100 if percent else 1
    for label, run in runs.items():
        for split, width, alpha in (("val", 1.0, 0.35), ("test", 1.8, 1.0)):
            points = [(getattr(e, x), unit * e.scores[split]) for e in run.epochs if e.scores and split in e.scores]
            draw_curve(axes, points, looks[label], linewidth=width, alpha=alpha)
            scores += [score for _, score in points]
    if scores:
        # the scores of the first epochs are low for every method: leave most of the height to where they differ
        scores.sort()
        low, high = scores[len(scores) // 12], scores[-1]
        margin = max(0.005 * unit, 0.08 * (high - low))
        axes.set_ylim(max(0.0, low - margin) if percent else low - margin, min(unit, high + margin))


def _draw_errors(axes: Axes, errors: Mapping[str, Mapping[str, float]], looks: Looks) -> None:
    layers = list(dict.fromkeys(layer for by_layer in errors.values() for layer in by_layer))
    heights = [v for by_layer in errors.values() for v in by_layer.values() if 0 < v < math.inf]
    width = 0.82 / len(errors)
    with_numbers = len(errors) * len(layers) <= 16
    for k, (label, by_layer) in enumerate(errors.items()):
        look, offset = looks[label], (k - (len(errors) - 1) / 2) * width
        points = [(layers.index(layer) + offset, v) for layer, v in by_layer.items() if 0 < v < math.inf]
        for x, height in points:
            axes.bar(x, height, 0.9 * width, color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0)
            text = f"{height:.2g}" if with_numbers else ""
            axes.annotate(text, (x, height), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    axes.set_yscale("log")
    if heights:
        axes.set_ylim(min(heights) / 2, max(heights) * 1.25)
    plain_decimals(axes.yaxis)
    axes.set_xticks(range(len(layers)), layers)
    _label(axes, "relative gradient error by layer", "against the exact gradient of the same batch")


def _label(axes: Axes, title: str, xlabel: str) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(xlabel, fontsize=10)
    plain(axes)
    axes.tick_params(axis="y", which="minor", length=0)
