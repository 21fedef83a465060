"""What the commands print: consoles, numbers, and errors that end a command in one line."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from lmc.errors import Interrupted, LmcError

if TYPE_CHECKING:
    import torch

STOPPED, REFUSED = 130, 2
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]  # Typer exports no name for it


class OneLineErrors(TyperGroup):
    """A group of commands whose errors are reported by :func:`reported_errors`."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with reported_errors():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with reported_errors():
            return super().invoke(ctx)


def console() -> Console:
    """Standard output, at least 140 columns wide where it is not a terminal."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=max(out.width, 140))


@contextmanager
def reported_errors() -> Iterator[None]:
    """Errors the library raises on purpose become one line and an exit code; others keep their traceback."""
    try:
        yield
    except Interrupted as error:
        _report(f"[yellow]{_plain(str(error))}[/yellow]", f"continue with: [bold]{_plain(_again())}[/bold]")
        raise typer.Exit(STOPPED) from error
    except KeyboardInterrupt as error:
        _report("[yellow]stopped at once; what was saved before is kept[/yellow]")
        raise typer.Exit(STOPPED) from error
    except LmcError as error:
        _report(f"[red]error:[/red] {_plain(' '.join(str(error).split()))}")
        raise typer.Exit(REFUSED) from error
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        _report(f"[red]error:[/red] {_plain(_usage(error))}")
        raise typer.Exit(REFUSED) from error


def percent(share: float | None) -> str:
    """A share as a percentage with two decimals."""
    return "-" if share is None else f"{100 * share:.2f} %"


def seconds(value: float) -> str:
    """A duration."""
    return f"{value:.2f} s" if value < 100 else f"{value / 60:.1f} min"


def size(count: int) -> str:
    """A number of bytes."""
    for unit, factor, digits in (("GB", 1e9, 2), ("MB", 1e6, 1)):
        if count >= factor:
            return f"{count / factor:.{digits}f} {unit}"
    return f"{count / 1e3:.1f} kB"


def error_figure(value: float | None) -> str:
    """A relative error."""
    return "-" if value is None else f"{value:.4f}" if value >= 1e-3 else f"{value:.1e}"


def device_name(device: torch.device) -> str:
    """A device in words."""
    import torch

    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return f"{device.type} ({torch.get_num_threads()} threads)"


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


def _again() -> str:
    """The command that continues this one."""
    given = sys.argv[1:]
    return shlex.join(["lmc", *given, *([] if "--resume" in given else ["--resume"])])


def _usage(error: Any) -> str:
    """What is wrong with the options, with the way to options of a method or a model, which are no flags."""
    text = " ".join(error.format_message().split()).rstrip(".")
    if type(error).__name__ == "NoSuchOption":
        return (
            f"{text}: `{error.ctx.command_path} --help` lists the options; those of a method or a model follow its "
            "name, e.g. --method lmc:alpha=0.4 --model gcn:layers=3 (see `lmc methods lmc`, `lmc models gcn`)"
        )
    return f"{text}: see `{error.ctx.command_path} --help`" if error.ctx else text


def _plain(text: str) -> str:
    """Text in which [brackets] are not markup."""
    return text.replace("[", "\\[")


def _report(*lines: str) -> None:
    err = Console(stderr=True, highlight=False, soft_wrap=True)
    for line in lines:
        err.print(line)
