"""Figures of trainings: mean curves with bands of one standard deviation over seeds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, pstdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.paper.item import TITLES, Results, smooth
from experiments.paper.training import Trained, Training
from lmc.report.looks import draw_curve, legend_below, new_figure, plain, plain_decimals
from lmc.report.names import Look, looks_of

MOST_COLUMNS = 4
NAMES = {"seconds": "seconds of training", "at": "epochs", "test": "test accuracy, %", "loss": "training loss"}


def curves(
    title: str, groups: Mapping[str, Training], results: Results, x: str, ys: Sequence[str],
    methods: Sequence[str] = (), names: Mapping[str, str] = TITLES,
) -> Figure | None:  # fmt: skip
    """A panel for every group and every kind of value: "test", "loss", or a kind of error.

    Methods of the same name in ``names`` look the same.
    """
    shown = _trained(groups.values(), methods, results)
    if not shown:
        return None
    named: dict[str, Look] = {}
    looks = {}
    for spec, look in looks_of(shown).items():
        name = names.get(spec, look.name)
        looks[spec] = named.setdefault(name, replace(look, name=name))
    columns = len(groups) if len(groups) <= MOST_COLUMNS else math.ceil(len(groups) / 2)
    rows = [(y, batch) for batch in batched(groups.items(), columns) for y in ys]
    figure = new_figure(1.0 + 3.0 * columns, 0.9 + 2.6 * len(rows), title)
    panels = figure.subplots(len(rows), columns, squeeze=False)
    for row, (y, batch) in zip(panels, rows, strict=True):
        for axes, (name, group) in zip(row, batch, strict=False):
            _draw_panel(axes, {m: results.of(group, m) for m in shown}, x, y, looks)
            axes.set_title(name, loc="left", fontsize=10)
        row[0].set_ylabel(NAMES.get(y, f"relative error, {y}"), fontsize=9.5)
    for axes in panels[-1]:
        axes.set_xlabel(NAMES[x], fontsize=9.5)
    legend_below(figure, named, columns=max(1, int(columns * 2.2)))
    return figure


def _trained(groups: Iterable[Training], methods: Sequence[str], results: Results) -> list[str]:
    """The methods of the groups, or those of ``methods``, that have an evaluation."""
    found = dict.fromkeys((m, g) for g in groups for m in (methods or g.specs) if any(r.at for r in results.of(g, m)))
    return list(dict.fromkeys(method for method, _ in found))


def _draw_panel(
    axes: Axes, records: Mapping[str, Sequence[Trained]], x: str, y: str, looks: Mapping[str, Look]
) -> None:
    """The curves of all methods; errors and losses on a logarithmic axis."""
    for method, those in records.items():
        _draw(axes, those, x, y, looks[method])
    plain(axes)
    if y != "test":
        axes.set_yscale("log")
        plain_decimals(axes.yaxis)


def batched(pairs: Iterable[tuple[str, Training]], size: int) -> list[list[tuple[str, Training]]]:
    """Lists of at most ``size`` pairs."""
    found = list(pairs)
    return [found[k : k + size] for k in range(0, len(found), size)]


def _draw(axes: Axes, records: Sequence[Trained], x: str, y: str, look: Look) -> None:
    """The mean of all seeds over the evaluations that all have, and the band around it."""
    found = [points for record in records if (points := _points(record, x, y))]
    length = min(map(len, found), default=0)
    if not length:
        return
    columns = list(zip(*(smooth([value for _, value in points[:length]]) for points in found), strict=True))
    xs = [fmean(points[k][0] for points in found) for k in range(length)]
    means = [fmean(column) for column in columns]
    draw_curve(axes, list(zip(xs, means, strict=True)), look)
    spread = [pstdev(column) for column in columns]
    low, high = ([m + sign * s for m, s in zip(means, spread, strict=True)] for sign in (-1, 1))
    axes.fill_between(xs, low, high, color=look.colour, alpha=0.18, linewidth=0)


def _points(record: Trained, x: str, y: str) -> list[tuple[float, float]]:
    """The points of one curve."""
    if y in ("test", "loss"):
        values = [(100 if y == "test" else 1) * value for value in getattr(record, y)]
        return list(zip(getattr(record, x), values, strict=True))
    pairs = zip(getattr(record, x), record.errors, strict=True)
    return [(at, errors[y]) for at, errors in pairs if y in errors]
