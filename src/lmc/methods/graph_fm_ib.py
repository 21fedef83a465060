"""GraphFM-IB: "GraphFM: Improving Large-Scale GNN Training via Feature Momentum", the in-batch form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmc.errors import check_within
from lmc.methods.protocol import ProblemView, Step, Traits, Widths
from lmc.methods.seeded import EXACT_WITH_ALL_NEIGHBOURS, NodeWise, SampledTraits


@dataclass(frozen=True)
class GraphFMIB(NodeWise):
    """GraphSAGE whose computed rows take a momentum step from their history, which is written back and read on:

        H[rows] <- (1 - momentum) H[rows] + momentum s[rows]

    The average over steps reduces the variance of the sampled neighbours and adds staleness.

    Departure: the adjoint of the mixed row goes to the sampled state whole, not times momentum: the history is a better
    value of the same quantity, not another term of it, and the gradient of L layers would shrink with momentum^L.

    Args:
        momentum: the weight of the new, sampled state.
    """

    momentum: float = 0.5

    traits: ClassVar[Traits] = SampledTraits(
        "fm-ib", "GraphFM-IB", outside="sampled neighbours, averaged over steps by momentum on the history",
        step_rows="batch_size * prod(fanouts + 1) at most", facts=frozenset({EXACT_WITH_ALL_NEIGHBOURS}),
        draws_concurrently=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within("[0, 1]", momentum=self.momentum)

    def tables(self, problem: ProblemView) -> Widths:
        first = 2 if problem.aggregated else 1
        return {"H": {l: width for l, width in enumerate(problem.model.widths[:-1], start=1) if l >= first}}

    def compensate(self, step: Step, l: int, s: Tensor) -> Tensor:
        if l not in step.H:
            return s
        rows = step.batch.ext[: s.shape[0]]
        mixed = torch.lerp(step.H[l].pull(rows), s.detach(), self.momentum)
        if step.keep:
            step.H[l].push(rows, mixed)
        return s + (mixed - s.detach())
