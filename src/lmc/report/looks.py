"""How figures look: axes, curves and the names beside them. A figure is a value; there is no global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from lmc.report.names import Look, shade

Points = Sequence[tuple[float, float]]

MARKERS = "osD^vP*X<>"
GRID_COLOUR = "#e2e2e2"
BESIDE = 9
"""The most methods whose names fit beside the lines of a panel; more are listed below the figure."""


def new_figure(width: float, height: float, title: str) -> Figure:
    """An empty figure whose panels are laid out without overlaps."""
    figure = Figure(figsize=(width, height), dpi=140, facecolor="white", layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    return figure


def entitle(axes: Axes, title: str, size: float = 11, **style: Any) -> None:
    """Write the title of a panel on its left, with a capital first letter."""
    axes.set_title(title[:1].upper() + title[1:], loc="left", fontsize=size, **style)


def draw_curve(axes: Axes, points: Points, look: Look, **style: Any) -> None:
    """A line through the points; a single point has a marker, since a line of one point is invisible."""
    if points:
        style = {"linewidth": 1.6, "marker": "o" if len(points) == 1 else ""} | style
        axes.plot(*zip(*points, strict=True), color=look.colour, linestyle=look.dashes, **style)


def name_lines(axes: Axes, ends: Mapping[str, tuple[float, float]], looks: Mapping[str, Look]) -> None:
    """Write the name of every method to the right of the panel, in the order of the lines' ends, and join the two.

    The limits of the axes must be final, since the names keep a distance that is a share of the panel's height.
    """
    step, to_share, (low, high) = 0.085, axes.transData + axes.transAxes.inverted(), axes.get_ylim()
    ends = {label: (x, min(max(y, low), high)) for label, (x, y) in ends.items()}
    found = sorted((float(to_share.transform(end)[1]), label) for label, end in ends.items())
    upwards, downwards = [height for height, _ in found], [height for height, _ in found]
    for k in range(1, len(found)):
        upwards[k] = max(upwards[k], upwards[k - 1] + step)
        downwards[-k - 1] = min(downwards[-k - 1], downwards[-k] - step)
    for k, (_, label) in enumerate(found):
        mean = (upwards[k] + downwards[k]) / 2  # both lists keep the distance, and so does their mean
        place = min(max(mean, step * k), 1 - step * (len(found) - 1 - k))  # within the panel
        colour = shade(looks[label].colour, -0.2)
        axes.annotate(
            looks[label].name, ends[label], (1.03, place), textcoords="axes fraction", va="center", fontsize=9,
            color=colour, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "alpha": 0.6, "relpos": (0, 0.5)},
        )  # fmt: skip


def legend_below(
    figure: Figure,
    looks: Mapping[str, Look],
    *,
    lines: bool = True,
    markers: bool = False,
    columns: int | None = None,
    more: Sequence[Line2D] = (),
) -> None:
    """A legend of all methods under the panels; ``more`` handles follow."""
    handles = [
        Line2D([], [], color=look.colour, linestyle=look.dashes if lines else "", label=look.name,
               marker=MARKERS[k % len(MARKERS)] if markers else "")
        for k, look in enumerate(looks.values())
    ] + list(more)  # fmt: skip
    if not handles:
        return
    columns = columns or len(handles)
    figure.legend(handles=handles, loc="outside lower left", ncols=columns, frameon=False, fontsize=9.5)


def plain(axes: Axes, grid: Literal["both", "x", "y"] = "y") -> None:
    """Grid lines behind the curves, and no frame at the top and on the right."""
    axes.grid(axis=grid, color=GRID_COLOUR, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def plain_decimals(axis: Axis, subs: Sequence[float] = (1.0, 2.0, 5.0)) -> None:
    """Ticks of a logarithmic axis as plain numbers: 0.2, 0.5, 1."""
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format that the name ends with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
