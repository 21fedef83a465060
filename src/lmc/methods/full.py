"""Full batch: gradient descent on the whole graph, the yardstick of everything else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lmc.engine.problem import Problem
from lmc.graph import Aggregation
from lmc.methods.base import EXACT_ON_ONE_PART, EXACT_WITH_EXACT_HISTORIES, UNBIASED, Layout, Method


@dataclass(frozen=True)
class FullBatch(Method):
    """dL/dp by (4) and (7) on the whole graph; an epoch is one step."""

    name: ClassVar[str] = "full"
    title: ClassVar[str] = "Full batch (GD)"
    paper: ClassVar[str] = "-"
    outside: ClassVar[str] = "nothing is outside"
    step_rows: ClassVar[str] = "all nodes"
    trains_recurrent: ClassVar[bool] = True
    facts: ClassVar[frozenset[str]] = frozenset({EXACT_ON_ONE_PART, EXACT_WITH_EXACT_HISTORIES, UNBIASED})

    def layout(self, problem: Problem, core: Tensor) -> Layout:
        operators = self.operators(problem, core.numel(), Aggregation.exact(problem.P))
        return core[:0], operators, None
