"""One step on a recurrent model, for every method: what a method drops or compensates is in its operators alone.

The operator of a batch says which rows are solved for (its outputs) and which are read (its inputs). Columns beyond the
rows solved for are the halo: its states and adjoints come from the histories and are held constant,

    forward    Z = P_in H W^T + (P_out H[halo] W^T + b(X))                  (21)
    backward   U = 1[Z > 0] * (P_in^T U W + (P_out^T V[halo] W + dL/dH))      (23)
    gradients  from core rows alone                                          (24) (25)

Both brackets are computed once and reused by the solver. The histories hold Z and U = dL/dZ: H = relu(Z) and its
derivative are both read off Z, so one-hop neighbours suffice, and V needs no second mask. A method without a backward
halo (GAS), or without any (Cluster-GCN, full batch), brings a smaller matrix and no other code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from lmc.engine.problem import Problem
from lmc.errors import ConfigError
from lmc.graph import CSR, Aggregation, Batch, spmm
from lmc.models import Model, Pass, Recurrent
from lmc.models.equilibrium import Solves
from lmc.sampling import derive
from lmc.solvers import Solution
from lmc.stores import Rows

if TYPE_CHECKING:
    from lmc.engine.run import Run

SOLVES = "solves"
_FIELDS = ("batches", "forward_steps", "backward_steps", "unconverged", "worst_residual")


def recurrent_model(model: Model) -> Recurrent:
    """The model, where it is a recurrent one."""
    if not isinstance(model, Recurrent):
        raise ConfigError(
            f"expected a recurrent model (got {type(model).__name__}): use lmc.models.RecGCN, or derive yours from "
            "lmc.models.Recurrent"
        )
    return model


def new_tally() -> dict[str, Tensor]:
    """Solver steps and failures since the last :func:`take_tally`, kept with the run."""
    return {SOLVES: torch.zeros(len(_FIELDS), dtype=torch.float64)}


def take_tally(run: Run) -> dict[str, float] | None:
    """Mean steps of the solves, how many did not converge, and the worst residual, since the last call; None where
    nothing was solved."""
    if SOLVES not in run.memo:
        return None
    counts = dict(zip(_FIELDS, run.memo[SOLVES].tolist(), strict=True))
    if counts["batches"] == 0:
        return None
    run.memo[SOLVES].zero_()
    return {
        "forward_steps": counts["forward_steps"] / counts["batches"],
        "backward_steps": counts["backward_steps"] / counts["batches"],
        "unconverged": counts["unconverged"],
        "worst_residual": counts["worst_residual"],
    }


def count(run: Run, solves: tuple[Solution, Solution] | None) -> None:
    """Add the solves of one step to the run's tally."""
    if solves is None:
        return
    steps, failures = [s.steps for s in solves], sum(not s.converged for s in solves)
    tally = run.memo[SOLVES]
    tally[:4] += tally.new_tensor([1, *steps, failures])
    tally[4:].clamp_(min=max(s.residual for s in solves))


def split(matrix: CSR, rows: int) -> tuple[CSR, CSR | None]:
    """The columns of the rows solved for, and those of the halo where there are any."""
    if matrix.num_cols == rows:
        return matrix, None
    return matrix.columns(rows)


@dataclass(frozen=True, eq=False)
class Local:
    """What one batch gives: gradients and loss without b/c, and what they were made of.

    Args:
        rows: the rows solved for, core first.
        z, u: their states and adjoints.
        kept: what the histories of these rows become, by table.
        solves: the solutions of the forward and of the backward equation; None where none was sought.
    """

    rows: Rows
    z: Tensor
    u: Tensor
    grads: list[Tensor]
    loss: Tensor
    kept: dict[str, Tensor]
    solves: tuple[Solution, Solution] | None = None


def operator_of(batch: Batch) -> Aggregation:
    """The one aggregation of the batch."""
    P = batch.operators[0]
    assert isinstance(P, Aggregation)
    return P


def solved_rows(batch: Batch) -> Rows:
    """The rows that the batch's operator gives out: the core, or core and halo (backward SGD)."""
    return batch.rows if batch.operators[0].num_outputs == batch.num_core else batch.ext


def inputs(run: Run, batch: Batch, num: int) -> Tensor | CSR:
    """Features of the rows solved for."""
    if batch.x is not None:
        assert isinstance(batch.x, CSR)
        return batch.x.leading(num)
    return run.problem.inputs(solved_rows(batch))


def encoded(run: Run, batch: Batch, dropout: bool) -> tuple[Tensor, Pass]:
    """b(X) of the rows solved for, with the pass it was made in."""
    num = batch.operators[0].num_outputs
    p = Pass(batch.num_core if num > batch.num_core else None, dropout=dropout, generator=run.generator)
    b = recurrent_model(run.problem.model).encode(inputs(run, batch, num), p)
    assert isinstance(b, Tensor)
    return b, p


def local(run: Run, batch: Batch, dropout: bool, warm: bool = True) -> Local:
    """Solve a batch and differentiate; histories are read and not written.

    ``warm``: the solver starts from the histories of the rows solved for, else from zero.
    """
    problem, model = run.problem, recurrent_model(run.problem.model)
    run.prefetch(batch)
    model.train()
    P = operator_of(batch)
    num, rows = P.num_outputs, solved_rows(batch)
    b, p = encoded(run, batch, dropout)

    def arriving() -> Tensor | None:
        sums = run.method.outer_adjoints(run, batch)
        return None if sums is None else sums @ model.W.detach()

    ends = Solves(outer_adjoints=arriving, undo_drift=run.method.undoes_drift)
    if warm:
        ends.z_start, ends.v_start = run.H[1].pull(rows), run.V[1].pull(rows)
    outer, ends.aged, ends.moved = run.method.outer_messages(run, batch)
    h = model.equilibrium(b, split(P.forward, num)[0], split(P.backward, num)[0], outer, p, ends)
    losses = problem.losses(model.decode(h, p), batch)
    grads = torch.autograd.grad(losses.sum(), list(run.parameters.values()))
    assert ends.states is not None
    assert ends.adjoints is not None
    z, u = ends.states.value, ends.adjoints.value
    loss = losses[: batch.num_core].sum().detach()
    return Local(rows, z, u, list(grads), loss, {"H": z, "V": u}, (ends.states, ends.adjoints))


class Answers:
    """What a method answers about recurrent models, beside its operators; by default, as LMC4Rec and GAS do."""

    trains_recurrent: ClassVar[bool] = False

    @property
    def history_update_probability(self) -> float | None:
        """With dropout: the share q of steps without it, which alone update the histories; None where no message is
        read from the histories, and every step drops out."""
        return None

    @property
    def undoes_drift(self) -> bool:
        """Whether adjoints from the histories are scaled to today's loss, by what the rows solved for show."""
        return False

    def keeps_recurrent(self, problem: Problem) -> dict[str, dict[int, int]]:
        """The tables kept between steps: H[1] and V[1], the states Z and adjoints dL/dZ. Where no halo reads them, the
        solver starts from them."""
        width = problem.model.widths[0]
        return {"H": {1: width}, "V": {1: width}}

    def outer_states(self, run: Run, batch: Batch) -> Tensor | None:
        """Messages from outside the rows solved for, summed: P_out H[halo]; None where nothing is outside."""
        outside = split(operator_of(batch).forward, operator_of(batch).num_outputs)[1]
        return None if outside is None else spmm(outside, run.H[1].pull(batch.halo).clamp_min(0))

    def outer_messages(self, run: Run, batch: Batch) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The messages from outside; the same, each times its age as a share of the core's; and the core's age. The
        last two are None where states are taken as they were stored."""
        return self.outer_states(run, batch), None, None

    def outer_adjoints(self, run: Run, batch: Batch) -> Tensor | None:
        """Adjoints from outside the rows solved for, summed: P_out^T V[halo], likewise."""
        outside = split(operator_of(batch).backward, operator_of(batch).num_outputs)[1]
        return None if outside is None else spmm(outside, run.V[1].pull(batch.halo))

    def local(self, run: Run, batch: Batch, dropout: bool) -> Local:
        """States, adjoints and gradients of a batch; no history is written."""
        return local(run, batch, dropout)

    def remember(self, run: Run, batch: Batch, found: Local) -> None:
        """Write the histories after a step."""
        for name, values in found.kept.items():
            run.tables[name][1].push(found.rows, values)


def check_share(q: float) -> None:
    """A share of steps without dropout that keeps the histories alive."""
    if not 0 < q <= 1:
        raise ConfigError(f"expected q in (0, 1] (got {q}): histories need steps without dropout")


def calm(run: Run, batch: Batch, q: float | None) -> bool:
    """Whether this step runs without dropout and updates the histories; chance q, a matter of seed, epoch and slot."""
    model = run.problem.model
    if q is None or model.dropout == model.input_dropout == 0:
        return True
    return derive(run.seed, "calm", run.epoch, batch.slot) < q * 2**63


def estimate(run: Run, batch: Batch, keep: bool, dropout: bool) -> tuple[list[Tensor], Tensor]:
    """Gradients and loss of a batch on a recurrent model, without b/c; with ``keep`` the solutions are pushed."""
    q = run.method.history_update_probability
    quiet = calm(run, batch, q)
    found = run.method.local(run, batch, dropout and (q is None or not quiet))
    if keep:
        count(run, found.solves)
    if keep and quiet:
        run.method.remember(run, batch, found)
    return found.grads, found.loss
