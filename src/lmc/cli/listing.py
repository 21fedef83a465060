"""``lmc datasets`` and ``lmc methods``."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.table import Table

from lmc.cli.console import console
from lmc.data import describe
from lmc.engine.problem import Problem
from lmc.graph import Graph
from lmc.methods import METHODS, DropEdge, Method
from lmc.models import GCN
from lmc.stores import Placement


def list_datasets(data_dir: Path | None) -> None:
    """One line a set."""
    table = Table("name", "kind")
    for column in ("nodes", "edges", "features", "classes"):
        table.add_column(column, justify="right")
    table.add_column("found", overflow="fold")
    for info in describe(data_dir):
        sizes = (f"{size:,}" for size in (info.nodes, info.edges, info.features, info.classes))
        table.add_row(info.name, info.kind, *sizes, info.where)
    out = console()
    out.print(table)
    out.print("A lookalike needs no file: --scale 0.1, or arxiv-like@0.1, makes it a tenth of its size.")


def list_methods() -> None:
    """One line a method."""
    out = console()
    table = Table(show_lines=True, width=min(out.width, 120))
    for column in ("name, method and paper", "messages from outside the batch"):
        table.add_column(column, ratio=1)
    table.add_column("facts it is tested for", no_wrap=True)
    table.add_column("models, histories, rows in memory in a step", ratio=1)
    for name, cls in METHODS.items():
        _add(table, name, cls, _histories(cls()))
    _add(table, "--drop-edge", DropEdge, "as the method it wraps")
    out.print(table)
    out.print("A table of histories has one row a node; --history host keeps it in host memory.")


def _add(table: Table, name: str, cls: type[Method], histories: str) -> None:
    table.add_row(
        f"[bold]{name}[/bold]\n{cls.title}\n{cls.paper}",
        cls.outside,
        "\n".join(sorted(cls.facts)) or "none",
        f"models: {_models(cls)}\nhistories: {histories}\nrows: {cls.step_rows}",
    )


def _models(cls: type[Method]) -> str:
    if not cls.trains_convolutional:
        return "recurrent"
    if cls.accepts == "any":
        return "any" if cls.trains_recurrent else "any but recurrent"
    return f"{cls.accepts}, recurrent" if cls.trains_recurrent else cls.accepts


def _histories(method: Method) -> str:
    """What a method keeps between steps, asked of it on the smallest problem."""
    return ", ".join(name for name, layers in method.keeps(_smallest()).items() if layers) or "none"


def _smallest() -> Problem:
    ends, path = torch.arange(3), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    graph = Graph.from_edges(path, torch.eye(3), ends, train=ends == 0, val=ends == 1, test=ends == 2)
    return Problem.of(graph, GCN(3, 2, 3, num_layers=3), Placement(device="cpu"))
