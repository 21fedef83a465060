"""``lmc bench epoch``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch_geometric
from rich.live import Live
from rich.table import Table

from lmc.bench import EpochTiming, Setup, time_epochs
from lmc.bench.measure import matmul_precision
from lmc.cli.build import build_method, load_graph, options_of
from lmc.cli.choices import DataChoice, MethodChoice, MethodOptions, ModelChoice, RunChoice, parse_methods
from lmc.cli.console import console, facts, file_name, percent
from lmc.cli.training import device_name
from lmc.errors import ConfigError
from lmc.methods import METHODS, Method
from lmc.results import write_json
from lmc.stores import check_device


@dataclass(frozen=True)
class BenchChoice:
    """What to time, and how often."""

    methods: str
    configs: str
    alpha: float
    score: str
    pyg: bool
    repeat: int | None
    warmup: int | None


def bench_command(data: DataChoice, choice: BenchChoice, model: ModelChoice, where: RunChoice) -> None:
    """Time, show the lines as they come, and write them down."""
    out, device = console(), check_device(where.device)
    methods = methods_of(choice)
    on_gpu = device.type == "cuda"
    setup = Setup(
        hidden=model.hidden,
        layers=model.layers or Setup.layers,
        dropout=Setup.dropout if model.dropout is None else model.dropout,
        norm=None if model.norm == "none" else model.norm,
        seed=where.seed,
        warmup=choice.warmup if choice.warmup is not None else 3 if on_gpu else 1,
        repeat=choice.repeat if choice.repeat is not None else 20 if on_gpu else 3,
        precision=where.precision,
    )
    graph = load_graph(data)
    timings: list[EpochTiming] = []
    with matmul_precision(device) as precision:
        about = [
            ("graph", repr(graph)),
            ("model", f"GCN, {setup.layers} layers of {setup.hidden}, dropout {setup.dropout:g}"),
            (
                "device",
                f"{device_name(device)}, {setup.precision} rows, {precision} products, torch {torch.__version__}",
            ),
            ("time", f"median of {setup.repeat} epochs after {setup.warmup}; training steps with Adam, no evaluation"),
        ]
        out.print(facts(about))
        target = where.run_dir or Path("runs/bench") / f"{file_name(f'epoch-{graph.name}-{device.type}')}.json"
        with Live(_table(timings), console=out, transient=True, auto_refresh=False) as live:
            for timing in time_epochs(graph, methods, setup, device, pyg=choice.pyg):
                timings.append(timing)
                _write(target, dict(about), setup, timings)
                if out.is_terminal:
                    live.update(_table(timings), refresh=True)
                else:
                    out.print(f"{timing.method}: {timing.ms:,.2f} ms")
    out.print(_table(timings))
    out.print(f"written to {target}", soft_wrap=True)


def methods_of(choice: BenchChoice) -> dict[str, Method]:
    """Every method in every division of the graph."""
    found: dict[str, Method] = {}
    for wanted in parse_methods(choice.methods):
        if wanted.name in METHODS and "parts" not in options_of(wanted.name):
            found[wanted.label] = build_method(wanted)
            continue
        for parts, clusters in parse_configs(choice.configs):
            label = f"{wanted.label} {parts}/{clusters}"
            found[label] = build_method(_in_config(wanted, choice, parts, clusters))
    return found


def _in_config(wanted: MethodChoice, choice: BenchChoice, parts: int, clusters: int) -> MethodChoice:
    defaults: dict[str, Any] = {"parts": parts, "clusters": clusters}
    if wanted.name in METHODS and "alpha" in options_of(wanted.name):
        defaults |= {"alpha": choice.alpha, "score": choice.score}
    return dataclasses.replace(wanted, options=MethodOptions(**defaults | wanted.options.given()))


def parse_configs(text: str) -> list[tuple[int, int]]:
    """``"80/40,80/10"`` -> parts and clusters of every division."""
    configs = []
    for part in text.split(","):
        parts, _, clusters = part.strip().partition("/")
        if not (parts.isdigit() and clusters.isdigit()):
            raise ConfigError(f"expected configs as parts/clusters, e.g. 80/40,80/10 (got {part.strip()!r})")
        configs.append((int(parts), int(clusters)))
    return configs


def _table(timings: list[EpochTiming]) -> Table:
    table = Table()
    table.add_column("method", no_wrap=True)
    columns = (
        "parts/clusters", "steps", "ms / epoch", "x pyg-full", "x full", "non-zeros", "x work", "step MB", "halo/core",
    )  # fmt: skip
    on_gpu = any(t.resident_mb is not None for t in timings)
    for column in (*columns[:-1], *(["resident MB"] if on_gpu else []), columns[-1]):
        table.add_column(column, justify="right", no_wrap=True)
    for t in timings:
        table.add_row(
            t.method.split(" ")[0],
            "-" if t.parts is None else f"{t.parts}/{t.clusters}",
            str(t.steps),
            f"{t.ms:,.2f}" if t.ms < 100 else f"{t.ms:,.0f}",
            _ratio(t.vs_pyg),
            _ratio(t.vs_full),
            percent(t.nnz_share),
            _ratio(t.vs_work),
            f"{t.step_mb:,.1f}",
            *([f"{t.resident_mb or 0:,.1f}"] if on_gpu else []),
            f"{t.halo_ratio:.2f}",
        )
    table.caption = (
        "x pyg-full, x full: time over that of torch_geometric.nn.GCN on edge_index, and of our full batch; "
        "non-zeros: of all batches over the graph's; x work: time over (non-zeros x full-batch time)"
    )
    table.caption_justify = "left"
    return table


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def _write(target: Path, about: dict[str, str], setup: Setup, timings: list[EpochTiming]) -> None:
    content = {
        "about": about,
        "versions": {"torch": torch.__version__, "torch_geometric": torch_geometric.__version__},
        "setup": dataclasses.asdict(setup),
        "timings": [dataclasses.asdict(t) for t in timings],
    }
    write_json(target, content)
