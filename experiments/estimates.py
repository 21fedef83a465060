"""Comparisons of a recurrent model side by side: losses, accuracies, and the errors of states and adjoints."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmc.cli.console import TextTable, console, number
from lmc.errors import ConfigError
from lmc.report.looks import Points, draw_curve, entitle, legend_below, new_figure, plain, plain_decimals, save
from lmc.report.names import Look, looks_of
from lmc.results import ErrorRecord, RunRecord, mean_errors, read_errors, read_run

CAPTION = "relative errors of the states H, the adjoints V and the gradient, mean over measurements"


def estimates(
    folders: Annotated[list[Path], typer.Argument(help="Run folders of lmc compare --model recgcn.")],
    out: Annotated[Path, typer.Option(help="The figure to write.")] = Path("runs/bench/estimates.png"),
) -> None:
    """Show comparisons of a recurrent model side by side: losses, accuracy, and the errors of states and adjoints."""
    runs: dict[str, dict[str, RunRecord]] = {}
    errors: dict[str, dict[str, list[ErrorRecord]]] = {}
    for folder in folders:
        entered = sorted(path.parent for path in folder.glob("*/config.json"))
        if not entered:
            raise ConfigError(f"expected the run folder of a comparison (got {folder}, which holds no runs)")
        runs[folder.name] = {path.name: read_run(path) for path in entered}
        errors[folder.name] = {path.name: read_errors(path / "errors.jsonl") for path in entered}
    headers = ["comparison, method", "loss after 10", "last loss", "test %"]
    headers += ["error of H", "error of V", "error of the gradient"]
    rows = [
        [f"{folder}, {label}", *_row(run, errors[folder][label])]
        for folder, those in runs.items()
        for label, run in those.items()
    ]
    screen = console()
    screen.print(TextTable(headers, rows, CAPTION).rich())
    save(estimates_figure(runs, errors), out)
    screen.print(f"figure   {out}", soft_wrap=True)


def _row(run: RunRecord, errors: Sequence[ErrorRecord]) -> list[str]:
    means = mean_errors(errors)
    tenth = next((e.loss for e in run.epochs if e.epoch == 10), None)
    gradient = sum(r.mean for r in errors) / len(errors) if errors else None
    test = None if run.test is None else 100 * run.test
    line = [number(tenth, 4), number(run.loss, 4), number(test, 1)]
    return line + [number(value, 3) for value in (means.get("H"), means.get("V"), gradient)]


def estimates_figure(
    runs: Mapping[str, Mapping[str, RunRecord]], errors: Mapping[str, Mapping[str, Sequence[ErrorRecord]]]
) -> Figure:
    """A column for each comparison: training losses of its methods above, relative errors of V below."""
    looks = looks_of(list(dict.fromkeys(label for methods in runs.values() for label in methods)))
    figure = new_figure(
        1.0 + 3.1 * len(runs), 6.4, "RecGCN: training loss, and relative error of the adjoints V (logarithmic)"
    )
    panels = figure.subplots(2, len(runs), squeeze=False)
    for (name, of_methods), upper, lower in zip(runs.items(), *panels, strict=True):
        measured = {label: errors[name].get(label, ()) for label in of_methods}
        _draw(upper, {label: [(e.epoch, e.loss) for e in run.epochs] for label, run in of_methods.items()}, looks)
        _draw(lower, {label: [(e.epoch, e.layers.get("V", 0)) for e in m] for label, m in measured.items()}, looks)
        entitle(upper, name)
        lower.set_xlabel("epoch", fontsize=10)
    panels[0][0].set_ylabel("training loss", fontsize=10)
    panels[1][0].set_ylabel("relative error of V", fontsize=10)
    legend_below(figure, looks)
    return figure


def _draw(axes: Axes, curves: Mapping[str, Points], looks: Mapping[str, Look]) -> None:
    """Curves on a logarithmic axis, without the points that it cannot show."""
    for label, points in curves.items():
        draw_curve(axes, [(x, y) for x, y in points if 0 < y < math.inf], looks[label])
    axes.set_yscale("log")
    plain_decimals(axes.yaxis)
    plain(axes)
