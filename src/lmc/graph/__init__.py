"""Nouns: the graph, its sparse matrices, the one sparse product."""

from lmc.graph.batch import Batch
from lmc.graph.csr import CSR, row_pieces
from lmc.graph.graph import SPLITS, Graph
from lmc.graph.live_tensors import live_tensors
from lmc.graph.normalise import NORMALISATIONS, gcn_norm, normalise, renormalise
from lmc.graph.product import Aggregation, Precomputed, Recalling, accumulate, beside, sparse_product, spmm
from lmc.graph.subgraph import Extractor
from lmc.kernels.paged import lock, pages

__all__ = [
    "CSR",
    "NORMALISATIONS",
    "SPLITS",
    "Aggregation",
    "Batch",
    "Extractor",
    "Graph",
    "Precomputed",
    "Recalling",
    "accumulate",
    "beside",
    "gcn_norm",
    "live_tensors",
    "lock",
    "normalise",
    "pages",
    "renormalise",
    "row_pieces",
    "sparse_product",
    "spmm",
]
