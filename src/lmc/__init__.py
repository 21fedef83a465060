"""Train graph neural networks on graphs too large for a full-batch step."""

from lmc import errors, graph, history, methods, models
from lmc.data import load, save
from lmc.graph import Graph

__all__ = ["Graph", "errors", "graph", "history", "load", "methods", "models", "save"]
__version__ = "0.1.0"
