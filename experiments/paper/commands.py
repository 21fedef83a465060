"""The commands ``python -m experiments paper NAME``."""

from pathlib import Path
from typing import Annotated

import typer

from experiments.paper.campaign import All
from experiments.paper.catalogue import ITEMS, NO_EXPERIMENT
from experiments.paper.page import insert
from lmc.cli.console import console
from lmc.cli.options import takes
from lmc.cli.study import app_of


def make_paper_app(program: str) -> typer.Typer:
    """One command for each table and figure, ``list``, ``all`` and ``insert``."""
    app = app_of(list(ITEMS), program, "The tables and figures of the paper, ours beside the paper's numbers.")

    @app.command("list")
    def show_list() -> None:
        """List the tables and figures in the paper's order."""
        out = console()
        for cls in ITEMS:
            out.print(f"{cls.name:<12} {cls.title} ({cls.label})", soft_wrap=True, markup=False)
        for name, why in NO_EXPERIMENT.items():
            out.print(f"no command: {name}: {why}", soft_wrap=True, markup=False)

    def run_all(options: All) -> None:
        options.run()

    run_all.__doc__ = All.__doc__
    app.command("all")(takes(All)(run_all))

    @app.command("insert")
    def insert_report(
        folder: Annotated[Path, typer.Argument(help="The run folder of `paper all`.")],
        page: Annotated[Path, typer.Argument(help="The page with the two marks.")] = Path("docs/paper.md"),
    ) -> None:
        """Put the report of a run folder into a page of the documentation, and its figures beside it."""
        insert(folder, page)
        console().print(f"{folder / 'report.md'} is in {page}", soft_wrap=True)

    return app
