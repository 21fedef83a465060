"""LMC4Rec: "Provably Convergent Subgraph-wise Sampling for Fast GNN Training", Algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lmc.graph import Aggregation, spmm
from lmc.methods import weight_drift
from lmc.methods.protocol import EXACT, ExactPasses, HistoryMethod, Layout, ProblemView, Step, Traits
from lmc.methods.recurrent import LocalSolution, OuterMessages, RecurrentRules, check_q, encoded, operator_of, outside
from lmc.models import recurrent_model


@dataclass(frozen=True)
class LMC4Rec(RecurrentRules, HistoryMethod):
    """The fixed points of states and adjoints on the core, with compensation from the halo's histories in both.

    Args:
        update: what the histories of the core become. "solution": the local fixed points, (21) and (23).
            "step": one message-passing step from the histories, (20) and (22), as Algorithm 2 reads.
        q: where the model uses dropout, the share of steps that run without dropout and update the histories; the
            others use dropout and leave the histories alone.
        undo_drift: undo what training did to the halo's histories since they were stored, as the core shows it (not in
            the paper): columns of the states by the factor by which the core's have grown, row by row in proportion to
            their age; adjoints by what is left of the loss gradient, a number in [0, 1]. All are 1 where nothing is
            stale.
    """

    update: Literal["solution", "step"] = "solution"
    q: float = 0.5
    undo_drift: bool = True

    traits: ClassVar[Traits] = Traits(
        "lmc4rec", "LMC4Rec", outside="compensated in both directions", step_rows="core; halo read", facts=EXACT,
        trains=frozenset({"recurrent"}), sync=("step",), row_numbers=(weight_drift.STORED,),
        replicated_numbers=(weight_drift.W, weight_drift.PATH),
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_q(self.q)

    def numbers(self, problem: ProblemView, num_batches: int) -> dict[str, Tensor]:
        return weight_drift.new_ages(problem) if self.undo_drift else {}

    def layout(self, problem: ProblemView, core: Tensor) -> Layout:
        halo = problem.halo(core)
        ext = torch.cat([core, halo])
        P = problem.blocks.block(core, ext)
        P_t = P if problem.transposed is problem.blocks else problem.transposed.block(core, ext)
        return Layout(halo, (Aggregation(forward=P, backward=P_t),))

    def outer_messages(self, step: Step) -> OuterMessages:
        batch = step.batch
        P_out = outside(operator_of(batch).forward, batch)
        if not self.undo_drift or P_out is None:
            return super().outer_messages(step)
        moved, shares = weight_drift.ages(step, batch.rows, batch.halo)
        H_halo = step.H[1].pull(batch.halo).clamp_min(0)
        return OuterMessages(spmm(P_out, H_halo), spmm(P_out, H_halo * shares), moved)

    def _one_step(self, step: Step) -> dict[str, Tensor]:
        """One step from the histories: Z by (20); V by (22), at the states that (20) gives."""
        problem, batch, model = step.problem, step.batch, recurrent_model(step.problem.model)
        P = operator_of(batch)
        with torch.no_grad():
            b, p = encoded(step, dropout=False)
            z = torch.addmm(b, spmm(P.forward, step.H[1].pull(batch.ext).clamp_min(0)), model.W.t())  # (20)
        h = z.clamp_min(0).requires_grad_()
        losses = problem.losses(model.decode(h, p), batch)
        (G,) = torch.autograd.grad(losses.sum(), h)
        V = torch.addmm(G, spmm(P.backward, step.V[1].pull(batch.ext)), model.W.detach())  # (22)
        return {"H": z, "V": V * (z > 0)}

    def remember(self, step: Step, found: LocalSolution) -> None:
        super().remember(step, replace(found, kept=self._one_step(step)) if self.update == "step" else found)
        if self.undo_drift:
            weight_drift.note(step, step.batch.rows)

    def fill(self, exact: ExactPasses) -> None:
        super().fill(exact)
        if self.undo_drift:
            weight_drift.note(exact, slice(None))
