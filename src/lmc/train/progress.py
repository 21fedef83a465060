"""A progress bar on standard error, for those who ask for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lmc.results import EpochRecord


@contextmanager
def progress_bar(epochs: int) -> Iterator[Callable[[EpochRecord], None]]:
    """Within, call what is yielded with every epoch's record."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("epoch"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=epochs)

        def show(record: EpochRecord) -> None:
            scores = f"  val {record.scores['val']:.4f}" if record.scores else ""
            bar.update(task, completed=record.epoch, description=f"loss {record.loss:.4f}{scores}")

        yield show
