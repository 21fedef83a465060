"""Runs on several ranks, by torch.distributed.

world       the options, the process group and its collectives
ownership   what a rank holds: its shard, its batches, its rows of P
exchange    rows between their owners and the ranks that mirror them
step        the exchange after every step
layer       the exchange at every layer
"""

from lmc.engine.distributed.world import Distributed, World, launched, rank_here
