"""GraphFM-IB: "GraphFM: Improving Large-Scale GNN Training via Feature Momentum", the in-batch form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmc.engine.exact import chunks_of
from lmc.engine.problem import Problem
from lmc.engine.run import Run
from lmc.errors import ConfigError
from lmc.graph import Batch
from lmc.methods.base import Kept, Method
from lmc.methods.seeded import EXACT_WITH_ALL_NEIGHBOURS, NodeWise
from lmc.stores import Rows


@dataclass(frozen=True)
class GraphFMIB(NodeWise):
    """GraphSAGE whose computed rows take a momentum step from their history, which is written back and read on:

        H[rows] <- (1 - momentum) H[rows] + momentum s[rows]

    The average over steps takes the variance of the sampled neighbours away, at the price of staleness.

    Departure: the adjoint of the mixed row goes to the sampled state whole, not times momentum: the history is a better
    value of the same quantity, not another term of it, and the gradient of L layers would shrink with momentum^L.

    Args:
        momentum: the weight of the new, sampled state.
    """

    momentum: float = 0.5

    name: ClassVar[str] = "fm-ib"
    title: ClassVar[str] = "GraphFM-IB"
    paper: ClassVar[str] = "GraphFM: Improving Large-Scale GNN Training via Feature Momentum"
    outside: ClassVar[str] = "sampled neighbours, averaged over steps by momentum on the history"
    step_rows: ClassVar[str] = "batch_size * prod(fanouts + 1) at most"
    facts: ClassVar[frozenset[str]] = frozenset({EXACT_WITH_ALL_NEIGHBOURS})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum <= 1:
            raise ConfigError(f"expected momentum in [0, 1] (got {self.momentum})")

    def keeps(self, problem: Problem) -> Kept:
        first = 2 if problem.aggregated else 1
        return {"H": {l: width for l, width in enumerate(problem.model.widths[:-1], start=1) if l >= first}}

    def compensate(self, run: Run, batch: Batch, l: int, s: Tensor, keep: bool) -> Tensor:
        if l not in run.H:
            return s
        rows = batch.ext[: s.shape[0]]
        mixed = torch.lerp(run.H[l].pull(rows), s.detach(), self.momentum)
        if keep:
            run.H[l].push(rows, mixed)
        return s + (mixed - s.detach())

    def fill(self, run: Run, chunks: list[Rows]) -> None:
        Method.fill(self, run, list(chunks_of(run.problem)))
