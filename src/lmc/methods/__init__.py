"""Methods: one paper, one file. Each is an estimator of the gradient behind one interface."""

from lmc.errors import ConfigError
from lmc.methods.backward_sgd import BackwardSGD
from lmc.methods.base import ClusterMethod, HistoryMethod, Method
from lmc.methods.cluster_gcn import ClusterGCN
from lmc.methods.cmc import CMC
from lmc.methods.drop_edge import DropEdge
from lmc.methods.fast_gcn import FastGCN
from lmc.methods.full import FullBatch
from lmc.methods.gas import GAS
from lmc.methods.graph_fm import GraphFM
from lmc.methods.graph_fm_ib import GraphFMIB
from lmc.methods.graph_sage import GraphSAGE
from lmc.methods.graph_saint import GraphSAINT
from lmc.methods.ladies import LADIES
from lmc.methods.lmc4conv import LMC4Conv
from lmc.methods.problem import Problem
from lmc.methods.run import Run, StepStats
from lmc.methods.shadow import ShaDow
from lmc.methods.sign import SIGN
from lmc.methods.vr_gcn import VRGCN

METHODS: dict[str, type[Method]] = {
    cls.name: cls
    for cls in (
        FullBatch,
        BackwardSGD,
        ClusterGCN,
        GAS,
        GraphFM,
        LMC4Conv,
        CMC,
        GraphSAGE,
        VRGCN,
        GraphFMIB,
        FastGCN,
        LADIES,
        GraphSAINT,
        ShaDow,
        SIGN,
    )
}
"""Every method by its short name, as the command line spells it; DropEdge wraps any of them."""


def method_class(name: str) -> type[Method]:
    """A method's class by its short name."""
    if name not in METHODS:
        raise ConfigError(f"expected a method in {sorted(METHODS)} (got {name!r})")
    return METHODS[name]


__all__ = [
    "CMC",
    "GAS",
    "LADIES",
    "METHODS",
    "SIGN",
    "VRGCN",
    "BackwardSGD",
    "ClusterGCN",
    "ClusterMethod",
    "DropEdge",
    "FastGCN",
    "FullBatch",
    "GraphFM",
    "GraphFMIB",
    "GraphSAGE",
    "GraphSAINT",
    "HistoryMethod",
    "LMC4Conv",
    "Method",
    "Problem",
    "Run",
    "ShaDow",
    "StepStats",
    "method_class",
]
