"""A progress bar on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lmc.results import EpochRecord


@contextmanager
def progress_bar(epochs: int) -> Iterator[Callable[[EpochRecord], None]]:
    """Show a bar over ``epochs`` epochs; the function it yields takes the record of every epoch."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("epoch"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=epochs)

        def show(record: EpochRecord) -> None:
            scores = f"  val {record.scores['val']:.4f}" if record.scores else ""
            bar.update(task, completed=record.epoch, description=f"loss {record.loss:.4f}{scores}")

        yield show
