"""The figure of a table: one bar for each row and column, with a mark for a second value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lmc.report.looks import looks_of, new_figure, plain, plain_decimals

_DIAMOND: dict[str, Any] = {
    "marker": "D",
    "markersize": 4,
    "color": "black",
    "markerfacecolor": "white",
    "linestyle": "",
}


@dataclass(frozen=True)
class Panel:
    """One column of the table.

    Args:
        title: text above it.
        bars: a value for each row; None where there is none.
        marks: a second value for each row, drawn as a diamond.
        marked: what the diamonds mean; "" where there are none.
        limit: a value at which a line is drawn, such as 1 for a share.
        log: whether the axis is logarithmic.
        numbers: whether the values are written beside the bars, where marks may cover them.
    """

    title: str
    bars: Sequence[float | None]
    marks: Sequence[float | None] = ()
    marked: str = ""
    limit: float | None = None
    log: bool = False
    numbers: bool = True


def rows_figure(names: Sequence[str], labels: Sequence[str], panels: Sequence[Panel], title: str) -> Figure:
    """Panels side by side over the same rows.

    Args:
        names: of the rows, from top to bottom.
        labels: the spec of every row's method, which decides the colour.
        title: text above the figure.
    """
    looks = looks_of(list(dict.fromkeys(labels)))
    figure = new_figure(2.6 + 4.2 * len(panels), 1.5 + 0.24 * len(names), title)
    first: Axes | None = None
    for place, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), place, sharey=first)
        first = first or axes
        _draw(axes, panel, [looks[label].colour for label in labels])
        axes.tick_params(labelleft=place == 1)
    if first is not None:
        first.set_yticks(range(len(names)), names, fontsize=8.5)
        first.set_ylim(len(names) - 0.4, -0.6)
    return figure


def _draw(axes: Axes, panel: Panel, colours: Sequence[str]) -> None:
    bars, marks = ([(i, v) for i, v in enumerate(values) if v is not None] for values in (panel.bars, panel.marks))
    known = [v for _, v in (*bars, *marks) if v > 0]
    least = min(known, default=1.0) / 2 if panel.log else 0.0
    if panel.log:
        axes.set_xscale("log")
        plain_decimals(axes.xaxis)
    for i, value in bars:
        axes.barh(i, value - least, 0.72, left=least, color=colours[i])
        if panel.numbers:
            text = f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
            axes.annotate(text, (value, i), (5, 0), textcoords="offset points", va="center", fontsize=7.5)
    for i, value in marks:
        axes.plot([value], [i], **_DIAMOND)
    if panel.limit is not None:
        axes.axvline(panel.limit, color="#4d4d4d", linewidth=0.9, zorder=0)
    if panel.marked:
        diamond = Line2D([], [], **_DIAMOND)
        axes.legend([diamond], [panel.marked], loc="lower right", fontsize=8, frameon=True, framealpha=0.9)
    if known:
        axes.set_xlim(least, max(known) * (2.2 if panel.log else 1.14))
    axes.set_title(panel.title, loc="left", fontsize=10.5)
    plain(axes, grid="x")
