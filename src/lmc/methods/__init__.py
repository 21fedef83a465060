"""Methods: one paper, one file. Each is an estimator of the gradient behind one interface."""

from lmc.errors import ConfigError
from lmc.methods.backward_sgd import BackwardSGD
from lmc.methods.base import ClusterMethod, HistoryMethod, Method
from lmc.methods.cluster_gcn import ClusterGCN
from lmc.methods.cmc import CMC
from lmc.methods.cmc4rec import CMC4Rec
from lmc.methods.full import FullBatch
from lmc.methods.gas import GAS
from lmc.methods.graph_fm import GraphFM
from lmc.methods.lmc4conv import LMC4Conv
from lmc.methods.lmc4rec import LMC4Rec
from lmc.methods.problem import Problem
from lmc.methods.run import Run, StepStats
from lmc.methods.sse import SSE

METHODS: dict[str, type[Method]] = {
    cls.name: cls for cls in (FullBatch, BackwardSGD, ClusterGCN, GAS, GraphFM, LMC4Conv, CMC, LMC4Rec, CMC4Rec, SSE)
}
"""Every method by its short name, as the command line spells it."""


def method_class(name: str) -> type[Method]:
    """A method's class by its short name."""
    if name not in METHODS:
        raise ConfigError(f"expected a method in {sorted(METHODS)} (got {name!r})")
    return METHODS[name]


__all__ = [
    "CMC",
    "GAS",
    "METHODS",
    "SSE",
    "BackwardSGD",
    "CMC4Rec",
    "ClusterGCN",
    "ClusterMethod",
    "FullBatch",
    "GraphFM",
    "HistoryMethod",
    "LMC4Conv",
    "LMC4Rec",
    "Method",
    "Problem",
    "Run",
    "StepStats",
    "method_class",
]
