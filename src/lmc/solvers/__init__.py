"""Fixed points x = f(x) by iteration. A solver is a frozen record, its state another object; all share one loop."""

from lmc.errors import ConfigError
from lmc.solvers.anderson import Anderson
from lmc.solvers.loop import Map, Solution, Solver, best_factor, solve
from lmc.solvers.picard import Picard

SOLVERS: dict[str, type[Picard] | type[Anderson]] = {"picard": Picard, "anderson": Anderson}
"""Every solver by its name."""


def solver(choice: str | Solver) -> Solver:
    """A solver by name, with its default settings; a solver object is returned as it is."""
    if not isinstance(choice, str):
        return choice
    if choice not in SOLVERS:
        raise ConfigError(f"expected a solver in {sorted(SOLVERS)} (got {choice!r})")
    return SOLVERS[choice]()
