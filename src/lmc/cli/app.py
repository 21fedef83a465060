"""The commands and their options; what they do is in the modules beside this one, imported when needed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from lmc.cli import options as o
from lmc.cli.bench_estimates import bench_estimates
from lmc.cli.bench_recurrent import bench_recurrent
from lmc.cli.bench_sampling import bench_sampling
from lmc.cli.benches import BENCHES
from lmc.cli.choices import (
    DataChoice,
    MethodChoice,
    MethodOptions,
    ModelChoice,
    OptimiserChoice,
    PlanChoice,
    RunChoice,
    parse_clusters,
    parse_fanouts,
    parse_methods,
)
from lmc.cli.console import spoken_errors
from lmc.heap import keep_memory

_ENVIRONMENT = {
    # Threads that wait spin by default: on cores shared with other processes small steps then take ten times as long,
    # on cores of one's own nothing is gained. Read once, when torch is first imported.
    "OMP_WAIT_POLICY": "PASSIVE",
    # the profiler that measures memory writes its own diary to standard error
    "KINETO_LOG_LEVEL": "99",
    # nor is it news that memory from before a measurement is freed during it
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}

app = typer.Typer(
    name="lmc",
    help="Train graph neural networks on graphs too large for a full-batch step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench_app = typer.Typer(no_args_is_help=True, help="Measure speed, memory, losses and gradient errors.")
app.add_typer(bench_app, name="bench")
bench_app.command("sampling")(bench_sampling)
bench_app.command("recurrent")(bench_recurrent)
bench_app.command("estimates")(bench_estimates)


def main() -> None:
    """What the ``lmc`` script runs."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    keep_memory()
    app()


def _version(wanted: bool) -> None:
    if wanted:
        from lmc import __version__

        typer.echo(f"lmc {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Train graph neural networks on graphs too large for a full-batch step."""


@app.command()
def train(
    dataset: o.Dataset,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="`lmc methods` lists them. auto: cmc, or lmc where the model's aggregation is not linear, or lmc4rec "
            "for a fixed point.",
            rich_help_panel="Method",
        ),
    ] = "auto",
    model: o.Model = "gcn",
    epochs: o.Epochs = 100,
    seed: o.Seed = 0,
    run_dir: o.RunDir = None,
    resume: o.Resume = False,
    device: o.Device = "auto",
    features: o.Features = "device",
    structure: o.Structure = "device",
    rebuild_batches: o.RebuildBatches = False,
    precision: o.Precision = "float32",
    memory: o.Memory = None,
    dry_run: o.DryRun = False,
    hidden: o.Hidden = 64,
    layers: o.Layers = None,
    dropout: o.Dropout = None,
    input_dropout: o.InputDropout = None,
    norm: o.Norm = None,
    residual: o.Residual = None,
    linear_in: o.LinearIn = None,
    linear_out: o.LinearOut = None,
    gcnii_alpha: o.InitialShare = None,
    gcnii_theta: o.Theta = None,
    kappa: o.Kappa = None,
    bounded_norm: o.BoundedNorm = None,
    solver: o.FixedPointSolver = None,
    tol: o.Tolerance = None,
    heads: o.Heads = None,
    teleport: o.Teleport = None,
    lr: o.Rate = 0.01,
    weight_decay: o.WeightDecay = 0.0,
    clip: o.Clip = None,
    eval_every: o.EvalEvery = 1,
    parts: o.Parts = None,
    clusters: o.ClustersOrAuto = None,
    redraw: o.Redraw = None,
    partition: o.Partition = None,
    history: o.History = "device",
    alpha: o.Alpha = None,
    score: o.Score = None,
    cut: o.Cut = None,
    first_layer: o.FirstLayer = None,
    momentum: o.Momentum = None,
    adjoints: o.Adjoints = None,
    update: o.Update = None,
    q: o.CalmShare = None,
    batch_size: o.BatchSize = None,
    fanouts: o.Fanouts = None,
    layer_size: o.LayerSize = None,
    sampler: o.Sampler = None,
    drop_edge: o.DropEdge = None,
    no_forward: o.NoForward = False,
    no_backward: o.NoBackward = False,
    data_dir: o.DataDir = None,
    scale: o.Scale = None,
    symmetrise: o.Symmetrise = False,
) -> None:
    """Train a model on a graph with one method.

    Ctrl-C finishes the step and saves; the same command with --resume goes on from there.
    """
    with spoken_errors(resumable=True):
        from lmc.cli.training import train_command

        num_clusters, clusters_auto = parse_clusters(clusters)
        own = MethodOptions(
            parts=parts,
            clusters=num_clusters,
            redraw=redraw,
            partition=partition,
            alpha=alpha,
            score=score,
            cut=cut,
            first_layer=first_layer,
            momentum=momentum,
            adjoints=adjoints,
            update=update,
            q=q,
            batch_size=batch_size,
            fanouts=parse_fanouts(fanouts),
            layer_size=layer_size,
            sampler=sampler,
            drop_edge=drop_edge,
            forward=False if no_forward else None,
            backward=False if no_backward else None,
        )
        train_command(
            DataChoice(dataset, data_dir, scale, symmetrise),
            ModelChoice(
                model,
                hidden,
                layers,
                dropout,
                input_dropout,
                norm,
                residual,
                linear_in,
                linear_out,
                gcnii_alpha,
                gcnii_theta,
                kappa,
                bounded_norm,
                solver,
                tol,
                heads,
                teleport,
            ),
            MethodChoice(method, method, own),
            OptimiserChoice(epochs, lr, weight_decay, clip, eval_every),
            RunChoice(seed, device, run_dir, resume, history, features, rebuild_batches, precision, structure),
            PlanChoice(memory, dry_run, clusters_auto),
        )


@app.command()
def compare(
    dataset: o.Dataset,
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            help="Comma-separated; options of one's own after colons: gas,lmc,lmc:alpha=0.8:score=x^2. "
            "Options below go to every method that has them. auto: those that train the model.",
            rich_help_panel="Method",
        ),
    ] = "auto",
    model: o.Model = "gcn",
    epochs: o.Epochs = 50,
    error_every: Annotated[
        int | None,
        typer.Option(
            "--error-every",
            help="Epochs between measurements of the gradient error; 0: never. Default: about 6 in all.",
            rich_help_panel="Run",
        ),
    ] = None,
    seed: o.Seed = 0,
    run_dir: o.RunDir = None,
    resume: o.Resume = False,
    device: o.Device = "auto",
    precision: o.Precision = "float32",
    hidden: o.Hidden = 64,
    layers: o.Layers = None,
    dropout: o.Dropout = None,
    input_dropout: o.InputDropout = None,
    norm: o.Norm = None,
    residual: o.Residual = None,
    linear_in: o.LinearIn = None,
    linear_out: o.LinearOut = None,
    gcnii_alpha: o.InitialShare = None,
    gcnii_theta: o.Theta = None,
    kappa: o.Kappa = None,
    bounded_norm: o.BoundedNorm = None,
    solver: o.FixedPointSolver = None,
    tol: o.Tolerance = None,
    heads: o.Heads = None,
    teleport: o.Teleport = None,
    lr: o.Rate = 0.01,
    weight_decay: o.WeightDecay = 0.0,
    clip: o.Clip = None,
    eval_every: o.EvalEvery = 1,
    parts: o.Parts = None,
    clusters: o.ClustersPerBatch = None,
    redraw: o.Redraw = None,
    partition: o.Partition = None,
    history: o.History = "device",
    alpha: o.Alpha = None,
    score: o.Score = None,
    cut: o.Cut = None,
    first_layer: o.FirstLayer = None,
    momentum: o.Momentum = None,
    adjoints: o.Adjoints = None,
    update: o.Update = None,
    q: o.CalmShare = None,
    batch_size: o.BatchSize = None,
    fanouts: o.Fanouts = None,
    layer_size: o.LayerSize = None,
    sampler: o.Sampler = None,
    drop_edge: o.DropEdge = None,
    data_dir: o.DataDir = None,
    scale: o.Scale = None,
    symmetrise: o.Symmetrise = False,
) -> None:
    """Train several methods side by side from the same parameters, and draw what came of it.

    Every method has a folder of its own under the run folder; the figure is compare.png there.
    """
    with spoken_errors(resumable=True):
        from lmc.cli.build import AUTO, contest
        from lmc.cli.comparing import compare_command

        shared = MethodOptions(
            parts=parts,
            clusters=clusters,
            redraw=redraw,
            partition=partition,
            alpha=alpha,
            score=score,
            cut=cut,
            first_layer=first_layer,
            momentum=momentum,
            adjoints=adjoints,
            update=update,
            q=q,
            batch_size=batch_size,
            fanouts=parse_fanouts(fanouts),
            layer_size=layer_size,
            sampler=sampler,
            drop_edge=drop_edge,
        )
        compare_command(
            DataChoice(dataset, data_dir, scale, symmetrise),
            ModelChoice(
                model,
                hidden,
                layers,
                dropout,
                input_dropout,
                norm,
                residual,
                linear_in,
                linear_out,
                gcnii_alpha,
                gcnii_theta,
                kappa,
                bounded_norm,
                solver,
                tol,
                heads,
                teleport,
            ),
            parse_methods(contest(model) if methods == AUTO else methods),
            shared,
            OptimiserChoice(epochs, lr, weight_decay, clip, eval_every),
            RunChoice(seed, device, run_dir, resume, history, precision=precision),
            error_every,
        )


@app.command()
def datasets(data_dir: o.DataDir = None) -> None:
    """List the graphs known by name, and where this machine has them."""
    with spoken_errors():
        from lmc.cli.listing import list_datasets

        list_datasets(data_dir)


@app.command()
def methods() -> None:
    """List the training methods."""
    from lmc.cli.listing import list_methods

    list_methods()


@bench_app.callback()
def bench() -> None:
    """Measure speed, memory, losses and gradient errors."""


for _name, _command in BENCHES.items():
    bench_app.command(_name)(_command)


@bench_app.command("epoch")
def bench_epoch(
    dataset: o.Dataset = "arxiv-like",
    methods: Annotated[
        str, typer.Option("--methods", help="What to time beside the full batch, comma-separated.")
    ] = "gas,lmc",
    configs: Annotated[
        str, typer.Option("--configs", help="parts/clusters of those, comma-separated.")
    ] = "80/40,80/10",
    alpha: Annotated[float, typer.Option("--alpha", help="Of lmc.")] = 1.0,
    score: Annotated[str, typer.Option("--score", help="Of lmc.")] = "1",
    hidden: Annotated[int, typer.Option("--hidden", help="Width of the hidden layers.")] = 256,
    layers: Annotated[int, typer.Option("--layers", help="Aggregations.")] = 3,
    dropout: Annotated[float, typer.Option("--dropout", help="Rate between layers.")] = 0.5,
    norm: Annotated[str, typer.Option("--norm", help="none, layer or batch.")] = "none",
    repeat: Annotated[
        int | None, typer.Option("--repeat", help="Epochs to take the median of. Default: 3; 20 on a GPU.")
    ] = None,
    warmup: Annotated[int | None, typer.Option("--warmup", help="Epochs before them. Default: 1; 3 on a GPU.")] = None,
    pyg: Annotated[bool, typer.Option("--pyg/--no-pyg", help="Time PyG's full batch too.")] = True,
    seed: Annotated[int, typer.Option("--seed", help="Of parameters, partition and batches.")] = 0,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")] = "auto",
    precision: o.Precision = "float32",
    out: Annotated[
        Path | None, typer.Option("--out", help="JSON file to write. Default: one under runs/bench/.")
    ] = None,
    data_dir: o.DataDir = None,
    scale: o.Scale = None,
) -> None:
    """Time one training epoch of a GCN: PyG's full batch, ours, and mini-batch methods, in one process."""
    with spoken_errors():
        from lmc.cli.timing import BenchChoice, bench_command

        bench_command(
            DataChoice(dataset, data_dir, scale),
            BenchChoice(methods, configs, alpha, score, pyg, repeat, warmup),
            ModelChoice("gcn", hidden, layers, dropout, norm=norm),
            RunChoice(seed, device, out, precision=precision),
        )
