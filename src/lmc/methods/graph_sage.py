"""GraphSAGE: "Inductive Representation Learning on Large Graphs", its node-wise neighbour sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lmc.methods.protocol import Traits
from lmc.methods.seeded import EXACT_WITH_ALL_NEIGHBOURS, UNBIASED_AGGREGATION, NodeWise, SampledTraits


@dataclass(frozen=True)
class GraphSAGE(NodeWise):
    """Every row reads a few neighbours, drawn anew for each layer and step.

    Row i keeps P_ii and k = min(fanout, d) of its d neighbours, uniformly without replacement, each weighted by d / k:
    the sampled aggregation has the mean of the whole one, layer by layer (:mod:`lmc.sampling.neighbours`).

    Departure: the paper averages over the sampled neighbours; here they estimate the aggregation P of the model.
    """

    traits: ClassVar[Traits] = SampledTraits(
        "graphsage", "GraphSAGE", outside="a few sampled neighbours per row and layer",
        step_rows="batch_size * prod(fanouts + 1) at most",
        facts=frozenset({EXACT_WITH_ALL_NEIGHBOURS, UNBIASED_AGGREGATION}), draws_concurrently=True,
    )  # fmt: skip
