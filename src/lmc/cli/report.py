"""``lmc report``."""

from __future__ import annotations

from pathlib import Path

from lmc.cli.console import console
from lmc.files import replace, writable
from lmc.report.page import report_page


def report_command(folder: Path, out: Path) -> None:
    """Write the page and print its path."""
    page = report_page(folder)
    with writable(out.parent, "choose another path"):
        out.parent.mkdir(parents=True, exist_ok=True)
        replace(out, page.encode(errors="replace"))
    console().print(f"report   {out.resolve()}", soft_wrap=True, markup=False)
