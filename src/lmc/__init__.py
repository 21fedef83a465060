"""Train graph neural networks on graphs too large for a full-batch step."""

from lmc import diagnostics, errors, graph, history, methods, models, partition, results
from lmc.data import load, save
from lmc.graph import Graph
from lmc.results import EpochRecord, RunRecord
from lmc.train import evaluate, fit

__all__ = [
    "EpochRecord",
    "Graph",
    "RunRecord",
    "diagnostics",
    "errors",
    "evaluate",
    "fit",
    "graph",
    "history",
    "load",
    "methods",
    "models",
    "partition",
    "results",
    "save",
]
__version__ = "0.1.0"
