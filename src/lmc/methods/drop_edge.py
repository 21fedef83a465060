"""DropEdge: "DropEdge: Towards Deep Graph Convolutional Networks on Node Classification"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from lmc.errors import ConfigError, check_within
from lmc.graph import CSR, Graph
from lmc.methods.full import FullBatch
from lmc.methods.protocol import Method, Traits
from lmc.methods.sign import SIGN
from lmc.sampling import Thinner, generator


@dataclass(frozen=True)
class DropEdge(Method):
    """Another method on a schedule of graphs: a share ``p`` of the edges is left out, drawn anew every epoch.

    The aggregation matrix is normalised on the graph that is left, as in the paper. Histories, where the inner method
    keeps some, go on from epoch to epoch, and ``refresh`` fills them on the whole graph; evaluation is exact on the
    whole graph too. P X is not computed once, since it is another one in every epoch.

    Args:
        inner: any method for models with layers but SIGN, which aggregates before training.
        p: the probability of an edge to be left out.
    """

    inner: Method = field(default_factory=FullBatch)
    p: float = 0.2

    traits: ClassVar[Traits] = Traits(
        "dropedge", "DropEdge", outside="those of the method it wraps, on a graph with edges left out",
        step_rows="as the method it wraps", facts=frozenset(),
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Method):
            raise ConfigError(f"expected a method to wrap, such as GAS() (got {self.inner!r})")
        super().__post_init__()
        if isinstance(self.inner, DropEdge):
            raise ConfigError("expected a method that drops no edges yet (got DropEdge): wrap once, with a larger p")
        if isinstance(self.inner, SIGN):
            raise ConfigError("expected a method that aggregates in every step (got SIGN): its features are fixed")
        check_within("[0, 1)", p=self.p)

    def adjacencies(self, graph: Graph, seed: int, ids: Tensor | None = None) -> Callable[[int], CSR]:
        """The adjacency of an epoch, by its number; each depends on the seed and the epoch alone.

        Args:
            ids: of a rank, the numbers of its nodes in the whole graph. Ranks decide about an edge by the numbers of
                its ends, so that all of them decide alike; one process draws from a stream instead.
        """
        thin = Thinner(graph.adj, ids)
        return lambda epoch: thin(self.p, generator(graph.adj.device, seed, "edges", epoch))
