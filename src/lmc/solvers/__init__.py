"""Fixed points x = f(x) by iteration: solvers are frozen records, their state is another value, the loop is one."""

from lmc.errors import ConfigError
from lmc.solvers.anderson import Anderson
from lmc.solvers.loop import Map, Solution, Solver, best_factor, solve
from lmc.solvers.picard import Picard

SOLVERS: dict[str, type[Picard] | type[Anderson]] = {"picard": Picard, "anderson": Anderson}
"""Every solver by its short name."""


def solver(choice: str | Solver) -> Solver:
    """A solver by name, with its defaults; a solver of one's own passes through."""
    if not isinstance(choice, str):
        return choice
    if choice not in SOLVERS:
        raise ConfigError(f"expected a solver in {sorted(SOLVERS)} (got {choice!r})")
    return SOLVERS[choice]()


__all__ = ["SOLVERS", "Anderson", "Map", "Picard", "Solution", "Solver", "best_factor", "solve", "solver"]
