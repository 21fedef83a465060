"""The table of docs/distributed.md says which methods train which models, and how ranks exchange rows."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jobs import EVERY_MODEL, Case

from lmc.engine import Distributed
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.methods import METHODS, Method
from lmc.models import Model

PAGE = Path(__file__).resolve().parents[2] / "docs" / "distributed.md"
COLUMNS = {
    "GCN, SAGE, GIN, GCNII, APPNP": ("gcn", "sage", "gin", "gcnii", "appnp"),
    "GAT, PNA": ("gat", "pna"),
    "RecGCN, IGNN": ("recgcn", "ignn"),
    "wrapped, weighted sums": ("wrap-sage", "wrap-gin"),
    "wrapped, others": ("wrap-gat", "wrap-mixed"),
}


@cache
def made(model: str) -> tuple[Case, Graph, Model]:
    """A graph and a model that fit each other; a model is bound many times."""
    case = Case(Method(), model, "edge-features" if model == "wrap-mixed" else "random")
    graph = case.make_graph()
    return case, graph, case.make_model(graph)


def binds(method: Method, model: str, **options: Any) -> bool:
    """Whether a method is bound to a model, as far as a process without other ranks gets."""
    case, graph, network = made(model)
    try:
        method.bind(graph, network, case.make_parts(graph), device="cpu", **options)
    except ConfigError as refusal:
        return "expected a process of torchrun" in str(refusal)
    return True


def accepted(method: Method, model: str) -> str:
    """The values of ``sync`` with which a method trains a model."""
    found = [sync for sync in ("step", "layer") if binds(method, model, distributed=Distributed(sync=sync))]
    return ", ".join(found if found and binds(method, model) else "-")


def row_of(method: Method) -> str:
    cells = []
    for models in COLUMNS.values():
        (cell,) = {accepted(method, model) for model in models}
        cells.append(cell)
    return "| " + " | ".join([method.traits.title, *cells]) + " |"


def test_the_table_of_the_page_is_what_bind_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    # a network need not be compared with plain autograd at every bind
    monkeypatch.setattr(type(made("wrap-sage")[2]), "check_on", lambda self, graph: None)
    assert {name for models in COLUMNS.values() for name in models} <= set(EVERY_MODEL)
    page = PAGE.read_text()
    assert "| method | " + " | ".join(COLUMNS) + " |" in page
    for cls in METHODS.values():
        if cls.traits.sync:
            assert row_of(cls()) in page
        elif cls.traits.name != "dropedge":  # it is what its inner method is
            assert f"\n| {cls.traits.title} |" not in page
