"""GraphFM-OB: "GraphFM: Improving Large-Scale GNN Training via Feature Momentum"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmc.errors import check_within
from lmc.graph import Aggregation
from lmc.methods.protocol import HistoryMethod, Layout, ProblemView, Setup, Step, Traits, Widths, operators


@dataclass(frozen=True)
class GraphFM(HistoryMethod):
    """GAS whose halo rows take a momentum step toward the message of the core, written back to the history:

        H[halo] <- (1 - momentum) H[halo] + momentum s_tmp[halo]

    s_tmp of a halo row reads its in-batch neighbours and itself, never other halo rows (the difference to (14) that
    the LMC paper names). Backward messages from outside are dropped, as in GAS.

    Args:
        momentum: the weight of the new, partial message.
    """

    momentum: float = 0.3

    traits: ClassVar[Traits] = Traits(
        "fm", "GraphFM-OB", outside="forward from the history after a momentum step, backward dropped",
        step_rows="core and halo", grad_from_halo=True, sync=("step",),
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within("[0, 1]", momentum=self.momentum)

    @property
    def setup(self) -> Setup:
        """The momentum step of layer 1 reads the partial message of a halo row, not the complete one."""
        return Setup(precompute=False)

    def layout(self, problem: ProblemView, core: Tensor) -> Layout:
        halo = problem.blocks.halo(core)
        ext = torch.cat([core, halo])
        full = problem.blocks.block(ext, ext)
        row, col, c = full.row_index(), full.indices, core.numel()
        forward = full.filtered((row < c) | (col < c) | (row == col))
        weights_between = problem.model.transforms_before_aggregating
        backward = forward.t() if weights_between else problem.blocks.induced(core).t()
        return Layout(halo, operators(problem, ext.numel(), Aggregation(forward, backward)))

    def tables(self, problem: ProblemView) -> Widths:
        return {"H": dict(enumerate(problem.model.widths[:-1], start=1))}

    def compensate(self, step: Step, l: int, s: Tensor) -> Tensor:
        batch, c = step.batch, step.batch.num_core
        if l not in step.H:
            return s[:c]
        H_halo = torch.lerp(step.H[l].pull(batch.halo), s[c:].detach(), self.momentum)
        if step.keep:
            step.H[l].push(batch.rows, s[:c].detach())
            step.H[l].push(batch.halo, H_halo)
        return torch.cat([s[:c], H_halo])
