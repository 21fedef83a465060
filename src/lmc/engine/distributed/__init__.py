"""Runs on several ranks, by torch.distributed.

launch      the rank and the store that torchrun gives, and starts after a failure
world       the options, the process group and its collectives
shards      the files of a rank, and what all ranks agree on about them
ownership   what a rank holds: its shard and its batches
matrices    its rows of the aggregation matrices
exchange    rows between their owners and the ranks that mirror them
step        the exchange after every step
layer       the exchange at every layer
"""

from lmc.engine.distributed.launch import begin_folder, begun_folders, launched, launcher, rank_here, this_start
from lmc.engine.distributed.shards import own_shard
from lmc.engine.distributed.world import Distributed, World, end
