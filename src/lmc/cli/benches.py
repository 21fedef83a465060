"""The options of the benchmarks of many cells."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lmc.cli import options as o
from lmc.cli.choices import DataChoice, ModelChoice, RunChoice
from lmc.cli.speech import spoken_errors

Methods = Annotated[
    str, typer.Option("--methods", help="Comma-separated; options after colons: gas,lmc,lmc:alpha=1:score=1.")
]
Configs = Annotated[str, typer.Option("--configs", help="parts/clusters, comma-separated.")]
Rates = Annotated[str, typer.Option("--lrs", help="Learning rates of Adam, comma-separated.")]
Seeds = Annotated[int, typer.Option("--seeds", help="How many: 0, 1, ...")]
Hidden = Annotated[int, typer.Option("--hidden", help="Width of the hidden layers.")]
Layers = Annotated[int, typer.Option("--layers", help="Aggregations.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")]
Folder = Annotated[
    Path | None,
    typer.Option("--run-dir", help="Where the lines go; cells that have one there are not worked again."),
]
Limit = Annotated[
    float | None, typer.Option("--limit", help="Seconds after which no further cell is begun.", show_default=False)
]
SummaryOnly = Annotated[bool, typer.Option("--summary-only", help="Work nothing; show what the folder has.")]


def bench_grid(
    dataset: o.Dataset = "arxiv-like",
    configs: Configs = "80/40,80/10,80/1,800/10,320/4",
    lrs: Rates = "1e-3,3e-3,1e-2",
    norms: Annotated[
        str, typer.Option("--norms", help="none, layer or batch, each with its dropout, comma-separated.")
    ] = "none,batch:0.5,layer:0.5",
    seeds: Seeds = 3,
    epochs: Annotated[
        str, typer.Option("--epochs", help="One number for each of --configs, or one for all.")
    ] = "24,16,5,5,5",
    methods: Methods = "backward-sgd,gas,lmc,lmc:alpha=1:score=1,cmc",
    layers: Layers = 3,
    hidden: Hidden = 256,
    device: Device = "auto",
    run_dir: Folder = None,
    limit: Limit = None,
    summary_only: SummaryOnly = False,
    data_dir: o.DataDir = None,
    scale: o.Scale = None,
) -> None:
    """Train every method from scratch over a grid of settings; the exact training losses side by side.

    Ctrl-C finishes the cell; the same command goes on from there.
    """
    with spoken_errors():
        from lmc.cli.grid import GridChoice, grid_command

        grid_command(
            DataChoice(dataset, data_dir, scale),
            GridChoice(configs, lrs, norms, seeds, epochs, methods, limit, summary_only),
            ModelChoice("gcn", hidden, layers),
            RunChoice(device=device, run_dir=run_dir),
        )


def bench_gradients(
    datasets: Annotated[str, typer.Argument(help="Names or paths, comma-separated.")] = "cora,amazon-photo",
    configs: Annotated[
        str,
        typer.Option(
            "--configs",
            help="parts/clusters, comma-separated, for all graphs; or name=parts/clusters: what follows a name is its.",
        ),
    ] = "10/2",
    lrs: Rates = "3e-3",
    epochs: Annotated[int, typer.Option("--epochs", help="Of training by the method itself.")] = 20,
    every: Annotated[int, typer.Option("--every", help="Epochs between measurements.")] = 2,
    methods: Methods = "gas,lmc:alpha=0,lmc:alpha=0.4,lmc,lmc:alpha=1:score=2x-x^2,cmc",
    layers: Layers = 3,
    hidden: Hidden = 64,
    seeds: Seeds = 1,
    device: Device = "auto",
    run_dir: Folder = None,
    limit: Limit = None,
    summary_only: SummaryOnly = False,
    data_dir: o.DataDir = None,
) -> None:
    """The relative error of batch gradients against backward SGD along training, graph by graph.

    Ctrl-C finishes the cell; the same command goes on from there.
    """
    with spoken_errors():
        from lmc.cli.gradients import GradientsChoice, gradients_command

        gradients_command(
            GradientsChoice(datasets, configs, lrs, epochs, every, methods, seeds, data_dir, limit, summary_only),
            ModelChoice("gcn", hidden, layers),
            RunChoice(device=device, run_dir=run_dir),
        )
