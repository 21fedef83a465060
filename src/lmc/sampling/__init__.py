"""Which nodes make a batch. Every random choice takes its seed or generator as an argument."""

from lmc.sampling.clusters import Clusters
from lmc.sampling.importance import ColumnNorms, Edges, Nodes, NodeSampler, Thinner, Walks, importance_weights
from lmc.sampling.neighbours import Hop, Neighbours, egos, joined, places
from lmc.sampling.seeds import derive, generator, num_batches, shuffled
