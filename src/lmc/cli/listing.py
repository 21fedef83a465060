"""``lmc datasets``, ``lmc methods`` and ``lmc models``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.markup import escape
from rich.table import Column, Table

from lmc.cli.console import console
from lmc.cli.spec import METHODS, MODELS, method_options, model_options
from lmc.data import describe
from lmc.engine.problem import Problem
from lmc.grammar import Option, named, summary_of
from lmc.graph import Graph
from lmc.methods import DropEdge, Method, Traits
from lmc.models import GCN
from lmc.stores import Placement


def list_datasets(data_dir: Path | None) -> None:
    """Print the data sets that are known by name, and where their files are."""
    sizes = [Column(name, justify="right") for name in ("nodes", "edges", "features", "classes")]
    table = Table("name", "kind", *sizes, "preprocessing", Column("found", overflow="fold"))
    for info in describe(data_dir):
        numbers = (f"{size:,}" for size in (info.nodes, info.edges, info.features, info.classes))
        table.add_row(info.name, info.kind, *numbers, info.preprocessing, info.where)
    out = console()
    out.print(table)
    out.print("A lookalike needs no file: --scale 0.1, or arxiv-like@0.1, makes it a tenth of its size.")


def list_methods(name: str | None) -> None:
    """Print all methods, or the options of one."""
    if name is not None:
        _show(named(name, METHODS, "method"), method_options(name), f"--method {name}")
        return
    out = console()
    table = Table(
        Column("name, method and paper", ratio=1),
        Column("messages from outside the batch", ratio=1),
        Column("facts it is tested for", no_wrap=True),
        Column("models, histories, rows in memory in a step", ratio=1),
        show_lines=True,
        width=min(out.width, 120),
    )
    for known, cls in METHODS.items():
        _add(table, known, cls, _histories(cls()))
    _add(table, "METHOD:drop_edge=P", DropEdge, "as the method it wraps")
    out.print(table)
    out.print("LMC4Conv is exact with exact histories if alpha=0, and LADIES is unbiased with normalise=no.")
    out.print("A table of histories has one row per node; --history host keeps it in host memory.")
    out.print("`lmc methods lmc` shows the options of one.")


def list_models(name: str | None) -> None:
    """Print all models, or the options of one."""
    if name is not None:
        _show(named(name, MODELS, "model"), model_options(name), f"--model {name}")
        return
    table = Table("name", "model", show_lines=True)
    for known, cls in MODELS.items():
        table.add_row(f"[bold]{known}[/bold]", f"{_title(cls)}\n{summary_of(cls).splitlines()[0]}")
    out = console()
    out.print(table)
    out.print("`lmc models gcn` shows the options of one.")


def _show(cls: type, options: Sequence[Option], usage: str) -> None:
    out = console()
    out.print(f"[bold]{_title(cls)}[/bold]\n")
    out.print(summary_of(cls).removeprefix(_title(cls)).strip(), markup=False)
    option_column = Column("option", no_wrap=True)
    table = Table(option_column, "value", "default", "help", show_lines=True, width=min(out.width, 120))
    for option in options:
        table.add_row(option.name, option.expected, _value(option.default), escape(option.help))
    out.print(table)
    out.print(f"usage: {usage}:option=value:option=value", markup=False)


def _title(cls: type) -> str:
    """The name of a method or a model and its paper: the first line of its docstring, or else of its module."""
    own = summary_of(cls).partition("\n")[0]
    if own.startswith(f"{cls.__name__}: "):
        return own
    return (sys.modules[cls.__module__].__doc__ or cls.__name__).splitlines()[0]


def _value(value: object) -> str:
    """A value as the grammar spells it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _add(table: Table, name: str, cls: type[Method], histories: str) -> None:
    traits = cls.traits
    table.add_row(
        f"[bold]{name}[/bold]\n{traits.title}\n{_title(cls)}",
        traits.outside,
        "\n".join(sorted(traits.facts)) or "none",
        f"models: {_models(traits)}\nhistories: {histories}\nrows: {traits.step_rows}",
    )


def _models(traits: Traits) -> str:
    recurrent = "recurrent" in traits.trains
    if "layered" not in traits.trains:
        return "recurrent"
    if traits.accepts == "any":
        return "any" if recurrent else "any but recurrent"
    return f"{traits.accepts}, recurrent" if recurrent else traits.accepts


def _histories(method: Method) -> str:
    """The tables that a method keeps between steps on a path of three nodes."""
    ends, path = torch.arange(3), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    graph = Graph.from_edges(path, torch.eye(3), ends, train=ends == 0, val=ends == 1, test=ends == 2)
    problem = Problem.of(graph, GCN(3, 2, 3, num_layers=3), Placement(device="cpu"))
    return ", ".join(name for name, layers in method.tables(problem).items() if layers) or "none"
