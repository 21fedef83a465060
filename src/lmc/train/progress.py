"""The progress bar of everything that takes long; the caller opens it, and the library never shows one unasked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from lmc.results import SHARES, EpochRecord

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


class Show(Protocol):
    """Shows how many steps are done and a line of text; ``above`` is drawn over the bar."""

    def __call__(self, done: int, text: str, above: RenderableType | None = None) -> None: ...


@contextmanager
def progress_bar(
    total: int, unit: str = "epoch", console: Console | None = None, done: int = 0, lines: int = 10
) -> Iterator[Show]:
    """A bar that is removed when it ends; where the console is no terminal, lines of text in its place.

    Args:
        total: steps in all.
        unit: the name of a step.
        console: where to draw; by default standard error.
        done: steps done before.
        lines: about how many lines are printed where there is no terminal.
    """
    from rich import progress
    from rich.console import Console, Group

    out = console or Console(stderr=True, highlight=False)
    every, text_column = max(1, total // lines), progress.TextColumn("{task.description}", markup=False)
    columns = (progress.TextColumn(unit), progress.MofNCompleteColumn(), progress.BarColumn(24), text_column)
    over: list[RenderableType] = []

    class Bar(progress.Progress):
        def get_renderable(self) -> RenderableType:
            return Group(*over, *self.get_renderables())

    with Bar(*columns, progress.TimeRemainingColumn(), console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task("", total=total, completed=done)

        def show(done: int, text: str, above: RenderableType | None = None) -> None:
            over[:] = [] if above is None else [above]
            bar.update(task, completed=done, description=text)
            if not out.is_terminal and done % every == 0:
                out.print(f"{unit} {done:>{len(str(total)) + 1}}/{total}  {text}", soft_wrap=True, markup=False)

        yield show


def score_text(score: float | None, metric: str) -> str:
    """A score in words: those that lie between 0 and 1 as a percentage."""
    return "-" if score is None else f"{100 * score:.2f} %" if metric in SHARES else f"{score:.4f}"


@contextmanager
def epoch_bar(
    epochs: int, console: Console | None = None, metric: str = "accuracy"
) -> Iterator[Callable[[EpochRecord], None]]:
    """The bar of a training run: call what is yielded with every epoch's record. It shows the loss, the scores, and the
    steps of a recurrent model's solver."""
    with progress_bar(epochs, console=console) as show:
        scores: Mapping[str, float] = {}

        def show_record(record: EpochRecord) -> None:
            nonlocal scores
            scores = record.scores or scores  # epochs without an evaluation show those of the last one
            parts = [f"loss {record.loss:.4f}"]
            parts += [f"{name} {score_text(scores[name], metric)}" for name in ("val", "test") if name in scores]
            if record.solver:
                steps = f"solver {record.solver['forward_steps']:.0f}+{record.solver['backward_steps']:.0f} steps"
                failed = int(record.solver["unconverged"])
                parts.append(f"{steps}, {failed} unconverged" if failed else steps)
            show(record.epoch, "  ".join(parts))

        yield show_record
