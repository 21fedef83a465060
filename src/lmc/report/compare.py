"""The figure of a comparison: losses, scores and gradient errors."""

from __future__ import annotations

import math
from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lmc.report.looks import (
    BESIDE,
    GRID_COLOUR,
    draw_curve,
    entitle,
    legend_below,
    name_lines,
    new_figure,
    plain,
    plain_decimals,
)  # fmt: skip
from lmc.report.names import Look, looks_of
from lmc.results import SHARES, RunRecord, seconds_to, target_score

Looks = Mapping[str, Look]
Ends = dict[str, tuple[float, float]]
EXACT = 1e-6
"""Relative errors below this are rounding errors of float32."""


def compare_figure(
    runs: Mapping[str, RunRecord], errors: Mapping[str, Mapping[str, float]], title: str, metric: str = "accuracy"
) -> Figure:
    """Loss and score over epochs and over seconds, and the gradient error of every layer.

    Where several runs are compared, the panel of scores over seconds marks when each run first reaches the
    :func:`lmc.results.target_score`, and names the first one.

    Args:
        runs: the record of every method by its spec, e.g. "lmc" or "lmc:alpha=0.8".
        errors: {spec: {layer: relative gradient error}}; a method without errors has no bars, and without any error
            the panel is left out.
        metric: the name of the scores; those of :data:`lmc.results.SHARES` are drawn as percentages.
    """
    looks, with_errors = looks_of(list(runs)), any(errors.values())
    figure = new_figure(15.0 if with_errors else 10.5, 6.6, title)
    ratios = [1, 1, 0.85] if with_errors else [1, 1]
    grid = figure.add_gridspec(2, len(ratios), width_ratios=ratios)
    percent = metric.lower() in SHARES
    for column, (x, xlabel) in enumerate((("epoch", "epochs"), ("seconds", "seconds of training steps"))):
        upper, lower = (figure.add_subplot(grid[row, column]) for row in range(2))
        losses = _draw_losses(upper, runs, looks, x)
        scores = _draw_scores(lower, runs, looks, x, percent)
        score = f"Test {metric}{' in %' * percent} (thin: validation)"
        for axes, name, ends in ((upper, "Training loss", losses), (lower, score, scores)):
            _label(axes, f"{name} over {'epochs' if x == 'epoch' else 'time'}", xlabel)
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=x == "epoch"))
            if axes is lower and x == "seconds" and len(runs) > 1:
                _mark_target(axes, runs, looks, percent)
            if len(looks) <= BESIDE:
                name_lines(axes, ends, looks)
    if with_errors:
        _draw_errors(figure.add_subplot(grid[:, 2]), {k: v for k, v in errors.items() if v}, looks)
    if len(looks) > BESIDE:
        columns = (140 if with_errors else 95) // (7 + max(len(look.name) for look in looks.values()))
        legend_below(figure, looks, columns=max(1, columns))
    return figure


def _draw_losses(axes: Axes, runs: Mapping[str, RunRecord], looks: Looks, x: str) -> Ends:
    """The curves; returns where each of them ends."""
    losses: list[float] = []
    ends: Ends = {}
    for label, run in runs.items():
        points = [(getattr(e, x), e.loss) for e in run.epochs if math.isfinite(e.loss) and e.loss > 0]
        draw_curve(axes, points, looks[label], linewidth=1.8)
        losses += [loss for _, loss in points]
        ends |= {label: points[-1]} if points else {}
    if losses and max(losses) / min(losses) > 4:
        axes.set_yscale("log")
        axes.set_ylabel("logarithmic", fontsize=8.5, color="#666666")
        plain_decimals(axes.yaxis)
    return ends


def _draw_scores(axes: Axes, runs: Mapping[str, RunRecord], looks: Looks, x: str, percent: bool) -> Ends:
    """The curves; returns where those of the test nodes end."""
    scores: list[float] = []
    ends: Ends = {}
    unit = 100 if percent else 1
    for label, run in runs.items():
        for split, width, alpha in (("val", 1.0, 0.35), ("test", 1.8, 1.0)):
            points = [(at, unit * score) for at, score in _scored(run, x, split)]
            draw_curve(axes, points, looks[label], linewidth=width, alpha=alpha)
            scores += [score for _, score in points]
            ends |= {label: points[-1]} if points else {}
    if scores:
        axes.set_ylim(*_limits(sorted(scores), percent))
    return ends


def _mark_target(axes: Axes, runs: Mapping[str, RunRecord], looks: Looks, percent: bool) -> None:
    """A dashed line at a score that all runs may reach, a point where each first reaches it, and a star at the first
    of them, which is named below the panel."""
    target, unit = target_score(runs.values()), 100 if percent else 1
    found = [(seconds, label) for label, seconds in seconds_to(target, runs).items() if seconds is not None]
    if target is None or not found:
        return
    axes.axhline(unit * target, color="#8a8a8a", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.5)
    first = found[0]
    for seconds, label in found:
        marker, size = ("*", 15) if (seconds, label) == first else ("o", 6)
        axes.plot(
            [seconds], [unit * target], marker, markersize=size, color=looks[label].colour, markeredgecolor="white",
            zorder=4,
        )  # fmt: skip
    score = f"{unit * target:.1f} %" if percent else f"{target:.4g}"
    name = f"{looks[first[1]].name}, {first[0]:.3g} s"
    axes.set_xlabel(f"{axes.get_xlabel()}\nfirst at {score} (dashed line): {name} (star)", fontsize=10)


def _scored(run: RunRecord, x: str, split: str) -> list[tuple[float, float]]:
    """The scores of a split, each with its epoch or second."""
    return [(getattr(e, x), e.scores[split]) for e in run.epochs if e.scores and split in e.scores]


def _limits(scores: list[float], percent: bool) -> tuple[float, float]:
    """The range of an axis of scores, given in ascending order. Those of the first epochs are low for every method:
    most of the height is left to where they differ."""
    unit, low, high = 100 if percent else 1, scores[len(scores) // 12], scores[-1]
    margin = max(0.005 * unit, 0.08 * (high - low))
    return max(0.0, low - margin) if percent else low - margin, min(unit, high + margin)


def _draw_errors(axes: Axes, errors: Mapping[str, Mapping[str, float]], looks: Looks) -> None:
    """A row for every method of every layer: a point on a logarithmic axis, with its value beside it."""
    layers = list(dict.fromkeys(layer for by_layer in errors.values() for layer in by_layer))
    shown = [v for by_layer in errors.values() for v in by_layer.values() if EXACT <= v < math.inf]
    low, high = (min(shown) / 2.5, max(shown) * 6) if shown else (0.1, 1.0)
    names: list[str] = []
    for layer in layers:
        axes.annotate(layer, (0, len(names)), (-6, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                      ha="right", va="center", fontsize=9.5, fontweight="bold")  # fmt: skip
        names.append("")
        for label, by_layer in errors.items():
            _draw_error(axes, by_layer.get(layer, math.nan), len(names), low, looks[label].colour)
            names.append(looks[label].name)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(len(names) - 0.4, -0.8)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    plain_decimals(axes.xaxis, subs=(1.0,))
    _label(axes, "Relative error of the gradient", "against the exact gradient\nof the same batch, logarithmic")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color=GRID_COLOUR, linewidth=0.8)
    axes.spines["left"].set_visible(False)


def _draw_error(axes: Axes, value: float, row: int, low: float, colour: str) -> None:
    """A point, a thin line that leads to it from ``low``, and its value; a value off the axis is a text at ``low``."""
    text, at = f"{value:.2g}", value
    if EXACT <= value < math.inf:
        axes.barh(row, value - low, 0.1, left=low, color=colour, alpha=0.45, linewidth=0)
        axes.plot([value], [row], "o", color=colour, markersize=6)
    else:
        text, at = "exact" if value < EXACT else "-", low
    axes.annotate(text, (at, row), (7, 0), textcoords="offset points", va="center", fontsize=8.5)


def _label(axes: Axes, title: str, xlabel: str) -> None:
    entitle(axes, title)
    axes.set_xlabel(xlabel, fontsize=10)
    plain(axes)
    axes.tick_params(axis="y", which="minor", length=0)
