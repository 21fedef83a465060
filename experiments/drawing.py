"""The drawing of the idea: which messages of a mini-batch are fresh, stale, approximated or dropped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from lmc.report.looks import save
from lmc.report.names import looks_of, shade

# A graph of ten nodes: the core of the batch, its halo, and the rest.
PLACES = {
    "a": (0.95, 1.55), "b": (0.75, 0.75), "c": (1.75, 1.15),
    "d": (3.05, 1.75), "e": (3.15, 0.95), "f": (2.85, 0.2),
    "g": (4.45, 1.9), "h": (4.6, 1.05), "i": (4.3, 0.25),
}  # fmt: skip
CORE, HALO = "abc", "def"
EDGES = tuple(
    (pair[0], pair[1]) for pair in ["ab", "ac", "bc", "ad", "ce", "cf", "bf", "de", "dg", "dh", "eh", "fi", "gh", "hi"]
)
GREY, INK, SOFT = "#c9ced4", "#1b1f24", "#55606b"


@dataclass(frozen=True)
class Kind:
    """How a message is known, and how it is drawn."""

    words: str
    colour: str
    dashes: tuple[float, ...]
    width: float = 2.2

    @property
    def style(self) -> tuple[float, tuple[float, ...]]:
        """The style of a line, for matplotlib."""
        return 0, self.dashes


KINDS = {
    "fresh": Kind("fresh: computed in this step", "#00754f", ()),
    "stale": Kind("stale: read from a history", "#2e96cf", (3, 1.6)),
    "mixed": Kind("approximated: mixed, corrected or mapped", "#d35400", (1.2, 1.1)),
    "gone": Kind("dropped", "#b8bdc4", (1, 2.4), 1.2),
}


Messages = tuple[str, str, str | None, str | None, str | None]
"""Kinds of messages: core to core, halo to core, core to halo, halo to halo, outside to halo; None: not computed."""
ALL: Messages = ("fresh", "fresh", "fresh", "fresh", "fresh")


@dataclass(frozen=True)
class Row:
    """One method: its messages in both directions, and what it does in words."""

    method: str
    forward: Messages
    backward: Messages
    note: str


ROWS = (
    Row("full", ALL, ALL, "every node is computed in every step"),
    Row("cluster", ("fresh", "gone", None, None, None), ("fresh", "gone", None, None, None),
        "edges that leave the batch are cut"),
    Row("gas", ("fresh", "stale", None, None, None), ("fresh", "gone", None, None, None),
        "halo states come from a history; halo adjoints are lost"),
    Row("fm", ("fresh", "mixed", "fresh", "gone", "gone"), ("fresh", "gone", None, None, None),
        "histories of the halo take a step towards messages of the core"),
    Row("lmc", ("fresh", "mixed", "fresh", "fresh", "gone"), ("fresh", "mixed", "fresh", "fresh", "gone"),
        "halo rows mix histories and incomplete new values"),
    Row("cmc", ("fresh", "mixed", "fresh", "fresh", "stale"), ("fresh", "mixed", "fresh", "fresh", "gone"),
        "halo states get complete sums: new in the batch, stored outside"),
    Row("imc", ("fresh", "mixed", None, None, None), ("fresh", "mixed", None, None, None),
        "a linear map of core rows replaces the outside; few halo rows or none"),
)  # fmt: skip


SAMPLED: Messages = ("fresh", "mixed", "fresh", "mixed", "mixed")
"""Every row reads a few of its neighbours, which represent all of them."""
PAGES = {
    "full-batch": ROWS[0], "cluster-gcn": ROWS[1], "gas": ROWS[2], "graphfm": ROWS[3], "lmc4conv": ROWS[4],
    "cmc": ROWS[5], "imc": ROWS[6],
    "backward-sgd": Row("backward-sgd", ALL, ALL, "every message is exact, and the gradient is that of the core"),
    "graphsage": Row("graphsage", SAMPLED, SAMPLED, "a few drawn neighbours represent all"),
    "vrgcn": Row("vrgcn", SAMPLED, SAMPLED, "the change of drawn neighbours is added to stored sums"),
    "graphfm-ib": Row("fm-ib", SAMPLED, SAMPLED, "drawn neighbours, averaged with a history"),
    "fastgcn": Row("fastgcn", SAMPLED, SAMPLED, "one drawn set of nodes for all rows of a layer"),
    "ladies": Row("ladies", SAMPLED, SAMPLED, "one drawn set of neighbours for all rows of a layer"),
    "graphsaint": Row("graphsaint", ("mixed", "gone", None, None, None), ("mixed", "gone", None, None, None),
                      "messages in a drawn subgraph are reweighted"),
    "shadow": Row("shadow", ("fresh", "gone", None, None, None), ("fresh", "gone", None, None, None),
                  "every root has a subgraph of its own"),
    "sign": Row("sign", ALL, ALL, "all messages are summed once, before training"),
    "lmc4rec": Row("lmc4rec", ("fresh", "stale", None, None, None), ("fresh", "stale", None, None, None),
                   "both fixed points are solved on the core, with stored halos"),
    "cmc4rec": Row("cmc4rec", ("fresh", "fresh", "fresh", "fresh", "stale"),
                   ("fresh", "fresh", "fresh", "fresh", "stale"), "core and halo are solved, with stored sums outside"),
    "sse": Row("sse", ("fresh", "stale", None, None, None), ("fresh", "gone", None, None, None),
               "one step towards the fixed point"),
}  # fmt: skip
"""The drawing on the page of every method."""


def messages(row: Row) -> Figure:
    """The messages of one method, forward and backward."""
    figure = Figure(figsize=(9, 2.6), dpi=100, facecolor="white")
    for left, words, kinds in ((0.01, "Forward: states", row.forward), (0.51, "Backward: adjoints", row.backward)):
        _draw_graph(figure.add_axes((left, 0.12, 0.48, 0.74)), kinds, named=True)
        figure.text(left + 0.02, 0.93, words, fontsize=10.5, fontweight="bold", color=INK)
    _legend(figure, 8.5)
    return figure


def drawing() -> Figure:
    """One row for each method: its messages forward and backward, and the idea in a line of words."""
    figure = Figure(figsize=(11.6, 0.8 + 1.5 * len(ROWS)), dpi=140, facecolor="white")
    height = 1 / (len(ROWS) + 0.62)
    looks = looks_of([row.method for row in ROWS])
    for column, words in ((0.215, "Forward: states"), (0.62, "Backward: adjoints")):
        figure.text(column, 1 - 0.17 * height, words, fontsize=12.5, fontweight="bold", color=INK)
    for k, row in enumerate(ROWS):
        bottom = 1 - (k + 1.22) * height
        for left, kinds in ((0.2, row.forward), (0.605, row.backward)):
            _draw_graph(figure.add_axes((left, bottom, 0.385, 0.96 * height)), kinds, named=k == 0)
        name = looks[row.method]
        figure.text(0.012, bottom + 0.62 * height, name.name, fontsize=14, fontweight="bold",
                    color=shade(name.colour, -0.15), va="center")  # fmt: skip
        figure.text(0.012, bottom + 0.5 * height, _wrapped(row.note, 27), fontsize=9.2, color=SOFT, va="top",
                    linespacing=1.35)  # fmt: skip
    _legend(figure, 10.5)
    return figure


def _legend(figure: Figure, size: float) -> None:
    handles = [
        Line2D([], [], color=k.colour, linestyle=k.style, linewidth=k.width, label=k.words) for k in KINDS.values()
    ]
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), frameon=False, fontsize=size)


def _wrapped(text: str, width: int) -> str:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{word}"
    return "\n".join(lines)


def _draw_graph(axes: Axes, kinds: Messages, named: bool) -> None:
    """The graph with its messages in one direction."""
    axes.set_xlim(0.1, 5.2)
    axes.set_ylim(-0.3, 2.35)
    axes.set_axis_off()
    _box(axes, 0.4, 1.7, "#e9eef5", "core: the batch" if named else "")
    _box(axes, 2.5, 0.95, "#f2f0ea" if kinds[2] else "#fafafa", "halo: its neighbours" if named else "")
    if named:
        axes.text(4.5, 2.22, "outside", ha="center", fontsize=9, color=SOFT)
    for source, target in (*EDGES, *((other, one) for one, other in EDGES)):
        kind = _kind(source, target, kinds)
        if kind is not None:
            _arrow(axes, source, target, KINDS[kind])
    computed = PLACES if kinds is ALL else CORE + (HALO if kinds[2] else "")
    for node, (x, y) in PLACES.items():
        filled = "#2f3740" if node in CORE else "#7a8591" if node in HALO else GREY
        axes.plot([x], [y], "o", markersize=11, color=filled if node in computed else "white",
                  markeredgecolor=filled, markeredgewidth=1.6, zorder=4)  # fmt: skip


def _kind(source: str, target: str, kinds: Messages) -> str | None:
    """How the message from one node to another is known; None where nobody asks for it."""
    if kinds is ALL:
        return "fresh"
    if target in CORE:
        return kinds[0 if source in CORE else 1]
    if target in HALO:
        return kinds[2 if source in CORE else 3 if source in HALO else 4]
    return None


def _arrow(axes: Axes, source: str, target: str, kind: Kind) -> None:
    axes.add_patch(FancyArrowPatch(
        PLACES[source], PLACES[target], connectionstyle="arc3,rad=0.16", arrowstyle="-|>", mutation_scale=9,
        shrinkA=8, shrinkB=8, color=kind.colour, linestyle=kind.style, linewidth=0.8 * kind.width, zorder=3,
    ))  # fmt: skip


def _box(axes: Axes, left: float, width: float, colour: str, words: str) -> None:
    axes.add_patch(FancyBboxPatch(
        (left, -0.05), width, 2.05, boxstyle="round,pad=0.02,rounding_size=0.16", facecolor=colour,
        edgecolor="#d8dde3", linewidth=1, zorder=0,
    ))  # fmt: skip
    axes.text(left + width / 2, 2.22, words, ha="center", fontsize=9, color=SOFT)


def draw_idea(
    out: Annotated[Path, typer.Option(help="The folder for idea.svg and idea.png.")] = Path("docs/figures"),
) -> None:
    """Draw which messages are fresh, stale, approximated or dropped: seven methods in one figure, and one for each."""
    for kind in ("svg", "png"):
        save(drawing(), out / f"idea.{kind}")
    for page, row in PAGES.items():
        save(messages(row), out / "messages" / f"{page}.png")
