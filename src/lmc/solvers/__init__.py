"""Fixed points x = f(x) by iteration. A solver is a frozen record, its state another object; all share one loop."""

from lmc.solvers.loop import SOLVERS, Anderson, Map, Picard, Solution, Solver, best_factor, solve, solver
