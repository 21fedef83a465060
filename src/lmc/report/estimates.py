"""The figure of several comparisons of a recurrent model: training losses, and the errors of its adjoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmc.report.figure import Look, legend_below, looks_of, plain
from lmc.results import ErrorRecord, RunRecord

Points = list[tuple[float, float]]


def estimates_figure(
    runs: Mapping[str, Mapping[str, RunRecord]], errors: Mapping[str, Mapping[str, Sequence[ErrorRecord]]], title: str
) -> Figure:
    """A column a comparison: above the training losses of its methods, below the relative errors of V, by epoch.

    Args:
        runs, errors: {comparison: {method: its epochs, its measurements}}.
        title: over the figure.
    """
    looks = looks_of(list(dict.fromkeys(label for methods in runs.values() for label in methods)))
    figure = Figure(figsize=(1.0 + 3.1 * len(runs), 6.4), dpi=140, facecolor="white", layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    panels = figure.subplots(2, len(runs), squeeze=False)
    for column, name in enumerate(runs):

        def losses(label: str, name: str = name) -> Points:
            return [(e.epoch, e.loss) for e in runs[name][label].epochs]

        def adjoints(label: str, name: str = name) -> Points:
            return [(e.epoch, e.layers["V"]) for e in errors[name].get(label, ()) if "V" in e.layers]

        _draw(panels[0][column], name, list(runs[name]), losses, looks)
        _draw(panels[1][column], "", list(runs[name]), adjoints, looks)
        panels[1][column].set_xlabel("epoch", fontsize=10)
    panels[0][0].set_ylabel("training loss", fontsize=10)
    panels[1][0].set_ylabel("relative error of V", fontsize=10)
    legend_below(figure, looks)
    return figure


def _draw(
    axes: Axes, title: str, labels: Sequence[str], points: Callable[[str], Points], looks: Mapping[str, Look]
) -> None:
    for label in labels:
        found = [(x, y) for x, y in points(label) if 0 < y < math.inf]
        if found:
            xs, ys = zip(*found, strict=True)
            axes.plot(xs, ys, color=looks[label].colour, linestyle=looks[label].dashes, linewidth=1.6)
    axes.set_yscale("log")
    axes.set_title(title, loc="left", fontsize=11)
    plain(axes)
