"""Which nodes make a batch. Every random choice takes its seed or generator as an argument."""

from lmc.sampling.clusters import Clusters
from lmc.sampling.edges import Thinner
from lmc.sampling.egos import egos
from lmc.sampling.importance import ColumnNorms, importance_weights
from lmc.sampling.neighbours import Hop, Neighbours, joined, places
from lmc.sampling.rows import num_batches, shuffled
from lmc.sampling.saint import Edges, Nodes, NodeSampler, Walks
from lmc.sampling.seeds import derive, generator
