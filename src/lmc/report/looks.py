"""How figures look: the colour and the name of every method, axes, legends. A figure is a value; there is no global
state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

Dashes = tuple[float, Sequence[float]]
Points = Sequence[tuple[float, float]]

# Okabe and Ito's colours, which colour-blind readers can tell apart; a method has the same colour in every figure.
_METHODS = {
    "full": ("full batch", "#4d4d4d"),
    "cluster": ("Cluster-GCN", "#e69f00"),
    "gas": ("GAS", "#56b4e9"),
    "fm": ("GraphFM-OB", "#009e73"),
    "lmc": ("LMC", "#d55e00"),
    "cmc": ("CMC", "#0072b2"),
    "backward-sgd": ("backward SGD", "#cc79a7"),
    "sse": ("SSE", "#009e73"),
    "lmc4rec": ("LMC4Rec", "#d55e00"),
    "cmc4rec": ("CMC4Rec", "#0072b2"),
}
_OTHER_COLOURS = ("#882255", "#999999", "#44aa99", "#b8a800")
# Variants of one method share its hue; they differ in lightness, lines also in dashes and bars in hatching.
_SHADES = (0.0, 0.45, -0.4, 0.7)
_DASHES: tuple[Dashes, ...] = ((0, ()), (0, (5, 2)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
_HATCHES = ("", "///", "...", "xxx")
MARKERS = "osD^vP*X<>"
GRID_COLOUR = "#e2e2e2"


@dataclass(frozen=True)
class Look:
    """How one method is drawn everywhere in a figure."""

    name: str
    colour: str
    dashes: Dashes
    hatch: str


def looks_of(labels: Sequence[str]) -> dict[str, Look]:
    """How each method is drawn, by its spec, e.g. "lmc" or "lmc:alpha=0.8"."""
    looks: dict[str, Look] = {}
    bases: list[str] = []
    for label in labels:
        base, _, options = label.partition(":")
        unknown = dict.fromkeys(b for b in bases if b not in _METHODS and b != base)
        name, colour = _METHODS.get(base, (base, _OTHER_COLOURS[len(unknown) % len(_OTHER_COLOURS)]))
        name += f" ({options.replace(':', ', ')})" if options else ""
        variant = bases.count(base) % len(_DASHES)
        looks[label] = Look(name, _shade(colour, _SHADES[variant]), _DASHES[variant], _HATCHES[variant])
        bases.append(base)
    return looks


def _shade(colour: str, amount: float) -> str:
    """The colour, closer to white for positive amounts and closer to black for negative ones."""
    goal = 1.0 if amount > 0 else 0.0
    red, green, blue = (c + abs(amount) * (goal - c) for c in to_rgb(colour))
    return to_hex((red, green, blue))


def new_figure(width: float, height: float, title: str) -> Figure:
    """An empty figure whose panels are laid out without overlaps."""
    figure = Figure(figsize=(width, height), dpi=140, facecolor="white", layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    return figure


def draw_curve(axes: Axes, points: Points, look: Look, **style: Any) -> None:
    """A line through the points; a single point has a marker, since a line of one point is invisible."""
    if points:
        style = {"linewidth": 1.6, "marker": "o" if len(points) == 1 else ""} | style
        axes.plot(*zip(*points, strict=True), color=look.colour, linestyle=look.dashes, **style)


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
    columns = columns or len(handles)
    figure.legend(handles=handles, loc="outside lower left", ncols=columns, frameon=False, fontsize=9.5)


def plain(axes: Axes, grid: Literal["both", "x", "y"] = "y") -> None:
    """Grid lines behind the curves, and no frame at the top and on the right."""
    axes.grid(axis=grid, color=GRID_COLOUR, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def plain_decimals(axis: Axis) -> None:
    """Ticks of a logarithmic axis as plain numbers: 0.2, 0.5, 1."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format that the name ends with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
