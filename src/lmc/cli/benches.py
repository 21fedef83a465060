"""The options of the benchmarks of many cells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from lmc.cli import options as o
from lmc.cli.choices import DataChoice, ModelChoice, RunChoice
from lmc.cli.console import spoken_errors

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


def bench_accuracy(
    dataset: o.Dataset = "arxiv-like",
    config: Annotated[str, typer.Option("--config", help="parts/clusters.")] = "80/10",
    lrs: Rates = "1e-3,3e-3,1e-2",
    norm: Annotated[str, typer.Option("--norm", help="none, layer or batch, with its dropout.")] = "layer:0.5",
    seeds: Seeds = 3,
    epochs: Annotated[int, typer.Option("--epochs", help="Of every method but the full batch.")] = 40,
    full_epochs: Annotated[int, typer.Option("--full-epochs", help="Of the full batch: one step each.")] = 400,
    methods: Methods = "full,cluster,gas,lmc,cmc",
    target: Annotated[
        float | None, typer.Option("--target", help="Test accuracy to reach.", show_default="the full batch's")
    ] = None,
    within: Annotated[
        float, typer.Option("--within", help="Points that may be missing to the full batch's accuracy.")
    ] = 0.1,
    layers: Layers = 3,
    hidden: Hidden = 256,
    device: Device = "auto",
    run_dir: Folder = None,
    limit: Limit = None,
    summary_only: SummaryOnly = False,
    data_dir: o.DataDir = None,
    scale: o.Scale = None,
) -> None:
    """Epochs and seconds until a method is as accurate as the full batch, with the best learning rate for each.

    Ctrl-C finishes the cell; the same command goes on from there.
    """
    with spoken_errors():
        from lmc.cli.accuracy import AccuracyChoice, accuracy_command

        accuracy_command(
            DataChoice(dataset, data_dir, scale),
            AccuracyChoice(config, lrs, norm, seeds, epochs, full_epochs, methods, target, within, limit, summary_only),
            ModelChoice("gcn", hidden, layers),
            RunChoice(device=device, run_dir=run_dir),
        )


Auto = Annotated[
    str,
    typer.Argument(help="A name or path; auto: arxiv-like on a GPU, arxiv-like@0.1 on a CPU.", show_default="auto"),
]
Timed = Annotated[str, typer.Option("--methods", help="What to time beside the full batch, options after colons.")]
MaybeConfigs = Annotated[
    str | None,
    typer.Option(
        "--configs",
        help="parts/clusters, comma-separated. Default: 80/40,80/10,80/1; 80/40,80/10 for speed on a CPU.",
        show_default=False,
    ),
]
Tiers = Annotated[
    str | None,
    typer.Option("--tiers", help="Of histories: device, host, disk. Default: all; on a CPU device,disk."),
]
Dropout = Annotated[float, typer.Option("--dropout", help="Rate between layers.")]
Norm = Annotated[str, typer.Option("--norm", help="none, layer or batch.")]
Repeat = Annotated[int | None, typer.Option("--repeat", help="Epochs to take the median of. Default: 3; 20 on a GPU.")]
Warmup = Annotated[int | None, typer.Option("--warmup", help="Epochs before them. Default: 1; 3 on a GPU.")]
Seed = Annotated[int, typer.Option("--seed", help="Of parameters, partition and batches.")]
RIVALS = "gas,lmc:alpha=1:score=1,cmc"


def bench_speed(
    dataset: Auto = "auto",
    models: Annotated[
        str, typer.Option("--models", help="gcn, gcnii (one layer more) and recgcn (lmc4rec for lmc).")
    ] = "gcn,gcnii,recgcn",
    methods: Timed = RIVALS,
    configs: MaybeConfigs = None,
    tiers: Tiers = None,
    tier_methods: Annotated[
        str | None,
        typer.Option("--tier-methods", help="Those of --methods that are timed on every tier. Default: lmc."),
    ] = None,
    tier_configs: Annotated[
        str | None, typer.Option("--tier-configs", help="And where. Default: 80/10, or the first of --configs.")
    ] = None,
    redraw: Annotated[
        bool, typer.Option("--redraw/--no-redraw", help="Time the same with clusters redrawn every epoch too.")
    ] = False,
    hidden: Hidden = 256,
    layers: Layers = 3,
    dropout: Dropout = 0.5,
    norm: Norm = "none",
    repeat: Repeat = None,
    warmup: Warmup = None,
    pyg: Annotated[bool, typer.Option("--pyg/--no-pyg", help="Time PyG's full batch too.")] = True,
    seed: Seed = 0,
    device: Device = "auto",
    run_dir: Folder = None,
    limit: Limit = None,
    summary_only: SummaryOnly = False,
    data_dir: o.DataDir = None,
    scale: o.Scale = None,
) -> None:
    """Time epochs of several models, methods, divisions and tiers, and the bytes they move, against their baselines.

    Ctrl-C finishes the line; the same command goes on from there, with baselines measured anew.
    """
    with spoken_errors():
        from lmc.cli.speed import SpeedChoice, speed_command

        choice = SpeedChoice(
            models,
            methods,
            configs,
            tiers,
            tier_methods,
            tier_configs,
            redraw,
            pyg,
            repeat,
            warmup,
            limit,
            summary_only,
        )
        speed_command(
            DataChoice(dataset, data_dir, scale),
            choice,
            ModelChoice("gcn", hidden, layers, dropout, norm=norm),
            RunChoice(seed, device, run_dir),
        )


def bench_memory(
    dataset: Auto = "auto",
    methods: Methods = "full,backward-sgd,cluster,gas,lmc,cmc,graphsage",
    configs: MaybeConfigs = None,
    tiers: Tiers = None,
    hidden: Hidden = 256,
    layers: Layers = 3,
    dropout: Dropout = 0.5,
    norm: Norm = "none",
    seed: Seed = 0,
    device: Device = "auto",
    run_dir: Folder = None,
    limit: Limit = None,
    summary_only: SummaryOnly = False,
    data_dir: o.DataDir = None,
    scale: o.Scale = None,
) -> None:
    """Memory of a step and between steps, as --dry-run predicts it and as it is then measured.

    A tier holds the histories and the features. Ctrl-C finishes the line; the same command goes on from there.
    """
    with spoken_errors():
        from lmc.cli.memory import MemoryChoice, memory_command

        memory_command(
            DataChoice(dataset, data_dir, scale),
            MemoryChoice(methods, configs, tiers, limit, summary_only),
            ModelChoice("gcn", hidden, layers, dropout, norm=norm),
            RunChoice(seed, device, run_dir),
        )


def bench_scale(
    dataset: Annotated[str, typer.Argument(help="A lookalike, drawn at every scale.")] = "arxiv-like",
    scales: Annotated[
        str | None,
        typer.Option("--scales", help="Comma-separated. Default: 0.02,0.05,0.13,0.32; on a GPU 0.125,0.315,0.794,2."),
    ] = None,
    methods: Timed = RIVALS,
    parts: Annotated[int, typer.Option("--parts", help="Of the largest graph; the others in proportion.")] = 160,
    clusters: Annotated[int, typer.Option("--clusters", help="Parts in a batch, at every scale.")] = 2,
    sweep: Annotated[
        str, typer.Option("--sweep", help="Parts in a batch, comma-separated, at one scale.")
    ] = "1,2,4,8,16,32",
    at: Annotated[float | None, typer.Option("--at", help="Which. Default: the last but one.")] = None,
    hidden: Hidden = 256,
    layers: Layers = 3,
    dropout: Dropout = 0.5,
    norm: Norm = "none",
    partition: Annotated[
        str | None, typer.Option("--partition", help="metis, random or label-propagation. Default: metis.")
    ] = None,
    repeat: Repeat = None,
    warmup: Warmup = None,
    seed: Seed = 0,
    device: Device = "auto",
    run_dir: Folder = None,
    limit: Limit = None,
    summary_only: SummaryOnly = False,
) -> None:
    """Epoch time and memory over the size of a graph, whose parts keep theirs, and over clusters per batch.

    Ctrl-C finishes the line; the same command goes on from there.
    """
    with spoken_errors():
        from lmc.cli.scale import ScaleChoice, scale_command

        scale_command(
            DataChoice(dataset),
            ScaleChoice(scales, methods, parts, clusters, sweep, at, repeat, warmup, partition, limit, summary_only),
            ModelChoice("gcn", hidden, layers, dropout, norm=norm),
            RunChoice(seed, device, run_dir),
        )


BENCHES: dict[str, Callable[..., None]] = {
    "grid": bench_grid,
    "gradients": bench_gradients,
    "accuracy": bench_accuracy,
    "speed": bench_speed,
    "memory": bench_memory,
    "scale": bench_scale,
}
