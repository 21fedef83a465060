"""Tables of text, for the console and for markdown pages, and how numbers are written in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table


@dataclass(frozen=True)
class TextTable:
    """A table of text.

    Args:
        headers: one for each column.
        rows: one text for each column; "-" stands for no value, **bold** for the best value of a row.
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
            is_name, text = k < self.named, header.replace("[", "\\[")
            table.add_column(text, justify="left" if is_name else "right", no_wrap=is_name, overflow="fold")
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


def number(value: float | None, digits: int) -> str:
    """A number with so many decimals."""
    return "-" if value is None else f"{value:,.{digits}f}"


def share(value: float | None) -> str:
    """A share as a percentage."""
    return "-" if value is None else f"{100 * value:.1f} %" if value < 0.1 else f"{100 * value:.0f} %"


def ratio(value: float | None) -> str:
    """A ratio of two times."""
    return "-" if value is None else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def milliseconds(value: float | None) -> str:
    """Milliseconds, with fewer decimals for longer times."""
    return number(value, 0 if value is None or value >= 100 else 2 if value >= 1 else 3)


def megabytes(size: float | None) -> str:
    """Bytes as megabytes."""
    return number(None if size is None else size / 1e6, 1)
