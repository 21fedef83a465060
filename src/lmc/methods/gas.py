"""GAS: "GNNAutoScale: Scalable and Expressive Graph Neural Networks via Historical Embeddings"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmc.graph import Aggregation
from lmc.methods.protocol import HistoryMethod, Layout, ProblemView, Step, Traits, Widths, operators


@dataclass(frozen=True)
class GAS(HistoryMethod):
    """Forward messages from outside come from the history H; backward messages from outside are dropped.

    This is LMC4Conv with beta = 0, V_hat = 0 and a pruned first layer, and cheaper: halo rows are read, never computed.

    Departure: the histories hold the states before the activation, as for LMC4Conv, so that the two differ in the
    method alone. On recurrent models half of the steps run without dropout and update the histories, as for LMC4Rec.
    """

    traits: ClassVar[Traits] = Traits(
        "gas", "GAS", outside="forward from the history, backward dropped", step_rows="core; halo read",
        trains=frozenset({"layered", "recurrent"}), grad_from_halo=True, history_update_probability=0.5,
        sync=("step",), pads_batches="all",
    )  # fmt: skip

    def layout(self, problem: ProblemView, core: Tensor) -> Layout:
        halo = problem.blocks.halo(core)
        forward = problem.blocks.block(core, torch.cat([core, halo]))
        # an adjoint that ends at the history of a halo row is needed only by weights between the two
        weights_between = problem.model.transforms_before_aggregating
        backward = forward.t() if weights_between else problem.blocks.induced(core).t()
        return Layout(halo, operators(problem, core.numel(), Aggregation(forward, backward)))

    def tables(self, problem: ProblemView) -> Widths:
        return {"H": dict(enumerate(problem.model.widths[:-1], start=1))}

    def compensate(self, step: Step, l: int, s: Tensor) -> Tensor:
        if l not in step.H:
            return s
        H_halo = step.H[l].pull(step.batch.halo)
        if step.keep:
            step.H[l].push(step.batch.rows, s.detach())
        return torch.cat([s, H_halo])
