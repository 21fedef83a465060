"""The commands and their options; what they do is in the modules beside this one, imported when a command runs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from lmc.cli import options as o
from lmc.cli.console import new_app
from lmc.heap import keep_memory

_ENVIRONMENT = {
    # Waiting threads spin by default: on cores shared with other processes small steps then take ten times as long,
    # on cores that nobody else uses nothing is gained. It is read once, when torch is first imported.
    "OMP_WAIT_POLICY": "PASSIVE",
    # the profiler that measures memory logs to standard error
    "KINETO_LOG_LEVEL": "99",
    # so does it when memory from before a measurement is freed during it
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}

app = new_app("lmc", "Train graph neural networks on graphs too large for a full-batch step.")
Name = Annotated[str | None, typer.Argument(help="The one whose options are shown; by default all are listed.")]


def main() -> None:
    """The entry point of the ``lmc`` script and of ``python -m lmc``."""
    prepare_process()
    try:
        app(prog_name="lmc")
    except SystemExit as ended:
        if isinstance(ended.code, int) and ended.code and int(os.environ.get("WORLD_SIZE", 1)) > 1:
            from lmc.engine.distributed import end

            end(ended.code)
        raise


def prepare_process() -> None:
    """Settings of the process; they have to be made before torch is imported."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    keep_memory()


def _version(wanted: bool) -> None:
    if wanted:
        from lmc import __version__

        typer.echo(f"lmc {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train graph neural networks on graphs too large for a full-batch step."""


def _with_preset(options: o.Train, written: Collection[str]) -> o.Train:
    from lmc.cli.presets import with_preset

    return options if options.preset is None else with_preset(options, options.preset, written)


@app.command()
@o.takes(o.Train, complete=_with_preset)
def train(options: o.Train) -> None:
    """Train a model on a graph with one method.

    Ctrl-C finishes the step and saves; the same command with --resume continues from there.
    """
    from lmc.cli.train import train_command

    train_command(options)


@app.command()
@o.takes(o.Compare)
def compare(options: o.Compare) -> None:
    """Train several methods side by side from the same parameters, and draw the results.

    Every method has a folder of its own under the run folder; the figure is compare.png there.
    """
    from lmc.cli.compare import compare_command

    compare_command(options)


@app.command()
@o.takes(o.Predict, last=("dataset",))
def predict(options: o.Predict) -> None:
    """Write the predictions of the model in a run folder, for the nodes of any graph with the same features."""
    from lmc.cli.predict import predict_command

    predict_command(options)


@app.command()
@o.takes(o.Shard)
def shard(options: o.Shard) -> None:
    """Write one folder per rank of a distributed run, without holding the whole graph in memory."""
    from lmc.cli.shard import shard_command

    shard_command(options)


@app.command()
def runs(folder: Annotated[Path, typer.Argument(help="The folder that is searched.")] = Path("runs")) -> None:
    """List the run folders with their settings and scores, the newest first."""
    from lmc.cli.runs import list_runs

    list_runs(folder)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A run folder, or the folder of a comparison.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write, .html or .htm. Default: report.html in the folder.")
    ] = None,
) -> None:
    """Write one page of HTML with the curves, tables and settings of a run or a comparison.

    The page loads nothing from the internet.
    """
    from lmc.cli.runs import report_command

    report_command(folder, out or folder / "report.html")


@app.command()
def datasets(data_dir: o.DataDir = None) -> None:
    """List the graphs known by name, and where this machine has them."""
    from lmc.cli.listing import list_datasets

    list_datasets(data_dir)


@app.command()
def methods(name: Name = None) -> None:
    """List the training methods, or show the options of one."""
    from lmc.cli.listing import list_methods

    list_methods(name)


@app.command()
def models(name: Name = None) -> None:
    """List the models, or show the options of one."""
    from lmc.cli.listing import list_models

    list_models(name)


@app.command()
def presets(name: Name = None) -> None:
    """List the settings of the paper's experiments, or show those of one."""
    from lmc.cli.presets import list_presets

    list_presets(name)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
)
def bench(context: typer.Context) -> None:
    """Measure speed and memory on this machine."""
    # the options of the benches come from classes that need torch, which the help of the other commands does not load
    from lmc.cli.memory import Memory
    from lmc.cli.scale import Scale, scale_or_ranks
    from lmc.cli.speed import Speed
    from lmc.cli.study import app_of

    app_of([Speed, Memory, Scale], "lmc", "Measure speed and memory on this machine.", scale_or_ranks)(
        context.args, prog_name="lmc bench"
    )
