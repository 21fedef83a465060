"""The figure from records made by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lmc.report import compare_figure, save
from lmc.report.looks import looks_of
from lmc.results import EpochRecord, RunRecord


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
    assert figure.axes[-1].get_yscale() == "log"
    for name in ("f.png", "f.svg"):
        save(figure, tmp_path / "new" / name)
        assert (tmp_path / "new" / name).stat().st_size > 10_000


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


@pytest.mark.parametrize("metric", ["accuracy", "micro-F1"])
def test_the_metric_is_named(metric: str) -> None:
    figure = compare_figure({"gas": record(0.2)}, {}, "t", metric)
    assert any(metric in axes.get_title(loc="left") for axes in figure.axes)
