"""CMC4Rec: complete message compensation inside LMC4Rec, the library's own step beyond it.

LMC4Rec holds the halo at its histories. CMC4Rec solves for it, together with the core: what a halo row hears from
outside ext is not known row by row, but its SUM is, if sums are stored beside the rows. Tables Z and V, and

    M = P relu(Z),   U = P^T V           kept true at all times, as in CMC

    outer      O = M[ext] - P_ee relu(Z[ext])        what ext hears from outside, without touching the 2-hop ring
    forward    Z_e = (P_ee H_e + O) W^T + b(X_e)     on core and halo, today's parameters for both
    backward   the same with V, U and P^T
    push       Z[core], V[core];  M[ext] += P[ext, core] (change of H[core]), U likewise
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmc.engine import recurrent
from lmc.engine.problem import Problem
from lmc.engine.recurrent_exact import blocks_of
from lmc.engine.run import Run
from lmc.graph import Aggregation, Batch, spmm
from lmc.methods.base import EXACT_ON_ONE_PART, EXACT_WITH_EXACT_HISTORIES, HistoryMethod, Kept, Layout
from lmc.stores import Rows

SUMS = {"H": "M", "V": "U"}


@dataclass(frozen=True)
class CMC4Rec(HistoryMethod):
    """LMC4Rec whose halo is solved for, with complete messages.

    Args:
        q: as for LMC4Rec.
    """

    q: float = 0.5

    name: ClassVar[str] = "cmc4rec"
    title: ClassVar[str] = "CMC4Rec"
    paper: ClassVar[str] = "this library"
    outside: ClassVar[str] = "complete sums in both directions, core and halo solved together"
    facts: ClassVar[frozenset[str]] = frozenset({EXACT_ON_ONE_PART, EXACT_WITH_EXACT_HISTORIES})
    step_rows: ClassVar[str] = "core and halo"
    trains_convolutional: ClassVar[bool] = False
    trains_recurrent: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        recurrent.check_share(self.q)

    @property
    def history_update_probability(self) -> float | None:
        return self.q

    def layout(self, problem: Problem, core: Tensor) -> Layout:
        halo = problem.blocks.halo(core)
        P = problem.blocks.induced(torch.cat([core, halo]))
        return halo, (Aggregation.exact(P),), None

    def keeps(self, problem: Problem) -> Kept:
        return {name: {1: problem.model.widths[0]} for name in ("H", "M", "V", "U")}

    def keeps_recurrent(self, problem: Problem) -> Kept:
        return self.keeps(problem)

    def reads(self, batch: Batch) -> tuple[Rows, ...]:
        return batch.ext, batch.rows

    def outer_states(self, run: Run, batch: Batch) -> Tensor | None:
        return self._outer(run, batch, "H")

    def outer_adjoints(self, run: Run, batch: Batch) -> Tensor | None:
        return self._outer(run, batch, "V")

    def _outer(self, run: Run, batch: Batch, name: str) -> Tensor:
        """What comes from outside ext: all that is stored, less what ext itself contributed."""
        within = spmm(recurrent.operator_of(batch).forward, _message(name, run.tables[name][1].pull(batch.ext)))
        return run.tables[SUMS[name]][1].pull(batch.ext) - within

    def remember(self, run: Run, batch: Batch, found: recurrent.Local) -> None:
        """The core's rows, and what they change in the sums of ext: M = P relu(Z) and U = P^T V stay true."""
        c = batch.num_core
        from_core, _ = recurrent.operator_of(batch).forward.columns(c)
        for name, fresh in (("H", found.z), ("V", found.u)):
            table, sums = run.tables[name][1], run.tables[SUMS[name]][1]
            change = _message(name, fresh[:c]) - _message(name, table.pull(batch.rows))
            sums.push(batch.ext, sums.pull(batch.ext) + spmm(from_core, change))
            table.push(batch.rows, fresh[:c])

    def fill(self, run: Run, chunks: list[Rows]) -> None:
        super().fill(run, chunks)
        for block in blocks_of(run.problem, chunks):
            for name, sums in SUMS.items():
                table = run.tables[name][1]
                total = spmm(block.inside, _message(name, table.pull(block.rows)))
                if block.halo.numel():
                    total += spmm(block.outside, _message(name, table.pull(block.halo)))
                run.tables[sums][1].push(block.rows, total)


def _message(name: str, rows: Tensor) -> Tensor:
    """What is summed: H = relu(Z) of states, adjoints as they are."""
    return rows.clamp_min(0) if name == "H" else rows
