"""How old the histories are, measured against what they would hold if they were exact."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lmc.engine.exact import chunks_of, exact_adjoints, exact_states
from lmc.methods import Run


@dataclass(frozen=True)
class Staleness:
    """Relative distance |stored - exact| / |exact| of the tables, by layer (evaluation mode, no dropout)."""

    H: dict[int, float]
    V: dict[int, float]


def staleness(run: Run) -> Staleness:
    """The distance of every history from the exact value at the current parameters; nothing is changed."""
    problem = run.problem
    chunks = chunks_of(problem)

    exact_h = dict(exact_states(problem, chunks, lambda _, width: run.table(width)))
    H = {l: _distance(table.data(), exact_h[l].data()) for l, table in run.H.items()}
    V = {}
    if run.V:
        states = [exact_h[l] for l in sorted(exact_h)]
        for l, exact in exact_adjoints(problem, chunks, states, lambda _, w: run.table(w, problem.accumulate_dtype)):
            if l in run.V:
                V[l] = _distance(run.V[l].data(), exact.data())
    return Staleness(H, V)


def _distance(stored: Tensor, exact: Tensor) -> float:
    size = float(exact.norm())
    distance = float((stored.to(exact.device) - exact).norm())
    return distance / size if size > 0 else distance
