"""The figure of accuracies over epochs and over seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from lmc.report.figure import legend_below, looks_of, plain

Curve = Sequence[tuple[float, float, float]]
"""Epochs, seconds, accuracy."""


def accuracy_figure(curves: Mapping[str, Curve], target: float, title: str) -> Figure:
    """Every method's accuracy over epochs, and over seconds of training; the target as a line."""
    looks = looks_of(list(curves))
    figure = Figure(figsize=(9.6, 4.2), dpi=140, facecolor="white", layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    for k, (axes, name) in enumerate(zip(figure.subplots(1, 2, sharey=True), ("epochs", "seconds"), strict=True)):
        for label, curve in curves.items():
            look = looks[label]
            xs, ys = [point[k] for point in curve], [100 * point[2] for point in curve]
            axes.plot(xs, ys, color=look.colour, linestyle=look.dashes, linewidth=1.6)
        axes.axhline(100 * target, color="#888888", linewidth=0.9, linestyle=(0, (2, 2)))
        _dress(axes, name)
    shown = [100 * point[2] for curve in curves.values() for point in curve]
    axes.set_ylim(100 * target - 6, max(*shown, 100 * target) + 0.6)
    figure.axes[0].set_ylabel("test accuracy, %", fontsize=10)
    legend_below(figure, looks)
    return figure


def _dress(axes: Axes, name: str) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(name, fontsize=10)
    plain(axes)
