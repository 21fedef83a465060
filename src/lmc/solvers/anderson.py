"""Anderson acceleration: "Iterative Procedures for Nonlinear Integral Equations"."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.errors import ConfigError
from lmc.solvers.loop import Iteration, check

RIDGE = {torch.float32: 1e-7, torch.float64: 1e-14}
"""Share of the mean of the Gram matrix's diagonal that is added to the diagonal, since late residuals are nearly
parallel."""


@dataclass(frozen=True)
class Anderson:
    """The combination of the last ``memory`` iterates, with weights that sum to 1, whose residual is smallest.

    alpha = argmin |sum_i alpha_i g_i|, g_i = f(x_i) - x_i;  x <- sum_i alpha_i (x_i + damping g_i). It needs 2 x
    ``memory`` copies of x. It is worthwhile where a step is expensive and the map contracts slowly.

    Args:
        tol, max_steps, damping, check_every: as for :class:`lmc.solvers.Picard`.
        memory: the number of iterates that are combined.
    """

    tol: float = 1e-4
    max_steps: int = 300
    memory: int = 5
    damping: float = 1.0
    check_every: int | None = None

    def __post_init__(self) -> None:
        check(self.tol, self.max_steps, self.damping, self.check_every)
        if self.memory < 2:
            raise ConfigError(f"expected memory of at least 2 iterates (got {self.memory}): one is Picard")

    def begin(self, x: Tensor) -> Iteration:
        return _Combine(self, x)


class _Combine:
    def __init__(self, solver: Anderson, x: Tensor) -> None:
        self.solver = solver
        self.count = 0
        self.X = x.new_empty(solver.memory, x.numel())
        self.G = x.new_empty(solver.memory, x.numel())
        self.gram = x.new_zeros(solver.memory, solver.memory)
        self.ridge = RIDGE.get(x.dtype, 1e-7)

    def advance(self, x: Tensor, fx: Tensor) -> tuple[Tensor, Tensor]:
        slot = self.count % self.solver.memory
        self.X[slot].copy_(x.view(-1))
        torch.sub(fx.view(-1), x.view(-1), out=self.G[slot])
        self.count += 1
        m = min(self.count, self.solver.memory)
        row = self.G[:m] @ self.G[slot]
        self.gram[slot, :m] = row
        self.gram[:m, slot] = row
        gram = self.gram[:m, :m]
        ridge = torch.eye(m, dtype=x.dtype, device=x.device) * (gram.diagonal().mean() * self.ridge)
        # solve_ex does not check for a singular matrix, which would wait for the device; the ridge prevents one
        weights = torch.linalg.solve_ex(gram + ridge, x.new_ones(m)).result
        weights = (weights / weights.sum()).nan_to_num(1 / m)
        torch.mv(self.X[:m].t(), weights, out=x.view(-1))
        x.view(-1).addmv_(self.G[:m].t(), weights, alpha=self.solver.damping)
        return x, fx
