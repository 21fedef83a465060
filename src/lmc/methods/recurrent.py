"""One step on a recurrent model, for every method: what a method drops or compensates is in its operators alone.

The operator of a batch says which rows are solved for (its outputs) and which are read (its inputs). Columns beyond the
rows solved for are the halo: its states and adjoints come from the histories and are held constant,

    forward    Z = P_in H W^T + (P_out H[halo] W^T + b(X))                  (21)
    backward   V = 1[Z > 0] * (P_in^T V W + (P_out^T V[halo] W + dL/dH))      (23)
    gradients  from core rows alone                                          (24) (25)

Both brackets are computed once and reused by the solver. The histories hold Z and V = dL/dZ: H = relu(Z) and its
derivative are both read off Z, so one-hop neighbours suffice, and V needs no second mask. A method without a backward
halo (GAS), or without any (Cluster-GCN, full batch), brings a smaller matrix and no other code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.errors import check_within
from lmc.graph import CSR, Aggregation, Batch, spmm
from lmc.methods.protocol import ProblemView, Step, Widths
from lmc.models import Pass, recurrent_model
from lmc.models.equilibrium import OtherRanks, Solves
from lmc.solvers import Solution
from lmc.stores import Rows


@dataclass(frozen=True, eq=False)
class LocalSolution:
    """What one batch gives: gradients and loss without b/c, and what they were made of.

    Args:
        rows: the rows solved for, core first.
        z, v: their states and adjoints.
        kept: what the histories of these rows become, by table.
        solves: the solutions of the forward and of the backward equation; None where none was solved.
    """

    rows: Rows
    z: Tensor
    v: Tensor
    grads: list[Tensor]
    loss: Tensor
    kept: dict[str, Tensor]
    solves: tuple[Solution, Solution] | None = None


@dataclass(frozen=True, eq=False)
class OuterMessages:
    """Messages from outside of the rows solved for, summed.

    Args:
        sums: P_out H[halo]; None where nothing is outside.
        aged: the same, each message times its age as a share of the core's; None where states are read as they are.
        moved: the age of the core.
    """

    sums: Tensor | None
    aged: Tensor | None = None
    moved: Tensor | None = None


class RecurrentRules:
    """What a method answers about recurrent models, beside its operators; by default, as LMC4Rec and GAS do.

    ``q``: where the model uses dropout, the share of steps that run without it and update the histories; None: no
    message is read from the histories, and every step uses dropout.
    ``undo_drift``: whether adjoints from the histories are scaled to today's loss, by what the rows solved for show.
    """

    q: float | None
    undo_drift: bool = False

    def tables(self, problem: ProblemView) -> Widths:
        """H[1] and V[1], the states Z and adjoints dL/dZ. Where no halo reads them, the solver starts from them."""
        width = problem.model.widths[0]
        return {"H": {1: width}, "V": {1: width}}

    def outer_messages(self, step: Step) -> OuterMessages:
        """P_out H[halo]."""
        P_out = outside(operator_of(step.batch).forward, step.batch)
        return OuterMessages(None if P_out is None else spmm(P_out, step.H[1].pull(step.batch.halo).clamp_min(0)))

    def outer_adjoints(self, step: Step) -> Tensor | None:
        """Adjoints from outside of the rows solved for, summed: P_out^T V[halo]; None where nothing is outside."""
        P_out = outside(operator_of(step.batch).backward, step.batch)
        return None if P_out is None else spmm(P_out, step.V[1].pull(step.batch.halo))

    def solve(self, step: Step) -> LocalSolution:
        """States, adjoints and gradients of a batch; no history is written."""
        return solve_batch(self, step)

    def remember(self, step: Step, found: LocalSolution) -> None:
        """Write the histories after a step."""
        for name, values in found.kept.items():
            step.tables[name][1].push(found.rows, values)


@dataclass(frozen=True)
class DefaultRules(RecurrentRules):
    """The rules of a method that has none of its own."""

    q: float | None


def solve_batch(rules: RecurrentRules, step: Step, warm: bool = True) -> LocalSolution:
    """Solve (21) and (23) on a batch and differentiate by (24) and (25).

    Args:
        warm: the solver starts from the histories of the rows solved for, else from zero.
    """
    problem, batch, model = step.problem, step.batch, recurrent_model(step.problem.model)
    model.train()
    P, rows = operator_of(batch), solved_rows(batch)
    b, p = encoded(step)

    def outer_adjoints() -> Tensor | None:
        sums = rules.outer_adjoints(step)
        return None if sums is None else sums @ model.W.detach()

    others = batch.operators[0] if isinstance(batch.operators[0], OtherRanks) else None
    solves = Solves(outer_adjoints=outer_adjoints, undo_drift=rules.undo_drift, others=others)
    if warm:
        solves.z_start, solves.v_start = step.H[1].pull(rows), step.V[1].pull(rows)
    outer = rules.outer_messages(step)
    solves.aged, solves.moved = outer.aged, outer.moved
    h = model.equilibrium(b, inside(P.forward, batch), inside(P.backward, batch), outer.sums, p, solves)
    losses = problem.losses(model.decode(h, p), batch)
    grads = torch.autograd.grad(losses.sum(), list(step.parameters.values()))
    assert solves.states is not None
    assert solves.adjoints is not None
    z, v = solves.states.value, solves.adjoints.value
    loss = losses[: batch.num_core].sum().detach()
    return LocalSolution(rows, z, v, list(grads), loss, {"H": z, "V": v}, (solves.states, solves.adjoints))


def operator_of(batch: Batch) -> Aggregation:
    """The aggregation of the batch's one layer, among the rows that this rank solves for and their halo."""
    P = batch.operators[0]
    P = P.P if isinstance(P, OtherRanks) else P
    assert isinstance(P, Aggregation)
    return P


def solved_rows(batch: Batch) -> Rows:
    """The rows that the batch's operator gives out: the core, or core and halo (backward SGD)."""
    return batch.rows if batch.operators[0].num_outputs == batch.num_core else batch.ext


def inside(matrix: CSR, batch: Batch) -> CSR:
    """The columns of the rows solved for."""
    return _columns(matrix, batch)[0]


def outside(matrix: CSR, batch: Batch) -> CSR | None:
    """The columns of the halo, where there are any beside the rows solved for."""
    return _columns(matrix, batch)[1]


def _columns(matrix: CSR, batch: Batch) -> tuple[CSR, CSR | None]:
    """The columns of the rows solved for, on any rank, and those of the halo."""
    P = batch.operators[0]
    if matrix.num_cols == P.num_outputs or isinstance(P, OtherRanks):
        return matrix, None
    return matrix.columns(P.num_outputs)


def encoded(step: Step, dropout: bool | None = None) -> tuple[Tensor, Pass]:
    """b(X) of the rows solved for, with the pass it was made in."""
    batch, num = step.batch, step.batch.operators[0].num_outputs
    drops = step.dropout if dropout is None else dropout
    p = Pass(batch.num_core if num > batch.num_core else None, dropout=drops, generator=step.generator)
    if batch.inputs is None:
        x = step.problem.inputs(solved_rows(batch))
    else:
        assert isinstance(batch.inputs, CSR)
        x = batch.inputs.leading(num)
    b = recurrent_model(step.problem.model).encode(x, p)
    assert isinstance(b, Tensor)
    return b, p


def check_q(q: float) -> None:
    """Refuse a share of steps without dropout under which the histories would never be updated."""
    check_within("(0, 1]", "histories need steps without dropout", q=q)
