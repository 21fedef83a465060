"""ShaDow: "Decoupling the Depth and Scope of Graph Neural Networks"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lmc.errors import ConfigError, check_at_least
from lmc.graph import Aggregation
from lmc.methods.protocol import BatchSource, Operators, ProblemView, Setup, Traits
from lmc.methods.seeded import EXACT_WITH_ALL_NEIGHBOURS, SampledTraits, SeedMethod, checked_fanouts
from lmc.sampling import Neighbours, egos


@dataclass(frozen=True)
class ShaDow(SeedMethod):
    """Every seed is the root of a small sampled subgraph; the whole model runs on it and the root's row is read out.

    The depth of the model does not widen its scope: L layers pass messages inside the subgraph alone.

    Departure: evaluation, as for every method here, is exact on the whole graph.

    Args:
        depth: hops from the root.
        fanouts: neighbours drawn per node: one number, or one for every hop, that of the root first.
        normalise: "subgraph" renormalises inside each subgraph; "graph" keeps the entries of P, which makes the
            method exact with all neighbours and depth >= L.
    """

    batch_size: int = field(default=128, kw_only=True)
    depth: int = 2
    fanouts: int | Sequence[int] = 10
    normalise: Literal["subgraph", "graph"] = "subgraph"

    traits: ClassVar[Traits] = SampledTraits(
        "shadow", "ShaDow", outside="dropped outside of the root's own sampled subgraph",
        step_rows="batch_size subgraphs", facts=frozenset({EXACT_WITH_ALL_NEIGHBOURS}),
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, depth=self.depth)
        object.__setattr__(self, "fanouts", checked_fanouts(self.fanouts))
        if isinstance(self.fanouts, tuple) and len(self.fanouts) != self.depth:
            raise ConfigError(
                f"expected one fan-out for each of {self.depth} hops (got {len(self.fanouts)}): give one number for "
                "all, or as many as the depth"
            )

    @property
    def setup(self) -> Setup:
        """P X would contain messages from outside of the subgraph."""
        return Setup(precompute=False)

    def prepare(self, problem: ProblemView, seed: int) -> Any:
        return Neighbours(problem.P)

    def grow(self, source: BatchSource, seeds: Tensor, chance: torch.Generator) -> tuple[Tensor, Operators]:
        hops = (self.fanouts,) * self.depth if isinstance(self.fanouts, int) else self.fanouts
        nodes, block = egos(source.prepared, seeds, hops, chance)
        block = source.problem.renormalise(block) if self.normalise == "subgraph" else block
        num = seeds.numel()
        # the last layer is read at the roots alone
        last = Aggregation.exact(block.leading(num))
        return nodes[num:], (*[Aggregation.exact(block)] * (source.problem.model.num_layers - 1), last)
