"""Fixed points x = f(x) by iteration. A solver is a frozen record, its state another object; all share one loop."""

from lmc.solvers.loop import Map, Solution, Solver, best_factor, solve
from lmc.solvers.rules import SOLVERS, Anderson, Picard, solver
