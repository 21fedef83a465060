"""Figures of tables and of growing cost, from numbers made by hand."""

from __future__ import annotations

from pathlib import Path

from lmc.report import Growth, Panel, rows_figure, save, scale_figure


def test_a_bar_for_every_value_and_a_mark_for_every_prediction(tmp_path: Path) -> None:
    panels = [
        Panel("MB", [1.0, None, 30.0], [1.1, 2.0, None], "predicted"),
        Panel("ms", [5.0, 50.0, 500.0], log=True),
    ]
    figure = rows_figure(["a", "b", "c"], ["gas", "lmc", "lmc"], panels, "a title")
    left, right = figure.axes
    assert [len(axes.patches) for axes in (left, right)] == [2, 3]
    assert [bar.get_width() + bar.get_x() for bar in right.patches] == [5.0, 50.0, 500.0]
    assert len(left.lines) == 2
    assert left.patches[1].get_facecolor() == right.patches[1].get_facecolor() != right.patches[0].get_facecolor()
    assert [tick.get_text() for tick in left.get_yticklabels()] == ["a", "b", "c"]
    assert left.get_ylim()[0] > left.get_ylim()[1]  # the first row on top
    save(figure, tmp_path / "rows.png")
    assert (tmp_path / "rows.png").stat().st_size > 10_000


def test_a_number_is_beside_its_bar_unless_a_mark_is_there() -> None:
    figure = rows_figure(["a", "b", "c"], ["gas"] * 3, [Panel("MB", [1.0, 1.0, 10.0], [1.1, 9.0, 2.0])], "a title")
    assert [text.xy[0] for text in figure.axes[0].texts] == [1.1, 1.0, 10.0]  # type: ignore[attr-defined]


def test_a_legend_leaves_the_title_of_its_panel_free() -> None:
    panels = [Panel("a title that is as wide as its panel " * 2, [1.0], [2.0], "a legend"), Panel("MB", [1.0])]
    figure = rows_figure(["a"], ["gas"], panels, "a title")
    figure.draw_without_rendering()
    legend, title = figure.axes[0].get_legend(), figure.axes[0]._left_title
    assert legend is not None
    assert not legend.get_window_extent().overlaps(title.get_window_extent())


def test_growth_is_drawn_on_logarithmic_axes_with_lines_of_slope_one(tmp_path: Path) -> None:
    curve = [(1.0, 2.0), (4.0, 8.0), (16.0, 32.0)]
    panels = [
        Growth("ms", "edges", {"gas": curve, "lmc": curve[:1]}, proportional=True),
        Growth("nothing yet", "edges", {"gas": []}),
    ]
    figure = scale_figure(panels, "a title")
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    dotted = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert len(dotted) >= 2
    for line in dotted:
        (left, right), (low, high) = line.get_data()
        assert right / left == high / low == 16
    save(figure, tmp_path / "scale.png")
    assert (tmp_path / "scale.png").stat().st_size > 10_000
