"""GraphFM-OB: "GraphFM: Improving Large-Scale GNN Training via Feature Momentum"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmc.engine.problem import Problem
from lmc.engine.run import Run
from lmc.errors import ConfigError
from lmc.graph import Aggregation, Batch
from lmc.methods.base import HistoryMethod, Kept, Layout


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

    name: ClassVar[str] = "fm"
    title: ClassVar[str] = "GraphFM-OB"
    paper: ClassVar[str] = "GraphFM: Improving Large-Scale GNN Training via Feature Momentum"
    outside: ClassVar[str] = "forward from the history after a momentum step, backward dropped"
    step_rows: ClassVar[str] = "core and halo"
    grad_from_halo: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum <= 1:
            raise ConfigError(f"expected momentum in [0, 1] (got {self.momentum})")

    def layout(self, problem: Problem, core: Tensor) -> Layout:
        halo = problem.blocks.halo(core)
        ext = torch.cat([core, halo])
        full = problem.blocks.block(ext, ext)
        row, col, c = full.row_index(), full.indices, core.numel()
        forward = full.filtered((row < c) | (col < c) | (row == col))
        P = Aggregation(
            forward,
            backward=forward.t() if problem.model.transforms_before_aggregating else problem.blocks.induced(core).t(),
        )
        # halo rows of layer 1 must stay partial, so the whole graph's P X serves only the core: do without it
        return halo, self.operators(problem, ext.numel(), P), None

    @property
    def aggregates_once(self) -> bool:
        """No: the momentum step of layer 1 reads the partial message, not the complete one."""
        return False

    def keeps(self, problem: Problem) -> Kept:
        return {"H": dict(enumerate(problem.model.widths[:-1], start=1))}

    def compensate(self, run: Run, batch: Batch, l: int, s: Tensor, keep: bool) -> Tensor:
        c = batch.num_core
        if l not in run.H:
            return s[:c]
        halo = torch.lerp(run.H[l].pull(batch.halo), s[c:].detach(), self.momentum)
        if keep:
            run.H[l].push(batch.rows, s[:c].detach())
            run.H[l].push(batch.halo, halo)
        return torch.cat([s[:c], halo])
