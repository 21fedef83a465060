"""How stale the histories are: their distance from the exact values."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lmc.engine import Run
from lmc.engine.exact import chunks_of, exact_adjoints, exact_states


@dataclass(frozen=True)
class Staleness:
    """Relative distance |stored - exact| / |exact| of the tables, by layer (evaluation mode, no dropout)."""

    H: dict[int, float]
    V: dict[int, float]


def staleness(run: Run) -> Staleness:
    """The distance of every history from the exact value at the current parameters; nothing is changed."""
    problem = run.problem
    chunks = chunks_of(problem)
    states = dict(exact_states(problem, chunks, lambda _, width: run.problem.table(width)))
    H = {l: relative_error(table.data(), states[l].data()) for l, table in run.H.items()}
    V: dict[int, float] = {}
    if run.V:
        wide = problem.accumulate_dtype
        by_layer = [states[l] for l in sorted(states)]
        for l, exact in exact_adjoints(problem, chunks, by_layer, lambda _, w: problem.table(w, wide)):
            if l in run.V:
                V[l] = relative_error(run.V[l].data(), exact.data())
    return Staleness(H, V)


def relative_error(estimate: Tensor, exact: Tensor) -> float:
    """|estimate - exact| / |exact|; the absolute error where the exact value is zero."""
    size, difference = float(exact.norm()), float((estimate.to(exact.device) - exact).norm())
    return difference / size if size > 0 else difference
