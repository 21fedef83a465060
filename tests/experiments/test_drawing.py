"""The drawing of the idea."""

from __future__ import annotations

from pathlib import Path

from matplotlib.text import Text

from experiments.drawing import KINDS, ROWS, draw_idea, drawing
from lmc.methods import METHODS


def test_every_method_and_every_kind_of_message_is_drawn(tmp_path: Path) -> None:
    figure = drawing()
    assert len(figure.axes) == 2 * len(ROWS)
    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]
    said = {text.get_text() for text in texts}
    assert {"full batch", "Cluster-GCN", "GAS", "GraphFM-OB", "LMC", "CMC", "IMC"} <= said
    assert {kind.words for kind in KINDS.values()} <= said
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    assert not [(a, b) for k, (a, one) in enumerate(boxes) for b, other in boxes[k + 1 :] if one.overlaps(other)]
    draw_idea(tmp_path)
    assert "<svg" in (tmp_path / "idea.svg").read_text()
    assert (tmp_path / "idea.png").stat().st_size > 50_000


def test_the_drawing_says_of_the_outside_what_the_methods_say() -> None:
    kinds = {"dropped": "gone", "history": "stale", "compensated": "mixed", "momentum": "mixed", "map": "mixed"}
    for row in ROWS:
        words = METHODS[row.method].traits.outside
        drawn = {row.forward[1], row.backward[1]}
        expected = {kind for word, kind in kinds.items() if word in words}
        if row.method == "fm":  # from the history after a momentum step
            expected -= {"stale"}
        if row.method in ("full", "cmc"):
            expected = {"fresh"} if row.method == "full" else {"mixed"}
        assert drawn == expected, row.method
