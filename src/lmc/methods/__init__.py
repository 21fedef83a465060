"""Methods: one paper, one file. Each is an estimator of the gradient behind one interface."""

from lmc.methods.backward_sgd import BackwardSGD
from lmc.methods.cluster_gcn import ClusterGCN
from lmc.methods.cmc import CMC
from lmc.methods.cmc4rec import CMC4Rec
from lmc.methods.drop_edge import DropEdge
from lmc.methods.fast_gcn import FastGCN
from lmc.methods.full import FullBatch
from lmc.methods.gas import GAS
from lmc.methods.graph_fm import GraphFM
from lmc.methods.graph_fm_ib import GraphFMIB
from lmc.methods.graph_sage import GraphSAGE
from lmc.methods.graph_saint import GraphSAINT
from lmc.methods.imc import IMC, TOP
from lmc.methods.ladies import LADIES
from lmc.methods.lmc4conv import LMC4Conv
from lmc.methods.lmc4rec import LMC4Rec
from lmc.methods.protocol import ClusterMethod, HistoryMethod, Method, SamplingMethod, Traits
from lmc.methods.shadow import ShaDow
from lmc.methods.sign import SIGN
from lmc.methods.sse import SSE
from lmc.methods.vr_gcn import VRGCN

METHODS: dict[str, type[Method]] = {
    cls.traits.name: cls
    for cls in (
        FullBatch,
        BackwardSGD,
        ClusterGCN,
        GAS,
        GraphFM,
        LMC4Conv,
        CMC,
        IMC,
        TOP,
        GraphSAGE,
        VRGCN,
        GraphFMIB,
        FastGCN,
        LADIES,
        GraphSAINT,
        ShaDow,
        SIGN,
        LMC4Rec,
        CMC4Rec,
        SSE,
    )
}
"""Every method by its short name, as the command line spells it; DropEdge wraps any of them."""
