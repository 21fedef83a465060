"""CMC4Rec: CMC's complete messages inside LMC4Rec's fixed points; this library's own.

LMC4Rec holds the states of the halo constant while it solves for the core. CMC4Rec solves for core and halo together;
what comes from outside of both is held constant, and known completely, since the sums of all messages are stored beside
the rows:

    M = P H,   U = P^T V,   H = relu(Z)                       at all times
    outside, forward:   M[ext] - P[ext, ext] H[ext]           outside, backward:   U[ext] - P^T[ext, ext] V[ext]

After a step the core's rows are written, and what they change in the sums of ext. Gradients come from core rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmc.graph import CSR, Aggregation, spmm
from lmc.methods.protocol import EXACT, ExactPasses, HistoryMethod, Layout, ProblemView, Step, Traits, Widths
from lmc.methods.recurrent import LocalSolution, OuterMessages, RecurrentRules, check_q, operator_of

SUMS_OF = {"H": "M", "V": "U"}
"""The tables of rows, and the tables of their sums."""


@dataclass(frozen=True)
class CMC4Rec(RecurrentRules, HistoryMethod):
    """LMC4Rec that also solves for the halo, with complete messages.

    Args:
        q: as for LMC4Rec.
    """

    q: float = 0.5

    traits: ClassVar[Traits] = Traits(
        "cmc4rec", "CMC4Rec", outside="complete sums in both directions, core and halo solved together",
        step_rows="core and halo", facts=EXACT, trains=frozenset({"recurrent"}), reads=("ext", "rows"),
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_q(self.q)

    def layout(self, problem: ProblemView, core: Tensor) -> Layout:
        halo = problem.halo(core)
        P = problem.blocks.induced(torch.cat([core, halo]))
        return Layout(halo, (Aggregation.exact(P),))

    def tables(self, problem: ProblemView) -> Widths:
        return {name: {1: problem.model.widths[0]} for name in ("H", "M", "V", "U")}

    def outer_messages(self, step: Step) -> OuterMessages:
        return OuterMessages(self._outside(step, "H"))

    def outer_adjoints(self, step: Step) -> Tensor | None:
        return self._outside(step, "V")

    def _outside(self, step: Step, name: str) -> Tensor:
        """What comes from outside of ext: all that is stored, less what ext itself contributed."""
        ext = step.batch.ext
        within = spmm(_matrix(step, name), _message(name, step.tables[name][1].pull(ext)))
        return step.tables[SUMS_OF[name]][1].pull(ext) - within

    def remember(self, step: Step, found: LocalSolution) -> None:
        """The core's rows, and what they change in the sums of ext: M = P relu(Z) and U = P^T V stay true."""
        batch, c = step.batch, step.batch.num_core
        for name, fresh in (("H", found.z), ("V", found.v)):
            P_core, _ = _matrix(step, name).columns(c)
            table, sums = step.tables[name][1], step.tables[SUMS_OF[name]][1]
            change = _message(name, fresh[:c]) - _message(name, table.pull(batch.rows))
            sums.push(batch.ext, sums.pull(batch.ext) + spmm(P_core, change))
            table.push(batch.rows, fresh[:c])

    def fill(self, exact: ExactPasses) -> None:
        super().fill(exact)
        for name, sums in SUMS_OF.items():
            exact.fill_sums(1, exact.tables[name][1], exact.tables[sums][1], transposed=name == "V", relu=name == "H")


def _matrix(step: Step, name: str) -> CSR:
    """P for states, P^T for adjoints; both on ext."""
    P = operator_of(step.batch)
    return P.forward if name == "H" else P.backward


def _message(name: str, rows: Tensor) -> Tensor:
    """What is summed: H = relu(Z) of states, adjoints as they are."""
    return rows.clamp_min(0) if name == "H" else rows
