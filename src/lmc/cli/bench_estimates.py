"""``lmc bench estimates``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lmc.cli.console import console, spoken_errors


def bench_estimates(
    folders: Annotated[
        list[Path], typer.Argument(help="Run folders of lmc compare --model recgcn.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", help="The figure to write.")] = Path("runs/bench/estimates.png"),
) -> None:
    """Show comparisons of a recurrent model side by side: losses, accuracy, and the errors of states and adjoints."""
    with spoken_errors():
        from rich.table import Table

        from lmc.errors import ConfigError
        from lmc.report import estimates_figure, save
        from lmc.results import mean_errors, read_errors, read_run

        table = Table()
        table.add_column("comparison, method", no_wrap=True)
        for column in ("loss after 10", "last loss", "test %", "error of H", "error of V", "of the gradient"):
            table.add_column(column, justify="right")
        runs, errors = {}, {}
        for folder in folders:
            entered = sorted(path.parent for path in folder.glob("*/config.json"))
            if not entered:
                raise ConfigError(f"expected the run folder of a comparison (got {folder}, which holds no runs)")
            runs[folder.name] = {path.name: read_run(path) for path in entered}
            errors[folder.name] = {path.name: read_errors(path / "errors.jsonl") for path in entered}
            for label, run in runs[folder.name].items():
                records = errors[folder.name][label]
                means = mean_errors(records)
                tenth = next((e.loss for e in run.epochs if e.epoch == 10), None)
                gradient = sum(r.mean for r in records) / len(records) if records else None
                numbers = (tenth, run.loss, None if run.test is None else 100 * run.test)
                table.add_row(
                    f"{folder.name}, {label}",
                    *(_figure(value, digits) for value, digits in zip(numbers, (4, 4, 1), strict=True)),
                    *(_figure(value, 3) for value in (means.get("H"), means.get("V"), gradient)),
                )
        screen = console()
        screen.print(table)
        save(estimates_figure(runs, errors, "RecGCN: training loss, and error of the adjoints V"), out)
        screen.print(f"figure   {out}", soft_wrap=True)


def _figure(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
