"""FastGCN: "FastGCN: Fast Learning with Graph Convolutional Networks via Importance Sampling"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from lmc.methods.layer_wise import LayerWise, LayerWiseTraits
from lmc.methods.protocol import BatchSource, ProblemView, Traits
from lmc.sampling import ColumnNorms


@dataclass(frozen=True)
class FastGCN(LayerWise):
    """Every layer reads one sample of all nodes, drawn with probabilities q_u proportional to |P[:, u]|^2."""

    traits: ClassVar[Traits] = LayerWiseTraits(
        "fastgcn", "FastGCN", outside="from one importance sample of all nodes per layer",
    )  # fmt: skip

    def prepare(self, problem: ProblemView, seed: int) -> Any:
        return ColumnNorms(problem.P).of()

    def probabilities(self, source: BatchSource, entries: Tensor) -> Tensor:
        q: Tensor = source.prepared
        return q
