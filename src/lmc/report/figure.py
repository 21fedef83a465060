"""The figure of a comparison: loss, accuracy, gradient error. No global state: figures are values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from lmc.results import EpochRecord, RunRecord

# Okabe and Ito's colours, told apart by colour-blind readers too; a method keeps its colour in every figure.
_COLOURS = {
    "full": "#4d4d4d",
    "cluster": "#e69f00",
    "gas": "#56b4e9",
    "fm": "#009e73",
    "lmc": "#d55e00",
    "backward-sgd": "#cc79a7",
}
_SPARE = ("#0072b2", "#f0e442", "#999999", "#882255", "#44aa99")
_DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1, 1, 1)))  # type: ignore[assignment]
_NAMES = {
    "full": "full batch",
    "cluster": "Cluster-GCN",
    "gas": "GAS",
    "fm": "GraphFM-OB",
    "lmc": "LMC",
    "backward-sgd": "backward SGD",
}


@dataclass(frozen=True)
class Look:
    """How one method is drawn everywhere in a figure."""

    name: str
    colour: str
    dashes: object


def compare_figure(runs: Mapping[str, RunRecord], errors: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """Loss and accuracy over epochs and over seconds, and the gradient error of every layer.

    Args:
        runs: the record of every method by its label, e.g. "lmc" or "lmc:alpha=0.8".
        errors: {label: {layer: relative gradient error}}; methods without an error are left out of the bars.
        title: over the figure.
    """
    looks = _looks(list(runs))
    figure = Figure(figsize=(12.5, 6.4), dpi=150, facecolor="white")
    shape = (2, 3) if errors else (2, 2)
    grid = figure.add_gridspec(
        *shape,
        left=0.06,
        right=0.985,
        top=0.83,
        bottom=0.09,
        hspace=0.34,
        wspace=0.26,
        width_ratios=[1, 1, 1.15][: shape[1]],
    )
    spots = [figure.add_subplot(grid[row, column]) for row in range(2) for column in range(2)]
    _losses(spots[0], runs, looks, _epoch, "epoch")
    _losses(spots[1], runs, looks, _seconds, "seconds of training")
    _scores(spots[2], runs, looks, _epoch, "epoch")
    _scores(spots[3], runs, looks, _seconds, "seconds of training")
    if errors:
        _bars(figure.add_subplot(grid[:, 2]), errors, looks)
    figure.suptitle(title, x=0.06, y=0.975, ha="left", va="top", fontsize=14, fontweight="bold")
    handles = [Line2D([], [], color=l.colour, linestyle=l.dashes, linewidth=2.6, label=l.name) for l in looks.values()]
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.052, 0.935), ncols=min(len(handles), 7), frameon=False,
        fontsize=11, handlelength=1.8, columnspacing=1.8,
    )  # fmt: skip
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format its name ends with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _looks(labels: Sequence[str]) -> dict[str, Look]:
    """Variants of one method share its colour and differ in their dashes."""
    looks, seen, spare = {}, dict.fromkeys(labels, 0), iter(_SPARE * len(labels))
    colours: dict[str, str] = {}
    for label in labels:
        base, _, options = label.partition(":")
        if base not in colours:
            colours[base] = _COLOURS.get(base) or next(spare)
            seen[base] = 0
        name = _NAMES.get(base, base) + (f" ({options.replace(':', ', ')})" if options else "")
        looks[label] = Look(name, colours[base], _DASHES[seen[base] % len(_DASHES)])
        seen[base] += 1
    return looks


def _epoch(record: EpochRecord) -> float:
    return record.epoch


def _seconds(record: EpochRecord) -> float:
    return record.seconds


def _losses(
    axes: Axes, runs: Mapping[str, RunRecord], looks: Mapping[str, Look], x: Callable[[EpochRecord], float], label: str
) -> None:
    lowest, highest = math.inf, -math.inf
    for name, run in runs.items():
        points = [(x(e), e.loss) for e in run.epochs if math.isfinite(e.loss) and e.loss > 0]
        if not points:
            continue
        axes.plot(*zip(*points, strict=True), color=looks[name].colour, linestyle=looks[name].dashes, linewidth=1.7)
        lowest, highest = min(lowest, *(p[1] for p in points)), max(highest, *(p[1] for p in points))
    if lowest > 0 and highest / lowest > 20:
        axes.set_yscale("log")
    _dress(axes, "training loss", label)


def _scores(
    axes: Axes, runs: Mapping[str, RunRecord], looks: Mapping[str, Look], x: Callable[[EpochRecord], float], label: str
) -> None:
    values: list[float] = []
    for name, run in runs.items():
        scored = [e for e in run.epochs if e.scores]
        look = looks[name]
        for split, width, alpha in (("val", 1.0, 0.4), ("test", 1.7, 1.0)):
            points = [(x(e), 100 * e.scores[split]) for e in scored if e.scores]
            if points:
                axes.plot(
                    *zip(*points, strict=True), color=look.colour, linestyle=look.dashes, linewidth=width, alpha=alpha
                )
                values += [p[1] for p in points]
    if values:
        # the first few epochs are low for everyone: show where the methods differ
        values.sort()
        low, high = values[len(values) // 10], values[-1]
        margin = max(1.0, 0.06 * (high - low))
        axes.set_ylim(max(0.0, low - margin), min(100.0, high + margin))
    _dress(axes, "accuracy, %", label)


def _bars(axes: Axes, errors: Mapping[str, Mapping[str, float]], looks: Mapping[str, Look]) -> None:
    layers = list(dict.fromkeys(layer for by_layer in errors.values() for layer in by_layer))
    width = 0.8 / len(errors)
    for k, (name, by_layer) in enumerate(errors.items()):
        offset = (k - (len(errors) - 1) / 2) * width
        places = [i + offset for i, layer in enumerate(layers) if by_layer.get(layer, 0) > 0]
        heights = [by_layer[layer] for layer in layers if by_layer.get(layer, 0) > 0]
        axes.bar(places, heights, width=0.92 * width, color=looks[name].colour)
    axes.set_yscale("log")
    axes.set_xticks(range(len(layers)), layers)
    _dress(axes, "relative gradient error", "")


def _dress(axes: Axes, title: str, xlabel: str) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(xlabel, fontsize=10)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
