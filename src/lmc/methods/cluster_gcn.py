"""Cluster-GCN: "Cluster-GCN: An Efficient Algorithm for Training Deep and Large Graph Convolutional Networks"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmc.engine.problem import Problem
from lmc.graph import Aggregation
from lmc.methods.base import ClusterMethod, Layout


@dataclass(frozen=True)
class ClusterGCN(ClusterMethod):
    """Messages from outside are dropped in both directions; the adjacency is renormalised inside the batch.

    Departure: the loss is weighted by b/c over the global |V_L|, as for every method here, instead of by the labelled
    nodes of the batch; on balanced parts the two differ little.
    """

    name: ClassVar[str] = "cluster"
    title: ClassVar[str] = "Cluster-GCN"
    paper: ClassVar[str] = "Cluster-GCN: An Efficient Algorithm for Training Deep and Large GCNs"
    outside: ClassVar[str] = "dropped in both directions, adjacency renormalised"
    trains_recurrent: ClassVar[bool] = True

    @property
    def aggregates_once(self) -> bool:
        """No: the batch has an adjacency of its own, and P X of the whole graph would bring the outside back in."""
        return False

    def layout(self, problem: Problem, core: Tensor) -> Layout:
        P = Aggregation.exact(problem.renormalise(problem.blocks.induced(core)))
        return core[:0], self.operators(problem, core.numel(), P), None
