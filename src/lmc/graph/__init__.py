"""The graph, mini-batches, sparse matrices and the one sparse product."""

from lmc.graph.batch import Batch, live_tensors
from lmc.graph.checks import SPLITS
from lmc.graph.csr import CSR, entry_chunks, offload, row_chunks, rows_in_chunks, rows_split, with_transpose
from lmc.graph.edges import checked_edges
from lmc.graph.graph import Graph, Nodes, without_features
from lmc.graph.mapped import MappedFiles
from lmc.graph.normalise import NORMALISATIONS, adjacency_of, gcn_norm, normalise, renormalise
from lmc.graph.padded import Counted, PaddedExtractor, Room, with_empty_row
from lmc.graph.product import Aggregation, Around, Precomputed, WithStoredHalo, accumulate, hstack, sparse_product, spmm
from lmc.graph.shard import Shard
from lmc.graph.submatrices import Extractor

__all__ = ["CSR", "NORMALISATIONS", "SPLITS", "Aggregation", "Batch", "Graph", "normalise"]
