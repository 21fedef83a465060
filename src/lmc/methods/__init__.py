"""Methods: one paper, one file. Each is an estimator of the gradient behind one interface."""

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
from lmc.models import Model

METHODS: dict[str, type[Method]] = {
    cls.name: cls for cls in (FullBatch, BackwardSGD, ClusterGCN, GAS, GraphFM, LMC4Conv, CMC, LMC4Rec, CMC4Rec, SSE)
}
"""Every method by its short name, as the command line spells it."""


def recommended(model: Model) -> type[Method]:
    """The method to train a model with, where nothing speaks for another one."""
    if model.recurrent:
        return LMC4Rec
    return CMC if model.linear else LMC4Conv


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
    "recommended",
]
