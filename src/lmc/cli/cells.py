"""What the benchmarks of many cells share: lists on the command line, the bar, and how they stop and go on."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from lmc.bench.cells import Book, C, R
from lmc.cli.build import build_methods
from lmc.cli.choices import MethodChoice, MethodOptions, parse_methods
from lmc.cli.console import STOPPED
from lmc.cli.timing import parse_configs
from lmc.errors import CheckpointError, ConfigError
from lmc.methods import Method
from lmc.results import replace
from lmc.train import stop_on_interrupt

T = TypeVar("T")
Row = Sequence[str]


@dataclass(frozen=True)
class Pace:
    """When to stop: ``limit`` seconds after ``start``, the clock when the command began; None: when all is done."""

    limit: float | None = None
    start: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.limit is not None and not self.limit > 0:
            raise ConfigError(f"expected a positive number of seconds for --limit (got {self.limit:g})")

    def over(self) -> bool:
        return self.limit is not None and time.monotonic() - self.start >= self.limit


def known(book: Book[C, R]) -> Book[C, R]:
    """The book, where it has lines to show."""
    if not book.lines.exists():
        raise CheckpointError(
            f"expected a folder with a {book.lines.name} (got {book.folder}): name one with --run-dir"
        )
    return book


def done_of(book: Book[C, R], cells: Sequence[C]) -> str:
    """How many cells there are, and how many have a line."""
    return f"{len(cells)}, of which {len(cells) - len(book.left(cells))} are done"


def parse_list(text: str, flag: str, one: Callable[[str], T]) -> list[T]:
    """Comma-separated values, at least one, each once."""
    values = [one(part.strip()) for part in text.split(",") if part.strip()]
    if not values or len(set(values)) < len(values):
        raise ConfigError(f"expected one or more different values, comma-separated, for {flag} (got {text!r})")
    return values


def positive(flag: str) -> Callable[[str], float]:
    """A reader of positive numbers."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not 0 < value < float("inf"):
            raise ConfigError(f"expected positive numbers for {flag} (got {text!r})")
        return value

    return read


def whole(flag: str, text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"expected whole numbers of at least 1 for {flag} (got {text!r})")
    return int(text)


def config_names(text: str) -> list[str]:
    """The divisions, as "parts/clusters"."""
    names = [f"{parts}/{clusters}" for parts, clusters in parse_configs(text)]
    if len(set(names)) < len(names):
        raise ConfigError(f"expected every division once in --configs (got {text!r}): drop one")
    return names


def choices_of(text: str) -> list[MethodChoice]:
    """The methods; the division is not theirs to choose."""
    choices = parse_methods(text)
    own = [c.label for c in choices if c.options.parts is not None or c.options.clusters is not None]
    if own:
        raise ConfigError(f"expected methods without parts and clusters (got {', '.join(own)}): use --configs")
    return choices


def methods_in(config: str, choices: Sequence[MethodChoice]) -> dict[str, Method]:
    """Every method in one division of the graph; those that do not divide it stay as they are."""
    ((parts, clusters),) = parse_configs(config)
    return build_methods(choices, MethodOptions(parts=parts, clusters=clusters))


def work_and_show(
    out: Console,
    book: Book[C, R],
    cells: Sequence[C],
    work: Callable[[C], R],
    said: Callable[[R], str],
    show: Callable[[], None],
    pace: Pace,
) -> None:
    """Work what is left under a bar, show all there is, and say how to go on where something is still left.

    Args:
        said: one line about a finished cell.
    """
    columns = (MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    left = len(book.left(cells))
    with Progress(*columns, console=out, disable=not out.is_terminal) as bar, stop_on_interrupt() as stop:
        task = bar.add_task("", total=len(cells), completed=len(cells) - left)
        for record in book.work(cells, work, lambda: stop() or pace.over()):
            left -= 1
            bar.update(task, advance=1, description=said(record).replace("[", "\\["))
            if not out.is_terminal:
                out.print(f"{len(cells) - left}/{len(cells)}  {said(record)}", soft_wrap=True, markup=False)
        interrupted = stop()
    show()
    if left:
        why = "stopped" if interrupted else f"the limit of {pace.limit:g} s is reached"
        out.print(f"{why}; {left} of {len(cells)} cells are left, continue with:", soft_wrap=True)
        out.print(shlex.join(["lmc", *sys.argv[1:]]), soft_wrap=True, markup=False)
    if interrupted:
        raise typer.Exit(STOPPED)


def rich_table(headers: Row, rows: Iterable[Row], named: int, caption: str) -> Table:
    """A table whose first ``named`` columns are names; **bold** is bold, with a star for plain terminals."""
    table = Table(caption=caption, caption_justify="left")
    for k, header in enumerate(headers):
        table.add_column(header.replace("[", "\\["), justify="left" if k < named else "right", overflow="fold")
    for row in rows:
        table.add_row(*[f"[bold]{v.strip('*')}*[/bold]" if v.startswith("**") else v for v in row])
    return table


def markdown(path: Path, headers: Row, rows: Iterable[Row], caption: str) -> None:
    """The same as a page of markdown."""
    replace(path, markdown_table(headers, rows, caption).encode())


def markdown_table(headers: Row, rows: Iterable[Row], caption: str) -> str:
    """The same as text of a page of markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in (headers, ["---"] * len(headers), *rows)]
    return "\n".join([*lines, "", caption]) + "\n"


def without_empty(headers: Row, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """A table without the columns in which no row has anything."""
    kept = [k for k in range(len(headers)) if any(row[k] != "-" for row in rows)]
    return [headers[k] for k in kept], [[row[k] for k in kept] for row in rows]


def share_figure(value: float | None) -> str:
    """A share as a percentage."""
    return "-" if value is None else f"{100 * value:.1f} %" if value < 0.1 else f"{100 * value:.0f} %"


def ratio_figure(value: float | None) -> str:
    """A ratio of two times."""
    return "-" if value is None else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def ms_figure(value: float | None) -> str:
    """Milliseconds."""
    return (
        "-" if value is None else f"{value:,.3f}" if value < 1 else f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
    )


def mb_figure(size: float | None) -> str:
    """Bytes as megabytes."""
    return "-" if size is None else f"{size / 1e6:,.1f}"


def first_of(labels: Iterable[str], name: str) -> str | None:
    """The first label of a method, its options apart."""
    return next((label for label in labels if label.partition(":")[0] == name), None)
