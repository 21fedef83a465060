"""Backward SGD: the oracle whose error every mini-batch method tries to reach (equations (10) and (11))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmc.graph import Aggregation
from lmc.methods.protocol import EXACT, UNBIASED, ClusterMethod, Layout, ProblemView, Traits, operators


@dataclass(frozen=True)
class BackwardSGD(ClusterMethod):
    """Exact states H and adjoints V of the core rows; parameters take their gradient from these rows alone.

    Every node outside of the core is in the halo, so a step costs a full-batch step: it serves for comparison and
    not for training. Batch statistics are those of the whole graph. Batches are built when needed, since each is a
    copy of the graph.
    """

    traits: ClassVar[Traits] = Traits(
        "backward-sgd", "Backward SGD", outside="exact in both directions", step_rows="all nodes",
        facts=EXACT | {UNBIASED}, trains=frozenset({"layered", "recurrent"}), batch_norm="pooled",
        keeps_batches=False, sync=("layer",),
    )  # fmt: skip

    def layout(self, problem: ProblemView, core: Tensor) -> Layout:
        outside = torch.ones(problem.graph.num_nodes, dtype=torch.bool, device=core.device)
        outside[core] = False
        halo = outside.nonzero().squeeze(1)
        ext = torch.cat([core, halo])
        P = Aggregation.exact(problem.blocks.induced(ext))
        return Layout(halo, operators(problem, ext.numel(), P))
