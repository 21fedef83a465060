"""FastGCN: "FastGCN: Fast Learning with Graph Convolutional Networks via Importance Sampling"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from lmc.engine.problem import Problem
from lmc.engine.run import Run
from lmc.methods.layer_wise import LayerWise
from lmc.sampling import ColumnNorms


@dataclass(frozen=True)
class FastGCN(LayerWise):
    """Every layer samples from ALL nodes, with q_u in proportion to |P[:, u]|^2, whatever the layer above."""

    name: ClassVar[str] = "fastgcn"
    title: ClassVar[str] = "FastGCN"
    paper: ClassVar[str] = "FastGCN: Fast Learning with GCNs via Importance Sampling"
    outside: ClassVar[str] = "from one importance sample of all nodes per layer"

    def prepare(self, problem: Problem, seed: int) -> Any:
        return ColumnNorms(problem.P).of()

    def chances(self, run: Run, entries: Tensor) -> Tensor:
        return run.prepared
