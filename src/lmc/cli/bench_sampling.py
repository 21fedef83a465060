"""``lmc bench sampling``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from lmc.cli import options as o
from lmc.cli.choices import DataChoice, MethodChoice, MethodOptions, parse_methods
from lmc.cli.console import console, facts, file_name, percent, spoken_errors


def bench_sampling(
    dataset: o.Dataset = "arxiv-like",
    methods: Annotated[
        str, typer.Option("--methods", help="What to time, comma-separated, options after colons.")
    ] = "graphsage:fanouts=10/10/5",
    batch_size: Annotated[int, typer.Option("--batch-size", help="Training nodes a batch grows from.")] = 1024,
    hidden: Annotated[int, typer.Option("--hidden", help="Width of the hidden layers.")] = 256,
    layers: Annotated[int, typer.Option("--layers", help="Aggregations.")] = 3,
    dropout: Annotated[float, typer.Option("--dropout", help="Rate between layers.")] = 0.5,
    steps: Annotated[int, typer.Option("--steps", help="Steps to take the median of.")] = 20,
    warmup: Annotated[int, typer.Option("--warmup", help="Steps before them.")] = 3,
    seed: Annotated[int, typer.Option("--seed", help="Of parameters and batches.")] = 0,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")] = "auto",
    out: Annotated[
        Path | None, typer.Option("--out", help="JSON file to write. Default: one under runs/bench/.")
    ] = None,
    data_dir: o.DataDir = None,
    scale: o.Scale = None,
) -> None:
    """Time the drawing of batches against the steps they are for: the share of sampling."""
    with spoken_errors():
        from rich.table import Table

        from lmc.bench import Setup, time_sampling
        from lmc.bench.measure import matmul_precision
        from lmc.cli.build import build_method, load_graph, options_of
        from lmc.cli.cells import whole
        from lmc.cli.training import device_name
        from lmc.methods import METHODS
        from lmc.results import write_json
        from lmc.stores import check_device

        whole("--steps", str(steps))

        def sized(choice: MethodChoice) -> MethodChoice:
            if choice.name not in METHODS or "batch_size" not in options_of(choice.name):
                return choice
            given = {"batch_size": batch_size} | choice.options.given()
            return dataclasses.replace(choice, options=MethodOptions(**given))

        chosen = {choice.label: build_method(sized(choice)) for choice in parse_methods(methods)}
        on, graph = check_device(device), load_graph(DataChoice(dataset, data_dir, scale))
        setup = Setup(hidden=hidden, layers=layers, dropout=dropout, seed=seed, warmup=warmup)
        screen = console()
        table = Table()
        table.add_column("method", no_wrap=True)
        for column in (
            "steps an epoch",
            "rows",
            "entries",
            "sampling ms",
            "step ms",
            "share of sampling",
            "training ms",
        ):
            table.add_column(column, justify="right")
        timings = []
        with matmul_precision(on) as precision:
            about = [
                ("graph", repr(graph)),
                ("model", f"GCN, {layers} layers of {hidden}, dropout {dropout:g}"),
                ("device", f"{device_name(on)}, {precision} products"),
                ("time", f"median of {steps} steps after {warmup}"),
            ]
            screen.print(facts(about))
            target = out or Path("runs/bench") / f"{file_name(f'sampling-{graph.name}-{on.type}')}.json"
            for label, method in chosen.items():
                timing = time_sampling(label, graph, method, setup, on, steps)
                timings.append(dataclasses.asdict(timing))
                write_json(target, {"about": dict(about), "timings": timings})
                table.add_row(
                    label,
                    str(timing.steps),
                    f"{timing.rows:,.0f}",
                    f"{timing.entries:,.0f}",
                    f"{timing.sample_ms:,.2f}",
                    f"{timing.step_ms:,.2f}",
                    percent(timing.share),
                    f"{timing.training_ms:,.2f}",
                )
        screen.print(table)
        screen.print(f"written to {target}", soft_wrap=True)
