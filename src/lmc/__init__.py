"""Train graph neural networks on graphs too large for a full-batch step."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lmc import (
        data,
        diagnostics,
        engine,
        errors,
        graph,
        losses,
        methods,
        models,
        partition,
        presets,
        results,
        stores,
        testing,
        train,
    )
    from lmc.data import load, save
    from lmc.diagnostics import recommended
    from lmc.engine import Distributed
    from lmc.graph import Graph
    from lmc.heap import keep_memory
    from lmc.pyg import wrap
    from lmc.results import EpochRecord, RunRecord
    from lmc.stores import Placement
    from lmc.train import evaluate, fit, load_run, predict

# loaded when first asked for: importing torch takes longer than `lmc --help` should
_LOCATIONS = {
    "Distributed": "lmc.engine",
    "EpochRecord": "lmc.results",
    "Graph": "lmc.graph",
    "Placement": "lmc.stores",
    "RunRecord": "lmc.results",
    "evaluate": "lmc.train",
    "fit": "lmc.train",
    "keep_memory": "lmc.heap",
    "load": "lmc.data",
    "load_run": "lmc.train",
    "predict": "lmc.train",
    "recommended": "lmc.diagnostics",
    "save": "lmc.data",
    "wrap": "lmc.pyg",
}
_SUBPACKAGES = (
    "data",
    "diagnostics",
    "engine",
    "errors",
    "graph",
    "losses",
    "methods",
    "models",
    "partition",
    "presets",
    "results",
    "stores",
    "testing",
    "train",
)

__all__ = [*_LOCATIONS, *_SUBPACKAGES]


def __getattr__(name: str) -> object:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"lmc.{name}")
    if name in _LOCATIONS:
        return getattr(importlib.import_module(_LOCATIONS[name]), name)
    raise AttributeError(f"module 'lmc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
