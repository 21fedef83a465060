"""The figure of growing cost: time and memory over the size of a graph and over clusters per batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lmc.report.looks import MARKERS, legend_below, looks_of, new_figure, plain, plain_decimals

Points = Sequence[tuple[float, float]]
_DOTTED: dict[str, Any] = {"color": "#bbbbbb", "linestyle": ":"}


@dataclass(frozen=True)
class Growth:
    """One panel: curves by method; ``proportional`` draws lines on which y grows in proportion to x."""

    title: str
    xlabel: str
    curves: Mapping[str, Points]
    proportional: bool = False


def scale_figure(panels: Sequence[Growth], title: str) -> Figure:
    """Panels with logarithmic axes, two in a row; one without points is left out."""
    panels = [panel for panel in panels if any(panel.curves.values())]
    looks = looks_of(list(dict.fromkeys(label for panel in panels for label in panel.curves)))
    rows = -(-len(panels) // 2)
    figure = new_figure(10.5, 1.2 + 3.9 * rows, title)
    for place, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, 2, place)
        for k, (label, look) in enumerate(looks.items()):
            points = panel.curves.get(label, ())
            xs, ys = [x for x, _ in points], [y for _, y in points]
            axes.plot(xs, ys, color=look.colour, linestyle=look.dashes, marker=MARKERS[k % len(MARKERS)], markersize=5)
        _label(axes, panel)
    proportional = [Line2D([], [], **_DOTTED, label="proportional")]
    legend_below(figure, looks, markers=True, more=proportional if any(p.proportional for p in panels) else ())
    return figure


def _label(axes: Axes, panel: Growth) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    points = [point for curve in panel.curves.values() for point in curve]
    (left, right), (low, high) = ((min(v), max(v)) for v in zip(*points, strict=True))
    axes.set_xlim(left / 1.25, right * 1.25)
    axes.set_ylim(low / 1.4, high * 1.4)
    if panel.proportional:
        start = low / 1.4 * left / right
        while start < high * 1.4:
            axes.plot([left, right], [start, start * right / left], **_DOTTED, linewidth=1, zorder=0)
            start *= 4
    for axis in (axes.xaxis, axes.yaxis):
        plain_decimals(axis)
    axes.set_title(panel.title, loc="left", fontsize=11)
    axes.set_xlabel(panel.xlabel, fontsize=10)
    plain(axes, grid="both")
