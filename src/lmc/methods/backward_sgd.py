"""Backward SGD: the oracle whose error every mini-batch method tries to reach (equations (10) and (11))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmc.engine.problem import Problem
from lmc.graph import Aggregation
from lmc.methods.base import EXACT_ON_ONE_PART, EXACT_WITH_EXACT_HISTORIES, UNBIASED, ClusterMethod, Layout


@dataclass(frozen=True)
class BackwardSGD(ClusterMethod):
    """Exact states H and adjoints V of the core rows; parameters take their gradient from these rows alone.

    Every node outside the core is in the halo, so a step costs a full-batch step: a yardstick, not a way to train.
    Batch statistics are those of the whole graph. Batches are built when needed, since each is a copy of the graph.
    """

    name: ClassVar[str] = "backward-sgd"
    title: ClassVar[str] = "Backward SGD"
    paper: ClassVar[str] = "Provably Convergent Subgraph-wise Sampling for Fast GNN Training"
    outside: ClassVar[str] = "exact in both directions"
    step_rows: ClassVar[str] = "all nodes"
    trains_recurrent: ClassVar[bool] = True
    facts: ClassVar[frozenset[str]] = frozenset({EXACT_ON_ONE_PART, EXACT_WITH_EXACT_HISTORIES, UNBIASED})
    caches_batches: ClassVar[bool] = False
    pooled_statistics: ClassVar[bool] = True

    def layout(self, problem: Problem, core: Tensor) -> Layout:
        outside = torch.ones(problem.graph.num_nodes, dtype=torch.bool, device=core.device)
        outside[core] = False
        halo = outside.nonzero().squeeze(1)
        ext = torch.cat([core, halo])
        P = Aggregation.exact(problem.blocks.induced(ext))
        return halo, self.operators(problem, ext.numel(), P), None
