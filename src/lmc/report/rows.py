"""The figure of a table: one bar a row and column, with a mark where it was predicted or is to be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from lmc.report.figure import looks_of


@dataclass(frozen=True)
class Panel:
    """One column.

    Args:
        title: over it.
        bars: a value a row; None where there is none.
        marks: a second value a row, drawn as a diamond.
        marked: what the diamonds are; "" where there are none.
        limit: a line to be seen, such as 1 for a share.
        log: a logarithmic axis.
        numbers: write the values beside the bars; marks that lie anywhere would cover them.
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
        labels: the method of every row, which has its colour.
        title: over the figure.
    """
    looks = looks_of(list(dict.fromkeys(labels)))
    height = 1.5 + 0.24 * len(names)
    figure = Figure(figsize=(2.6 + 4.2 * len(panels), height), dpi=140, facecolor="white", layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
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
    if panel.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    known = [v for v in (*panel.bars, *panel.marks) if v is not None and v > 0]
    least = min(known, default=1.0) / 2 if panel.log else 0.0
    for i, value in enumerate(panel.bars):
        if value is not None:
            axes.barh(i, value - least, 0.72, left=least, color=colours[i])
        if value is not None and panel.numbers:
            axes.annotate(
                f"{value:.3g}" if value < 1000 else f"{value:,.0f}",
                (value, i), (5, 0), textcoords="offset points", va="center", fontsize=7.5,
            )  # fmt: skip
    for i, value in enumerate(panel.marks):
        if value is not None:
            axes.plot([value], [i], marker="D", markersize=4, color="black", markerfacecolor="white", linestyle="")
    if panel.limit is not None:
        axes.axvline(panel.limit, color="#4d4d4d", linewidth=0.9, zorder=0)
    if panel.marked:
        mark = Line2D([], [], marker="D", markersize=4, color="black", markerfacecolor="white", linestyle="")
        axes.legend([mark], [panel.marked], loc="lower right", fontsize=8, frameon=True, framealpha=0.9)
    if known:
        axes.set_xlim(least, max(known) * (2.2 if panel.log else 1.14))
    axes.set_title(panel.title, loc="left", fontsize=10.5)
    axes.grid(axis="x", color="#e2e2e2", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8.5)
