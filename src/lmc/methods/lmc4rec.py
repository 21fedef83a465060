"""LMC4Rec: "Provably Convergent Subgraph-wise Sampling for Fast GNN Training", Algorithm 2."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lmc.engine import recurrent
from lmc.engine.problem import Problem
from lmc.engine.run import Run
from lmc.errors import ConfigError
from lmc.graph import Aggregation, Batch, spmm
from lmc.methods import weight_drift
from lmc.methods.base import EXACT_ON_ONE_PART, EXACT_WITH_EXACT_HISTORIES, HistoryMethod, Kept, Layout
from lmc.sampling import Clusters
from lmc.stores import Rows


@dataclass(frozen=True)
class LMC4Rec(HistoryMethod):
    """The fixed points of states and adjoints on the core, with compensation from the halo's histories in both.

    Args:
        update: what the histories of the core become. "solution": the local fixed points, (21) and (23).
            "step": one message-passing step from the histories, (20) and (22), as Algorithm 2 reads.
        q: where the model drops out, the share of steps that run without dropout and update the histories; the others
            drop out and leave the histories alone.
        undo_drift: undo what training did to the halo's histories since they were stored, as the core shows it (not in
            the paper): columns of the states by the factor by which the core's have grown, row by row as far as it
            is old; adjoints by what is left of the loss gradient, a number in [0, 1]. All are 1 where nothing is stale.
    """

    update: Literal["solution", "step"] = "solution"
    q: float = 0.5
    undo_drift: bool = True

    name: ClassVar[str] = "lmc4rec"
    title: ClassVar[str] = "LMC4Rec"
    paper: ClassVar[str] = "Provably Convergent Subgraph-wise Sampling for Fast GNN Training"
    outside: ClassVar[str] = "compensated in both directions"
    facts: ClassVar[frozenset[str]] = frozenset({EXACT_ON_ONE_PART, EXACT_WITH_EXACT_HISTORIES})
    step_rows: ClassVar[str] = "core; halo read"
    trains_convolutional: ClassVar[bool] = False
    trains_recurrent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.update not in ("solution", "step"):
            raise ConfigError(f'expected update "solution" or "step" (got {self.update!r})')
        recurrent.check_share(self.q)

    @property
    def history_update_probability(self) -> float | None:
        return self.q

    @property
    def undoes_drift(self) -> bool:
        return self.undo_drift

    def keeps(self, problem: Problem) -> Kept:
        return self.keeps_recurrent(problem)

    def layout(self, problem: Problem, core: Tensor) -> Layout:
        halo = problem.blocks.halo(core)
        P = problem.blocks.block(core, torch.cat([core, halo]))
        return halo, (Aggregation(forward=P, backward=P),), None  # P[core, ext] is P^T[core, ext]

    def memo(self, problem: Problem, clusters: Clusters) -> dict[str, Tensor]:
        return weight_drift.new_ages(problem) if self.undo_drift else {}

    def outer_messages(self, run: Run, batch: Batch) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        P = recurrent.operator_of(batch)
        outside = recurrent.split(P.forward, P.num_outputs)[1]
        if not self.undo_drift or outside is None:
            return super().outer_messages(run, batch)
        moved, shares = weight_drift.ages(run, batch.rows, batch.halo)
        halo = run.H[1].pull(batch.halo).clamp_min(0)
        return spmm(outside, halo), spmm(outside, halo * shares), moved

    def remember(self, run: Run, batch: Batch, found: recurrent.Local) -> None:
        super().remember(run, batch, found)
        if self.undo_drift:
            weight_drift.note(run, batch.rows)

    def fill(self, run: Run, chunks: list[Rows]) -> None:
        super().fill(run, chunks)
        if self.undo_drift:
            weight_drift.note(run, slice(None))

    def local(self, run: Run, batch: Batch, dropout: bool) -> recurrent.Local:
        found = super().local(run, batch, dropout)
        return found if self.update == "solution" else dataclasses.replace(found, kept=self._stepped(run, batch))

    def _stepped(self, run: Run, batch: Batch) -> dict[str, Tensor]:
        """One step from the histories: Z by (20); V by (22), at the states that (20) gives."""
        problem, model = run.problem, recurrent.recurrent_model(run.problem.model)
        P = batch.operators[0]
        assert isinstance(P, Aggregation)
        with torch.no_grad():
            b, p = recurrent.encoded(run, batch, dropout=False)
            z = torch.addmm(b, spmm(P.forward, run.H[1].pull(batch.ext).clamp_min(0)), model.W.t())
        h = z.clamp_min(0).requires_grad_()
        c = batch.num_core
        losses = problem.row_losses(model.decode(h, p), batch.y[:c], batch.labelled[:c])
        (G,) = torch.autograd.grad(losses.sum(), h)
        V = torch.addmm(G, spmm(P.backward, run.V[1].pull(batch.ext)), model.W.detach())
        return {"H": z, "V": V * (z > 0)}
