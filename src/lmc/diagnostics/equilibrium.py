"""Errors of the states and adjoints of a recurrent model's mini-batch (the paper's figure)."""

from __future__ import annotations

from dataclasses import dataclass

from lmc.diagnostics.staleness import relative_error
from lmc.engine import Run
from lmc.engine.exact import chunks_of, exact_adjoints, exact_states
from lmc.engine.recurrent import rules_of
from lmc.graph import Batch
from lmc.models import modes_kept
from lmc.stores import Table


@dataclass(frozen=True)
class EstimatedErrors:
    """Relative errors |estimate - exact| / |exact| on the core rows of one batch.

    ``H``: of the states H = relu(Z) that the batch's gradient reads; ``V``: of its adjoints dL/dZ.
    """

    H: float
    V: float


class EstimateProbe:
    """Measures batches of one run; the exact values at the current parameters are solved for once, on creation."""

    def __init__(self, run: Run) -> None:
        self.run = run
        problem = run.problem

        def make(_: int, width: int) -> Table:
            return problem.table(width)

        chunks = chunks_of(problem)
        ((_, self._Z),) = exact_states(problem, chunks, make)
        ((_, self._V),) = exact_adjoints(problem, chunks, [self._Z], make)

    def __call__(self, batch: Batch) -> EstimatedErrors:
        """The errors of ``batch``, without dropout; nothing is changed."""
        c = batch.num_core
        with modes_kept(self.run.problem.model):
            found = rules_of(self.run.method).solve(self.run.step(batch, keep=False, dropout=False))
        Z, V = self._Z.pull(batch.rows), self._V.pull(batch.rows)
        return EstimatedErrors(relative_error(found.z[:c].relu(), Z.relu()), relative_error(found.v[:c], V))


def estimated_errors(run: Run, batch: Batch) -> EstimatedErrors:
    """The errors of one batch of a recurrent model."""
    return EstimateProbe(run)(batch)
