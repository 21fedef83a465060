"""The graph, mini-batches, sparse matrices and the one sparse product."""

from lmc.graph.batch import Batch
from lmc.graph.checks import SPLITS
from lmc.graph.csr import CSR, offload, row_chunks
from lmc.graph.graph import Graph
from lmc.graph.live_tensors import live_tensors
from lmc.graph.normalise import NORMALISATIONS, gcn_norm, normalise, renormalise
from lmc.graph.product import Aggregation, Around, Precomputed, WithStoredHalo, accumulate, hstack, sparse_product, spmm
from lmc.graph.subgraph import Extractor
