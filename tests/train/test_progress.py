"""The one progress bar, on a terminal and elsewhere."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table

from lmc.results import EpochRecord
from lmc.train.progress import epoch_bar, progress_bar


def test_a_terminal_shows_a_bar_and_what_is_above_it() -> None:
    out = Console(file=io.StringIO(), force_terminal=True, width=80)
    table = Table("method")
    with progress_bar(4, "cell", out, done=1) as show:
        show(2, "[a]", table)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert all(piece in text for piece in ("1/4", "2/4", "cell", "━"))
    assert "[a]" in text
    assert "method" in text


def test_elsewhere_about_ten_lines_are_printed() -> None:
    out = Console(file=io.StringIO(), width=80)
    with progress_bar(40, console=out) as show:
        for done in range(1, 41):
            show(done, f"[{done}] done")
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines == [f"epoch {done:>3}/40  [{done}] done" for done in range(4, 41, 4)]


def test_the_line_of_an_epoch_keeps_the_scores_of_the_last_evaluation() -> None:
    out = Console(file=io.StringIO(), width=80)
    solver = {"forward_steps": 7.0, "backward_steps": 5.0, "unconverged": 2.0}
    with epoch_bar(2, out) as show:
        show(EpochRecord(1, 0.5, 1.0, {"train": 0.9, "val": 0.75, "test": 0.5}))
        show(EpochRecord(2, 0.25, 1.0, None, solver))
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0] == "epoch  1/2  loss 0.5000  val 75.00 %  test 50.00 %"
    assert lines[1] == "epoch  2/2  loss 0.2500  val 75.00 %  test 50.00 %  solver 7+5 steps, 2 unconverged"
