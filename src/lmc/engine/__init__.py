"""What runs a method on a graph and a model.

bind        checks everything, divides the graph, and makes a Run
Problem     the graph and the model on their device: P, features, losses
kinds       how a model's forward and backward passes go: layered, own forward pass, recurrent
Batches     makes the batches of an epoch
Pipeline    what happens before and after a step: lookahead, prefetching, CUDA graphs, write-back
Run         the state of training: tables, generator, position
distributed runs on several ranks: ownership of rows, and their exchange
exact       exact states and adjoints of all nodes, chunk by chunk
"""

from lmc.engine.bind import bind
from lmc.engine.compatibility import check_fit
from lmc.engine.distributed import Distributed
from lmc.engine.problem import Problem
from lmc.engine.run import Run, StepStats

__all__ = ["Problem", "Run", "StepStats", "bind"]
