"""What the commands print: consoles, tables, numbers, and errors that end a command in one line."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from lmc.errors import Interrupted, LmcError

if TYPE_CHECKING:
    import torch

STOPPED, REFUSED, BROKEN_PIPE = 130, 2, 141
FIRST_REPORTS = 3.0
"""Seconds for which other ranks wait until rank 0 prints an error that all ranks have."""
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]  # Typer exports no name for it


def new_app(name: str, help: str) -> typer.Typer:
    """A group of commands whose errors are reported by :func:`reported_errors`."""
    return typer.Typer(
        name=name,
        cls=OneLineErrors,
        help=help,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


class OneLineErrors(TyperGroup):
    """See :func:`new_app`."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with reported_errors():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with reported_errors():
            return super().invoke(ctx)


@contextmanager
def reported_errors() -> Iterator[None]:
    """Errors the library raises on purpose become one line and an exit code; others keep their traceback."""
    try:
        yield
    except Interrupted as error:
        words = [*(word for word in sys.argv[1:] if word not in ("--resume", "--overwrite")), "--resume"]
        program = ["torchrun", "...", "-m", "lmc"] if int(os.environ.get("WORLD_SIZE", 1)) > 1 else ["lmc"]
        again = shlex.join([*program, *words])
        _say(f"[yellow]{escape(str(error))}[/yellow]", f"continue with: [bold]{escape(again)}[/bold]")
        raise typer.Exit(128 + error.signal) from error
    except KeyboardInterrupt as error:
        _say("[yellow]stopped at once; what was saved before is kept[/yellow]")
        raise typer.Exit(STOPPED) from error
    except (LmcError, _UsageError) as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        text = " ".join(str(error).split()) if isinstance(error, LmcError) else _usage(error)
        _say(f"[red]error:[/red] {escape(text)}")
        raise typer.Exit(REFUSED) from error
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):
            raise
        _say(f"[red]error:[/red] expected enough memory (got: {escape(' '.join(str(error).split()))}): lower sizes")
        raise typer.Exit(REFUSED) from error


@contextmanager
def finish_on_broken_pipe(out: Console) -> Iterator[Callable[[], bool]]:
    """Within, a broken pipe (``lmc train ... | head -1``) does not end the command at once: what is yielded becomes
    true, by which training stops and is saved, and nothing more is printed. Then the command ends without a message,
    with the exit code of SIGPIPE."""
    broken: list[bool] = []

    def on_broken_pipe() -> None:
        broken.append(True)
        with suppress(SystemExit):
            Console.on_broken_pipe(out)

    out.on_broken_pipe = on_broken_pipe  # type: ignore[method-assign]
    try:
        yield lambda: bool(broken)
    except Interrupted:
        if not broken:
            raise
    if broken:
        raise typer.Exit(BROKEN_PIPE)


def _say(*lines: str) -> None:
    """Print lines to standard error; of several ranks that have an error, one does."""
    if reports():
        err = Console(stderr=True, highlight=False, soft_wrap=True)
        for line in lines:
            err.print(line)


def _usage(error: Any) -> str:
    """What is wrong with the options, with the way to options of a method or a model, which are no flags."""
    text = " ".join(error.format_message().split()).rstrip(".")
    if hasattr(error.__cause__, "errors"):  # of pydantic, by which newer versions of Typer read numbers
        text += f" (got {error.__cause__.errors()[0]['input']!r})"
    if type(error).__name__ == "NoSuchOption":
        return (
            f"{text}: `{error.ctx.command_path} --help` lists the options; those of a method or a model follow its "
            "name, e.g. --method lmc:alpha=0.4 --model gcn:layers=3 (see `lmc methods lmc`, `lmc models gcn`)"
        )
    return f"{text}: see `{error.ctx.command_path} --help`" if error.ctx else text


def console() -> Console:
    """Standard output, at least 140 columns wide where it is not a terminal; of several ranks, the first one's."""
    quiet = int(os.environ.get("RANK", 0)) > 0
    out = Console(highlight=False, quiet=quiet)
    return out if out.is_terminal else Console(highlight=False, width=max(out.width, 140), quiet=quiet)


def reports() -> bool:
    """Whether this process prints its error. Of several ranks that fail, one does: rank 0, unless it is
    :data:`FIRST_REPORTS` seconds later than the first of them."""
    rank = int(os.environ.get("RANK", 0))
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return True
    from lmc.engine.distributed import launcher, this_start

    if threading.current_thread() is threading.main_thread():  # torchrun ends all ranks where one has failed
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    key, deadline = f"lmc/error/{this_start()}", time.monotonic() + (FIRST_REPORTS if rank else 0)
    try:
        store = launcher(FIRST_REPORTS)
        while not store.check([key]) and time.monotonic() < deadline:
            time.sleep(0.02)
        return store.add(key, 1) == 1
    except (KeyError, RuntimeError):  # nobody can be asked
        return True


def facts(rows: Sequence[tuple[str, str]]) -> Table:
    """Names and values in two columns."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, escape(value))
    return grid


@dataclass(frozen=True)
class TextTable:
    """A table of text, for the console and for markdown pages.

    Args:
        rows: one text for each column; "-" means no value, **bold** the best value of a row.
        caption: what the columns mean.
        named: how many of the first columns are names, which are aligned to the left.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    named: int = 1

    def rich(self) -> Table:
        """The table for the console; bold values have a star for terminals without bold type."""
        table = Table(caption=self.caption, caption_justify="left", box=box.SIMPLE_HEAD, padding=0)
        for k, header in enumerate(self.headers):
            is_name = k < self.named
            table.add_column(escape(header), justify="left" if is_name else "right", no_wrap=is_name, overflow="fold")
        for row in self.rows:
            table.add_row(*[f"[bold]{v.strip('*')}*[/bold]" if v.startswith("**") else v for v in row])
        return table

    def markdown(self) -> str:
        """The table as markdown, with its caption below."""
        lines = ["| " + " | ".join(row) + " |" for row in (self.headers, ["---"] * len(self.headers), *self.rows)]
        return "\n".join([*lines, "", self.caption]) + "\n"

    def without_empty(self) -> TextTable:
        """The table without the columns in which no row has a value."""
        kept = [k for k in range(len(self.headers)) if any(row[k] != "-" for row in self.rows)]
        rows = [[row[k] for k in kept] for row in self.rows]
        return TextTable([self.headers[k] for k in kept], rows, self.caption, self.named)


def number(value: float | None, digits: int, unit: float = 1) -> str:
    """A number of units with so many decimals."""
    return "-" if value is None else f"{value / unit:,.{digits}f}"


def percent(share: float | None) -> str:
    """A share as a percentage with two decimals."""
    return "-" if share is None else f"{100 * share:.2f} %"


def share(value: float | None) -> str:
    """A share as a percentage with few decimals."""
    return "-" if value is None else f"{100 * value:.1f} %" if value < 0.1 else f"{100 * value:.0f} %"


def ratio(value: float | None) -> str:
    """A ratio of two times."""
    return number(value, 2 if value is None or value >= 1 else 3)


def error_figure(value: float | None) -> str:
    """A relative error: four decimals, or two digits where it is small."""
    return "-" if value is None else f"{value:.4f}" if value >= 1e-3 else f"{value:.1e}"


def seconds(value: float) -> str:
    """A time in seconds, or in minutes where it is long."""
    return f"{value:.2f} s" if value < 100 else f"{value / 60:.1f} min"


def milliseconds(value: float | None) -> str:
    """Milliseconds, with fewer decimals for longer times."""
    return number(value, 0 if value is None or value >= 100 else 2 if value >= 1 else 3)


def megabytes(count: float | None) -> str:
    """Bytes as megabytes with one decimal."""
    return number(count, 1, 1e6)


def size(count: int) -> str:
    """Bytes in a unit that suits their number."""
    for unit, factor, digits in (("GB", 1e9, 2), ("MB", 1e6, 1)):
        if count >= factor:
            return f"{count / factor:.{digits}f} {unit}"
    return f"{count / 1e3:.1f} kB"


def device_name(device: torch.device) -> str:
    """A device in words: the name of the GPU, or the threads of the CPU."""
    import torch

    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return f"{device.type} ({torch.get_num_threads()} threads)"


def file_name(label: str) -> str:
    """The label as the name of a file: other characters than letters, digits and ``._=@-`` become ``_``."""
    return re.sub(r"[^A-Za-z0-9._=@-]+", "_", label).strip("._") or "run"
