"""SSE: "Learning Steady-States of Iterative Algorithms over Graphs"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmc.engine import recurrent
from lmc.engine.problem import Problem
from lmc.engine.run import Run
from lmc.errors import ConfigError
from lmc.graph import Aggregation, Batch, spmm
from lmc.methods.base import HistoryMethod, Kept, Layout
from lmc.models import Pass


@dataclass(frozen=True)
class SSE(HistoryMethod):
    """No fixed point is solved: the histories drift towards it by one averaged step on the core at a time.

        Z[core] <- (1 - momentum) Z[core] + momentum (P H[ext] W^T + b(X))       stochastic fixed-point iteration
        H = relu(P H[ext] W^T + b(X))                                             the operator once more, with gradient
        U = 1[Z > 0] * (P_in^T (1[Z > 0] * dL/dH) W + dL/dH)                      ONE message-passing step in backward

    The adjoint is the first-order approximation I + J of (I - J)^-1, within the core. So it is exact on no part, and
    declares nothing. Departure: the operator is RecGCN's, and each step makes one update of its own core rows instead
    of several of other samples, so that methods differ in the estimate alone.

    Args:
        momentum: weight of the new value in the running average.
        q: as for LMC4Rec.
    """

    momentum: float = 0.9
    q: float = 0.5

    name: ClassVar[str] = "sse"
    title: ClassVar[str] = "SSE"
    paper: ClassVar[str] = "Learning Steady-States of Iterative Algorithms over Graphs"
    outside: ClassVar[str] = "forward from the history, one step; backward dropped, one step"
    facts: ClassVar[frozenset[str]] = frozenset()
    step_rows: ClassVar[str] = "core; halo read"
    trains_convolutional: ClassVar[bool] = False
    trains_recurrent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.momentum <= 1:
            raise ConfigError(f"expected momentum in (0, 1] (got {self.momentum})")
        recurrent.check_share(self.q)

    @property
    def history_update_probability(self) -> float | None:
        return self.q

    def keeps(self, problem: Problem) -> Kept:
        return {"H": {1: problem.model.widths[0]}}

    def keeps_recurrent(self, problem: Problem) -> Kept:
        return self.keeps(problem)

    def layout(self, problem: Problem, core: Tensor) -> Layout:
        halo = problem.blocks.halo(core)
        P = problem.blocks.block(core, torch.cat([core, halo]))
        return halo, (Aggregation(forward=P, backward=problem.blocks.induced(core)),), None

    def local(self, run: Run, batch: Batch, dropout: bool) -> recurrent.Local:
        problem, model = run.problem, recurrent.recurrent_model(run.problem.model)
        model.train()
        P, c = batch.operators[0], batch.num_core
        assert isinstance(P, Aggregation)
        b, p = recurrent.encoded(run, batch, dropout)
        Z = run.H[1].pull(batch.ext)
        averaged = torch.lerp(Z[:c], self._step(run, batch, Z, b, p).detach(), self.momentum)
        z = self._step(run, batch, torch.cat([averaged, Z[c:]]), b, p)
        fresh = z.detach().requires_grad_()
        losses = problem.row_losses(model.decode(fresh.relu(), p), batch.y[:c], batch.labelled[:c])
        names = [name for name in run.parameters if name.startswith("lin_out.")]
        first, *decoder = torch.autograd.grad(losses.sum(), [fresh, *(run.parameters[name] for name in names)])
        u = first + (spmm(P.backward, first) @ model.W.detach()) * (fresh > 0)
        others = [name for name in run.parameters if name not in names]
        found = dict(zip(names, decoder, strict=True))
        found |= dict(zip(others, torch.autograd.grad(z, [run.parameters[name] for name in others], u), strict=True))
        return recurrent.Local(
            batch.rows, fresh.detach(), u, [found[k] for k in run.parameters], losses.sum().detach(), {"H": averaged}
        )

    def _step(self, run: Run, batch: Batch, Z: Tensor, b: Tensor, p: Pass) -> Tensor:
        return run.problem.model.layer(1)(Z.relu(), batch.operators[0], p, b)
