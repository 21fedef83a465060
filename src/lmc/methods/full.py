"""Full batch: gradient descent on the whole graph, the reference for all other methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmc.graph import Aggregation
from lmc.methods.protocol import EXACT, UNBIASED, Layout, Method, ProblemView, Traits, operators


@dataclass(frozen=True)
class FullBatch(Method):
    """The exact gradient of the whole graph, by (4) and (7); an epoch is one step."""

    traits: ClassVar[Traits] = Traits(
        "full", "Full batch (GD)", outside="nothing is outside", step_rows="all nodes", facts=EXACT | {UNBIASED},
        trains=frozenset({"layered", "recurrent"}), sync=("layer",),
    )  # fmt: skip

    def layout(self, problem: ProblemView, core: Tensor) -> Layout:
        return Layout(core[:0], operators(problem, core.numel(), Aggregation.exact(problem.P)))
