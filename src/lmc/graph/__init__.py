"""Nouns: the graph, its sparse matrices, the one sparse product."""

from lmc.graph.batch import Batch
from lmc.graph.csr import CSR
from lmc.graph.graph import SPLITS, Graph
from lmc.graph.normalise import gcn_norm, renormalise
from lmc.graph.product import Aggregation, Precomputed, accumulate, sparse_product, spmm
from lmc.graph.subgraph import Extractor

__all__ = [
    "CSR",
    "SPLITS",
    "Aggregation",
    "Batch",
    "Extractor",
    "Graph",
    "Precomputed",
    "accumulate",
    "gcn_norm",
    "renormalise",
    "sparse_product",
    "spmm",
]
