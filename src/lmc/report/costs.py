"""The figures of costs: bars for the rows of a table, and curves over the size of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lmc.report.looks import (
    BESIDE,
    MARKERS,
    Points,
    draw_curve,
    entitle,
    legend_below,
    name_lines,
    new_figure,
    plain,
    plain_decimals,
)
from lmc.report.names import looks_of

_DIAMOND: dict[str, Any] = {
    "marker": "D",
    "markersize": 4,
    "color": "black",
    "markerfacecolor": "white",
    "linestyle": "",
}
_DOTTED: dict[str, Any] = {"color": "#bbbbbb", "linestyle": ":"}
_MODELLED = (0, (4, 2.5))


@dataclass(frozen=True)
class Panel:
    """One column of a table, drawn as a bar for each row.

    Args:
        bars: a value for each row; None where there is none.
        marks: a second value for each row, drawn as a diamond.
        marked: what the diamonds mean.
    """

    title: str
    bars: Sequence[float | None]
    marks: Sequence[float | None] = ()
    marked: str = ""
    log: bool = False


def rows_figure(names: Sequence[str], labels: Sequence[str], panels: Sequence[Panel], title: str) -> Figure:
    """Panels side by side over the same rows; ``labels``, the specs of the rows' methods, decide the colours."""
    looks = looks_of(list(dict.fromkeys(labels)))
    figure = new_figure(2.6 + 4.2 * len(panels), 1.5 + 0.24 * len(names), title)
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    pad = 22 if any(panel.marked for panel in panels) else 6  # the legend is between title and panel
    for axes, panel in zip(all_axes, panels, strict=True):
        _draw_bars(axes, panel, [looks[label].colour for label in labels])
        entitle(axes, panel.title + ", logarithmic" * panel.log, 10.5, pad=pad)
    words = [name.replace(label, looks[label].name) for name, label in zip(names, labels, strict=True)]
    all_axes[0].set_yticks(range(len(names)), words, fontsize=8.5)
    all_axes[0].set_ylim(len(names) - 0.4, -0.6)
    return figure


def _draw_bars(axes: Axes, panel: Panel, colours: Sequence[str]) -> None:
    bars, marks = _known(panel.bars), _known(panel.marks)
    known = [v for _, v in (*bars, *marks) if v > 0]
    least = min(known, default=1.0) / 2 if panel.log else 0.0
    if panel.log:
        axes.set_xscale("log")
        plain_decimals(axes.xaxis)
    for i, value in bars:
        mark = dict(marks).get(i, value)
        beside = 0 <= mark - value < 0.15 * max(known, default=1.0)  # a diamond where the number would be
        _draw_bar(axes, panel, i, value, least, mark if beside else value, colours[i])
    for i, value in marks:
        axes.plot([value], [i], **_DIAMOND)
    if panel.marked:
        diamond = Line2D([], [], **_DIAMOND)
        place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0, "borderpad": 0.3}
        axes.legend([diamond], [panel.marked], fontsize=8.5, frameon=False, **place)
    if known:
        axes.set_xlim(least, max(known) * (2.2 if panel.log else 1.14))
    plain(axes, grid="x")


def _draw_bar(axes: Axes, panel: Panel, row: int, value: float, least: float, end: float, colour: str) -> None:
    """A bar, with its value at ``end``. The length of a bar means nothing on a logarithmic axis: a point shows the
    value there, and a thin line leads to it."""
    axes.barh(row, value - least, 0.08 if panel.log else 0.72, left=least, color=colour)
    if panel.log:
        axes.plot([value], [row], "o", color=colour, markersize=6)
    text = f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
    axes.annotate(text, (end, row), (6, 0), textcoords="offset points", va="center", fontsize=7.5)


def _known(values: Sequence[float | None]) -> list[tuple[int, float]]:
    return [(row, value) for row, value in enumerate(values) if value is not None]


@dataclass(frozen=True)
class Growth:
    """One panel: curves by method; ``proportional`` draws lines on which y grows in proportion to x.

    ``modelled`` curves are dashed, and continue those that were measured.
    """

    title: str
    xlabel: str
    curves: Mapping[str, Points]
    proportional: bool = False
    modelled: Mapping[str, Points] = field(default_factory=dict)

    @property
    def points(self) -> list[tuple[float, float]]:
        """All points, measured and modelled."""
        return [point for curves in (self.curves, self.modelled) for curve in curves.values() for point in curve]


def scale_figure(panels: Sequence[Growth], title: str) -> Figure:
    """Panels with logarithmic axes, two in a row; one without points is left out."""
    panels = [panel for panel in panels if panel.points]
    looks = looks_of(list(dict.fromkeys(label for panel in panels for label in (*panel.curves, *panel.modelled))))
    rows = -(-len(panels) // 2)
    figure = new_figure(12.0, 1.2 + 3.9 * rows, title)
    for place, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, 2, place)
        for k, (label, look) in enumerate(looks.items()):
            marker = MARKERS[k % len(MARKERS)]
            dashed = replace(look, dashes=_MODELLED)
            draw_curve(
                axes, panel.modelled.get(label, ()), dashed, marker=marker, markersize=5, markerfacecolor="white"
            )
            draw_curve(axes, panel.curves.get(label, ()), look, marker=marker, markersize=5)
        _draw_scales(axes, panel)
        if len(looks) <= BESIDE:
            ends = {**panel.curves, **panel.modelled}
            name_lines(axes, {label: curve[-1] for label, curve in ends.items() if curve}, looks)
    legend_below(figure, looks if len(looks) > BESIDE else {}, markers=True, more=_line_kinds(panels))
    return figure


def _line_kinds(panels: Sequence[Growth]) -> list[Line2D]:
    """What the kinds of lines mean, for the legend; empty where no line of proportional growth is drawn."""
    if not any(panel.proportional for panel in panels):
        return []
    if not any(panel.modelled for panel in panels):
        return [Line2D([], [], **_DOTTED, label="growth in proportion to the size")]
    grey: dict[str, Any] = {"color": "#4d4d4d", "marker": "o"}
    return [
        Line2D([], [], **_DOTTED, label="in proportion to the ranks"),
        Line2D([], [], **grey, label="measured"),
        Line2D([], [], **grey, linestyle=_MODELLED, markerfacecolor="white", label="modelled"),
    ]


def _draw_scales(axes: Axes, panel: Growth) -> None:
    """Logarithmic axes around the points, and the lines of proportional growth."""
    axes.loglog()
    (left, right), (low, high) = ((min(v), max(v)) for v in zip(*panel.points, strict=True))
    axes.set_xlim(left / 1.25, right * 1.25)
    axes.set_ylim(low / 1.4, high * 1.4)
    if panel.proportional and panel.modelled:  # one line, through the first point
        (x, y), *_ = panel.points
        axes.plot([x, right], [y, y * right / x], **_DOTTED, linewidth=1, zorder=0)
    elif panel.proportional:
        start = low / 1.4 * left / right
        while start < high * 1.4:
            axes.plot([left, right], [start, start * right / left], **_DOTTED, linewidth=1, zorder=0)
            start *= 4
    plain_decimals(axes.xaxis)
    if panel.modelled:
        axes.set_xticks(sorted({x for x, _ in panel.points}), minor=False)
        axes.minorticks_off()
    plain_decimals(axes.yaxis)
    entitle(axes, panel.title)
    axes.set_xlabel(f"{panel.xlabel} (both axes logarithmic)", fontsize=10)
    plain(axes, grid="both")
