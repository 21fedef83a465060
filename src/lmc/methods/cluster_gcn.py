"""Cluster-GCN: "Cluster-GCN: An Efficient Algorithm for Training Deep and Large Graph Convolutional Networks"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmc.graph import Aggregation
from lmc.methods.protocol import ClusterMethod, Layout, ProblemView, Setup, Traits, operators


@dataclass(frozen=True)
class ClusterGCN(ClusterMethod):
    """Messages from outside are dropped in both directions; the adjacency is renormalised inside of the batch.

    Departure: the loss is weighted by b/c over the global |V_L|, as for every method here, instead of by the labelled
    nodes of the batch; on balanced parts the two differ little.
    """

    traits: ClassVar[Traits] = Traits(
        "cluster", "Cluster-GCN", outside="dropped in both directions, adjacency renormalised",
        trains=frozenset({"layered", "recurrent"}), sync=("step",), pads_batches="plain",
    )  # fmt: skip

    @property
    def setup(self) -> Setup:
        """The batch has an adjacency of its own: P X of the whole graph would contain messages from outside."""
        return Setup(precompute=False)

    def layout(self, problem: ProblemView, core: Tensor) -> Layout:
        P = Aggregation.exact(problem.renormalise(problem.blocks.induced(core)))
        return Layout(core[:0], operators(problem, core.numel(), P))
