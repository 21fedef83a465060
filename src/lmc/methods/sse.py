"""SSE: "Learning Steady-States of Iterative Algorithms over Graphs"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmc.errors import check_within
from lmc.graph import Aggregation, spmm
from lmc.methods.protocol import HistoryMethod, Layout, ProblemView, Step, Traits, Widths
from lmc.methods.recurrent import LocalSolution, RecurrentRules, check_q, encoded, operator_of
from lmc.models import Pass, recurrent_model


@dataclass(frozen=True)
class SSE(RecurrentRules, HistoryMethod):
    """Stochastic steady-state embedding: each step moves the histories of the core toward the fixed point once.

        Z[core] <- (1 - momentum) Z[core] + momentum (P H[ext] W^T + b(X))       stochastic fixed-point iteration
        H = relu(P H[ext] W^T + b(X))                                             the operator once more, with gradient
        V = 1[Z > 0] * (P_in^T (1[Z > 0] * dL/dH) W + dL/dH)                      ONE message-passing step in backward

    The adjoint is the first-order approximation I + J of (I - J)^-1 within the core. No fixed point is solved, so the
    method is not exact on one part either, and it declares no fact.

    Departure: the operator is RecGCN's. Each step makes one update of its own core rows instead of several updates of
    other samples, so that methods differ in the estimate alone.

    Args:
        momentum: weight of the new value in the running average.
        q: as for LMC4Rec.
    """

    momentum: float = 0.9
    q: float = 0.5

    traits: ClassVar[Traits] = Traits(
        "sse", "SSE", outside="forward from the history, one step; backward dropped, one step",
        step_rows="core; halo read", facts=frozenset(), trains=frozenset({"recurrent"}),
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within("(0, 1]", momentum=self.momentum)
        check_q(self.q)

    def tables(self, problem: ProblemView) -> Widths:
        return {"H": {1: problem.model.widths[0]}}

    def layout(self, problem: ProblemView, core: Tensor) -> Layout:
        halo = problem.blocks.halo(core)
        P = problem.blocks.block(core, torch.cat([core, halo]))
        return Layout(halo, (Aggregation(forward=P, backward=problem.blocks.induced(core).t()),))

    def solve(self, step: Step) -> LocalSolution:
        problem, batch, model = step.problem, step.batch, recurrent_model(step.problem.model)
        model.train()
        P, c = operator_of(batch), batch.num_core
        b, p = encoded(step)
        Z = step.H[1].pull(batch.ext)
        averaged = torch.lerp(Z[:c], self._iterate(step, Z, b, p).detach(), self.momentum)
        z = self._iterate(step, torch.cat([averaged, Z[c:]]), b, p)
        fresh = z.detach().requires_grad_()
        losses = problem.losses(model.decode(fresh.relu(), p), batch)
        decoder = {k: q for k, q in step.parameters.items() if k.startswith("lin_out.")}
        others = {k: q for k, q in step.parameters.items() if k not in decoder}
        first, *grads = torch.autograd.grad(losses.sum(), [fresh, *decoder.values()])
        v = first + (spmm(P.backward, first) @ model.W.detach()) * (fresh > 0)
        found = dict(zip(decoder, grads, strict=True))
        found |= dict(zip(others, torch.autograd.grad(z, list(others.values()), v), strict=True))
        grads = [found[k] for k in step.parameters]
        return LocalSolution(batch.rows, fresh.detach(), v, grads, losses.sum().detach(), {"H": averaged})

    def _iterate(self, step: Step, Z: Tensor, b: Tensor, p: Pass) -> Tensor:
        """P H W^T + b(X) on the core."""
        return step.problem.model.layer(1)(Z.relu(), step.batch.operators[0], p, b)
