"""The figure of growing cost: time and memory over the size of a graph and over clusters per batch, logarithmic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from lmc.report.figure import looks_of

Points = Sequence[tuple[float, float]]
_MARKERS = "osD^vP*X<>"


@dataclass(frozen=True)
class Growth:
    """One panel: curves by method; ``proportional`` draws lines on which y grows as x does."""

    title: str
    xlabel: str
    curves: Mapping[str, Points]
    proportional: bool = False


def scale_figure(panels: Sequence[Growth], title: str) -> Figure:
    """Panels two in a row; one without a point is left out."""
    panels = [panel for panel in panels if any(panel.curves.values())]
    labels = list(dict.fromkeys(label for panel in panels for label in panel.curves))
    looks = looks_of(labels)
    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(10.5, 1.2 + 3.9 * rows), dpi=140, facecolor="white", layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    for place, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, 2, place)
        for k, (label, points) in enumerate((label, panel.curves.get(label, ())) for label in labels):
            look = looks[label]
            xs, ys = [x for x, _ in points], [y for _, y in points]
            axes.plot(
                xs, ys, color=look.colour, linestyle=look.dashes, marker=_MARKERS[k % len(_MARKERS)], markersize=5
            )
        _dress(axes, panel)
    handles = [
        Line2D([], [], color=looks[label].colour, linestyle=looks[label].dashes, marker=_MARKERS[k % len(_MARKERS)],
               label=looks[label].name)
        for k, label in enumerate(labels)
    ]  # fmt: skip
    if any(panel.proportional for panel in panels):
        handles.append(Line2D([], [], color="#bbbbbb", linestyle=":", label="proportional"))
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), frameon=False, fontsize=9.5)
    return figure


def _dress(axes: Axes, panel: Growth) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    points = [point for curve in panel.curves.values() for point in curve]
    (left, right), (low, high) = ((min(v), max(v)) for v in zip(*points, strict=True))
    axes.set_xlim(left / 1.25, right * 1.25)
    axes.set_ylim(low / 1.4, high * 1.4)
    if panel.proportional:
        start = low / 1.4 * left / right
        while start < high * 1.4:
            axes.plot(
                [left, right], [start, start * right / left], color="#bbbbbb", linestyle=":", linewidth=1, zorder=0
            )
            start *= 4
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_title(panel.title, loc="left", fontsize=11)
    axes.set_xlabel(panel.xlabel, fontsize=10)
    axes.grid(color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
