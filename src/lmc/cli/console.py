"""How the commands speak: consoles, numbers, and errors that end a command."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.table import Table

from lmc.errors import Interrupted, LmcError

STOPPED, REFUSED = 130, 2


def console() -> Console:
    """Standard output; wide enough for the tables where nobody has a window."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=max(out.width, 140))


@contextmanager
def spoken_errors(resumable: bool = False) -> Iterator[None]:
    """Errors the library raises on purpose become one line and an exit code; others keep their traceback."""
    try:
        yield
    except Interrupted as error:
        _say(f"[yellow]{_plain(str(error))}[/yellow]", f"continue with: [bold]{_plain(again())}[/bold]")
        raise typer.Exit(STOPPED) from error
    except KeyboardInterrupt as error:
        rest = [f"what was saved before is kept; continue with: [bold]{_plain(again())}[/bold]"] if resumable else []
        _say("[yellow]stopped at once[/yellow]", *rest)
        raise typer.Exit(STOPPED) from error
    except LmcError as error:
        _say(f"[red]error:[/red] {_plain(' '.join(str(error).split()))}")
        raise typer.Exit(REFUSED) from error


def again() -> str:
    """The command that continues this one."""
    given = sys.argv[1:]
    return shlex.join(["lmc", *given, *([] if "--resume" in given else ["--resume"])])


def percent(share: float | None) -> str:
    """A share as a percentage with two decimals."""
    return "-" if share is None else f"{100 * share:.2f} %"


def seconds(value: float) -> str:
    """A duration."""
    return f"{value:.2f} s" if value < 100 else f"{value / 60:.1f} min"


def error_figure(value: float | None) -> str:
    """A relative error."""
    return "-" if value is None else f"{value:.4f}" if value >= 1e-3 else f"{value:.1e}"


def file_name(label: str) -> str:
    """A label as the name of a folder."""
    return re.sub(r"[^A-Za-z0-9._=@-]+", "_", label).strip("._") or "run"


def facts(rows: Sequence[tuple[str, str]]) -> Table:
    """Names and values in two columns."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, _plain(value))
    return grid


def _plain(text: str) -> str:
    """Text in which [brackets] mean themselves."""
    return text.replace("[", "\\[")


def _say(*lines: str) -> None:
    err = Console(stderr=True, highlight=False, soft_wrap=True)
    for line in lines:
        err.print(line)
