"""``lmc bench recurrent``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from lmc.cli import options as o
from lmc.cli.choices import DataChoice, MethodOptions, parse_methods
from lmc.cli.console import console, facts, file_name, spoken_errors


def bench_recurrent(
    dataset: o.Dataset = "cora",
    methods: Annotated[
        str,
        typer.Option("--methods", help="What to time, comma-separated; the first is what the others are read against."),
    ] = "gas,lmc4rec",
    partitions: Annotated[str, typer.Option("--partitions", help="metis, random; comma-separated.")] = "metis,random",
    lrs: Annotated[str, typer.Option("--lrs", help="A learning rate for each partition.")] = "3e-3,1e-3",
    tols: Annotated[str, typer.Option("--tols", help="Tolerances of the solver, comma-separated.")] = "1e-4",
    solver: Annotated[str, typer.Option("--solver", help="picard or anderson.")] = "picard",
    parts: Annotated[int, typer.Option("--parts", help="Parts of the graph.")] = 10,
    clusters: Annotated[int, typer.Option("--clusters", help="Parts a batch.")] = 2,
    hidden: Annotated[int, typer.Option("--hidden", help="Width of the state.")] = 128,
    dropout: Annotated[float, typer.Option("--dropout", help="Rate before the output layer.")] = 0.0,
    warmup: Annotated[int, typer.Option("--warmup", help="Epochs of training before anything is measured.")] = 40,
    repeat: Annotated[int, typer.Option("--repeat", help="Epochs to take the median of.")] = 16,
    counted: Annotated[int, typer.Option("--counted", help="Epochs after them whose solver steps are counted.")] = 4,
    seed: Annotated[int, typer.Option("--seed", help="Of parameters, partition and batches.")] = 0,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")] = "auto",
    out: Annotated[
        Path | None, typer.Option("--out", help="JSON file to write. Default: one under runs/bench/.")
    ] = None,
    data_dir: o.DataDir = None,
    scale: o.Scale = None,
) -> None:
    """Time epochs of a RecGCN in training, and count the solver steps that starting from the histories saves."""
    with spoken_errors():
        from rich.table import Table

        from lmc.bench.measure import matmul_precision
        from lmc.bench.recurrent import RecurrentSetup, time_recurrent
        from lmc.cli.build import build_method, load_graph, options_of
        from lmc.cli.cells import parse_list, positive
        from lmc.cli.training import device_name
        from lmc.errors import ConfigError
        from lmc.results import write_json
        from lmc.stores import check_device

        cuts, rates = partitions.split(","), [positive("--lrs")(rate.strip()) for rate in lrs.split(",")]
        tolerances = parse_list(tols, "--tols", positive("--tols"))
        if len(cuts) != len(rates):
            raise ConfigError(f"expected a learning rate for each of {len(cuts)} partitions (got {len(rates)})")
        on, graph = check_device(device), load_graph(DataChoice(dataset, data_dir, scale))
        screen, timings = console(), []
        table = Table()
        table.add_column("partition, tol, method", no_wrap=True)
        for column in ("halo/core", "ms / epoch", "x first", "cold steps", "warm steps", "times fewer", "loss"):
            table.add_column(column, justify="right")
        with matmul_precision(on) as precision:
            about = [
                ("graph", repr(graph)),
                ("model", f"RecGCN, width {hidden}, dropout {dropout:g}, {solver}"),
                ("device", f"{device_name(on)}, {precision} products"),
                ("time", f"median of {repeat} epochs after {warmup}; steps of {counted} more, forward + backward"),
            ]
            screen.print(facts(about))
            target = out or Path("runs/bench") / f"{file_name(f'recurrent-{graph.name}-{on.type}')}.json"
            for how, lr in zip(cuts, rates, strict=True):
                for tol in tolerances:
                    chosen = {}
                    for choice in parse_methods(methods):
                        divided: dict[str, Any] = {"parts": parts, "clusters": clusters, "partition": how}
                        given = {k: v for k, v in divided.items() if k in options_of(choice.name)}
                        options = MethodOptions(**given | choice.options.given())
                        chosen[choice.label] = build_method(dataclasses.replace(choice, options=options))
                    setup = RecurrentSetup(hidden, lr, dropout, solver, tol, seed, warmup, repeat, counted)
                    for timing in time_recurrent(graph, chosen, setup, on):
                        line = {"partition": how, "tol": tol, "lr": lr, **dataclasses.asdict(timing)}
                        timings.append(line)
                        write_json(target, {"about": dict(about), "timings": timings})
                        row = (
                            f"{how}, {tol:g}, {timing.method}",
                            f"{timing.halo_ratio:.2f}",
                            f"{timing.ms:,.1f}",
                            f"{timing.vs_first:.2f}",
                            _steps(timing.cold),
                            _steps(timing.warm),
                            "-" if timing.fewer is None else f"{timing.fewer:.2f}",
                            f"{timing.loss:.4f}",
                        )
                        table.add_row(*row)
                        if not screen.is_terminal:
                            screen.print(" | ".join(row), soft_wrap=True)
        screen.print(table)
        screen.print(f"written to {target}", soft_wrap=True)


def _steps(steps: tuple[float, float] | None) -> str:
    return "-" if steps is None else f"{steps[0]:.1f} + {steps[1]:.1f}"
