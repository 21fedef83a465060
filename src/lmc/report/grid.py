"""The figure of a grid of settings: losses relative to one method's, one panel a norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lmc.report.figure import looks_of

Point = tuple[float, float, float]
"""Mean, lowest and highest."""

_MARKERS = "osD^vP*X<>"
_CEILING = 1.3
"""Panels end here: one method that fails must not flatten all others into a line."""


def grid_figure(
    panels: Mapping[str, Mapping[str, Sequence[Point | None]]],
    settings: Mapping[str, Sequence[str]],
    title: str,
    baseline: str,
) -> Figure:
    """One marker a method and setting, with a bar from the lowest to the highest seed.

    Args:
        panels: {norm: {method: a point per setting}}; None where there is nothing to draw.
        settings: the names of the settings of each panel, along x.
        title: over the figure.
        baseline: the method whose loss is 1.
    """
    labels = list(dict.fromkeys(label for methods in panels.values() for label in methods))
    looks = looks_of(labels)
    widest = max((len(names) for names in settings.values()), default=1)
    width = max(6.5, 1.5 + 0.16 * widest * max(3, len(labels)))
    figure = Figure(figsize=(width, 1.6 + 3.0 * len(panels)), dpi=140, facecolor="white", layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    for place, (norm, methods) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(len(panels), 1, place)
        for k, label in enumerate(labels):
            shift = 0.7 * (k / max(1, len(labels) - 1) - 0.5)
            _draw(axes, methods.get(label, ()), shift, looks[label].colour, _MARKERS[k % len(_MARKERS)])
        _dress(axes, norm, settings[norm], baseline)
    figure.legend(
        handles=[
            Line2D([], [], color=looks[label].colour, marker=_MARKERS[k % len(_MARKERS)], linestyle="", label=name)
            for k, (label, name) in enumerate((label, looks[label].name) for label in labels)
        ],
        loc="outside lower left",
        ncols=max(1, min(len(labels), int(width / 1.9))),
        frameon=False,
        fontsize=9.5,
    )
    return figure


def _draw(axes: Axes, points: Sequence[Point | None], shift: float, colour: str, marker: str) -> None:
    for i, point in enumerate(points):
        if point is None:
            continue
        mean, low, high = point
        if mean > _CEILING:
            axes.annotate(
                f"{mean:.3g}", (i + shift, 1.0), xycoords=("data", "axes fraction"), ha="center", va="top",
                rotation=90, fontsize=7.5, color=colour,
            )  # fmt: skip
            continue
        axes.vlines(i + shift, low, min(high, _CEILING), color=colour, linewidth=1.6, alpha=0.6)
        axes.plot([i + shift], [mean], color=colour, marker=marker, markersize=5, linestyle="")


def _dress(axes: Axes, norm: str, names: Sequence[str], baseline: str) -> None:
    axes.set_title(f"norm {norm}", loc="left", fontsize=11)
    axes.set_ylabel(f"loss / {baseline}, by seed", fontsize=10)
    axes.axhline(1.0, color="#4d4d4d", linewidth=0.9, zorder=0)
    for i in range(1, len(names)):
        axes.axvline(i - 0.5, color="#eeeeee", linewidth=0.8, zorder=0)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xticks(range(len(names)), names, fontsize=8.5)
    axes.grid(axis="y", color="#e2e2e2", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
