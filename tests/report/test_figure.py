"""The figure from records made by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.text import Text

from lmc.methods import METHODS
from lmc.report import compare_figure, save
from lmc.report.names import DARK, LIGHT, looks_of
from lmc.report.names import METHODS as NAMES
from lmc.results import EpochRecord, RunRecord, target_score


def record(rate: float, epochs: int = 10, scored: bool = True) -> RunRecord:
    def one(epoch: int) -> EpochRecord:
        share = 1 - math.exp(-rate * epoch)
        scores = {"train": share, "val": share - 0.01, "test": share - 0.02} if scored else None
        return EpochRecord(epoch, 2 * (1 - share) + 0.1, 0.5 * epoch, scores)

    return RunRecord({}, tuple(one(e) for e in range(1, epochs + 1)))


ERRORS = {"gas": {"layer 1": 0.4, "layer 2": 0.1}, "lmc": {"layer 1": 0.02, "layer 2": 0.01}, "full": {}}


def test_five_panels_with_a_curve_for_every_run(tmp_path: Path) -> None:
    runs = {"full": record(0.1), "gas": record(0.2), "lmc": record(0.3)}
    figure = compare_figure(runs, ERRORS, "a title")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert len(titles) == 5
    loss, scores = figure.axes[0], figure.axes[1]
    assert (len(loss.lines), len(scores.lines)) == (3, 6)  # validation and test
    assert len(figure.axes[-1].patches) == 4
    assert figure.axes[-1].get_xscale() == "log"
    for name in ("f.png", "f.svg"):
        save(figure, tmp_path / "new" / name)
        assert (tmp_path / "new" / name).stat().st_size > 10_000


def test_the_first_run_to_reach_the_target_has_a_star() -> None:
    runs = {"gas": record(0.45), "imc": record(0.5), "lmc": record(0.05)}
    figure = compare_figure({"full": RunRecord({}, ()), **runs}, {}, "t")
    marked = {axes: [line for line in axes.lines if line.get_marker() in ("*", "o")] for axes in figure.axes}
    (axes,) = (axes for axes, lines in marked.items() if lines)
    assert "over time" in axes.get_title(loc="left")
    target = target_score(runs.values())
    assert target is not None
    points = {line.get_marker(): tuple(float(value) for (value,) in line.get_data()) for line in marked[axes]}
    score = pytest.approx(100 * target)
    assert points == {"o": (5.0, score), "*": (4.5, score)}, "gas after 10 epochs of 0.5 s, imc after 9, lmc never"
    assert f"first at {100 * target:.1f} % (dashed line): IMC, 4.5 s (star)" in axes.get_xlabel()


@pytest.mark.parametrize("runs", [{"gas": record(0.4)}, {"gas": record(0.4, scored=False), "lmc": RunRecord({}, ())}])
def test_without_two_runs_with_scores_no_target_is_drawn(runs: dict[str, RunRecord]) -> None:
    axes = compare_figure(runs, {}, "t").axes
    assert not any(line.get_marker() == "*" for each in axes for line in each.lines)
    assert not any("first at" in each.get_xlabel() for each in axes)


def texts_of(axes: Axes) -> list[Text]:
    """Every text that is drawn, apart from ticks that lie outside of the limits."""
    found = [text for text in axes.findobj(Text) if isinstance(text, Text) and text.get_text() and text.get_visible()]
    ticks = {id(tick.label1) for axis in (axes.xaxis, axes.yaxis) for tick in axis.get_major_ticks()}
    shown = {id(t) for axis in (axes.xaxis, axes.yaxis) for t in axis.get_ticklabels()}
    return [text for text in found if id(text) not in ticks or id(text) in shown]


def test_no_label_lies_on_another_one() -> None:
    rates = {"full": 0.05, "cluster": 0.2, "gas": 0.201, "fm": 0.202, "lmc": 0.203, "cmc": 0.204, "imc": 0.205}
    values = (0.94, 0.12345, 0.0123, 3e-7, 0.1234, 0.5)
    errors = {
        label: {f"layer {k}": v * (1 + k / 100) for k in range(4)} for label, v in zip(rates, values, strict=False)
    }
    figure = compare_figure({label: record(rate) for label, rate in rates.items()}, errors, "t")
    figure.draw_without_rendering()
    boxes = [(t.get_text(), Text.get_window_extent(t)) for axes in figure.axes for t in texts_of(axes)]
    assert sum(name == "IMC" for name, _ in boxes) == 4
    touching = [(a, b) for k, (a, one) in enumerate(boxes) for b, other in boxes[k + 1 :] if one.overlaps(other)]
    assert not touching


def test_errors_of_rounding_are_called_exact() -> None:
    figure = compare_figure({"gas": record(0.2)}, {"gas": {"layer 1": 0.2, "layer 2": 9e-7, "layer 3": 0.0}}, "t")
    axes = figure.axes[-1]
    assert [text.get_text() for text in axes.texts if text.get_text()[0].isalnum()] == [
        "layer 1", "0.2", "layer 2", "exact", "layer 3", "exact",
    ]  # fmt: skip
    assert len(axes.patches) == 1


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_method_has_one_name_and_colours_of_enough_contrast() -> None:
    assert set(METHODS) <= set(NAMES)
    for look in looks_of([*NAMES, "lmc:alpha=1", "lmc:alpha=2", "gas:a=1", "one", "two", "three", "four"]).values():
        assert contrast(look.colour, LIGHT) >= 3
        assert contrast(look.dark, DARK) >= 3


def test_without_errors_there_are_four_panels() -> None:
    assert len(compare_figure({"gas": record(0.2)}, {}, "t").axes) == 4
    assert len(compare_figure({"gas": record(0.2)}, {"gas": {}}, "t").axes) == 4


def test_unusual_runs_can_be_drawn(tmp_path: Path) -> None:
    runs = {
        "nothing": RunRecord({}, ()),
        "one": record(0.2, epochs=1),
        "unscored": record(0.2, scored=False),
        "diverged": RunRecord({}, (EpochRecord(1, 2.0, 1.0), EpochRecord(2, math.nan, 2.0))),
    }
    errors = {"one": {"layer 1": 0.0, "layer 2": math.inf}, "unscored": {"layer 1": 0.1}}
    save(compare_figure(runs, errors, "t"), tmp_path / "f.png")


def test_a_method_keeps_its_colour_and_variants_differ() -> None:
    alone, together = looks_of(["lmc"]), looks_of(["gas", "lmc", "lmc:alpha=0.8:score=x^2", "mine"])
    assert alone["lmc"] == together["lmc"]
    variant = together["lmc:alpha=0.8:score=x^2"]
    assert variant.name == "LMC (alpha=0.8, score=x^2)"
    assert variant.dashes != together["lmc"].dashes
    assert len({look.colour for look in together.values()}) == 4


@pytest.mark.parametrize(("metric", "shown"), [("top-k-micro-f1", "top-k-micro-f1 in %"), ("r2", "r2 (thin")])
def test_the_metric_is_named(metric: str, shown: str) -> None:
    figure = compare_figure({"gas": record(0.2)}, {}, "t", metric)
    assert any(shown in axes.get_title(loc="left") for axes in figure.axes)
