"""GAS: "GNNAutoScale: Scalable and Expressive Graph Neural Networks via Historical Embeddings"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmc.engine.problem import Problem
from lmc.engine.run import Run
from lmc.graph import Aggregation, Batch
from lmc.methods.base import HistoryMethod, Kept, Layout


@dataclass(frozen=True)
class GAS(HistoryMethod):
    """Forward messages from outside come from the history H-bar; backward messages from outside are dropped.

    This is LMC4Conv with beta = 0 and V_hat = 0 and a pruned first layer, and cheaper: halo rows are read, never
    computed. Departure: the
    histories hold the states before the activation, as for LMC4Conv, so that the two differ in the method alone.
    """

    name: ClassVar[str] = "gas"
    title: ClassVar[str] = "GAS"
    paper: ClassVar[str] = "GNNAutoScale: Scalable and Expressive GNNs via Historical Embeddings"
    outside: ClassVar[str] = "forward from the history, backward dropped"
    step_rows: ClassVar[str] = "core; halo read"
    trains_recurrent: ClassVar[bool] = True
    grad_from_halo: ClassVar[bool] = True

    def layout(self, problem: Problem, core: Tensor) -> Layout:
        halo = problem.blocks.halo(core)
        forward = problem.blocks.block(core, torch.cat([core, halo]))
        # an adjoint that ends at the halo row's history is needed only by weights between the two
        backward = forward.t() if problem.model.transforms_before_aggregating else problem.blocks.induced(core).t()
        P = Aggregation(forward, backward)
        return halo, self.operators(problem, core.numel(), P), None

    @property
    def history_update_probability(self) -> float | None:
        return 0.5  # as LMC4Rec, of which the paper makes it by dropping the backward compensation

    def keeps(self, problem: Problem) -> Kept:
        return {"H": dict(enumerate(problem.model.widths[:-1], start=1))}

    def compensate(self, run: Run, batch: Batch, l: int, s: Tensor, keep: bool) -> Tensor:
        if l not in run.H:
            return s
        halo = run.H[l].pull(batch.halo)
        if keep:
            run.H[l].push(batch.rows, s.detach())
        return torch.cat([s, halo])
