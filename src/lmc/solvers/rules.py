"""The solvers: damped Picard iteration, and Anderson acceleration."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.errors import ConfigError
from lmc.solvers.loop import Iteration, Solver

RIDGE = {torch.float32: 1e-7, torch.float64: 1e-14}
"""Share of the mean of the Gram matrix's diagonal that is added to the diagonal, since late residuals are nearly
parallel."""


@dataclass(frozen=True)
class Picard(Solver):
    """x <- (1 - damping) x + damping f(x); the plain iteration converges where the map is a contraction."""

    def begin(self, x: Tensor) -> Iteration:
        def advance(x: Tensor, fx: Tensor) -> tuple[Tensor, Tensor]:
            return (fx, x) if self.damping == 1 else (x.lerp_(fx, self.damping), fx)

        return advance


@dataclass(frozen=True)
class Anderson(Solver):
    """The combination of the last ``memory`` iterates, with weights that sum to 1, whose residual is smallest.

    alpha = argmin |sum_i alpha_i g_i|, g_i = f(x_i) - x_i;  x <- sum_i alpha_i (x_i + damping g_i). It needs 2 x
    ``memory`` copies of x. It is worthwhile where a step is expensive and the map contracts slowly. The method is that
    of "Iterative Procedures for Nonlinear Integral Equations".

    Args:
        memory: the number of iterates that are combined.
    """

    memory: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory < 2:
            raise ConfigError(f"expected memory of at least 2 iterates (got {self.memory}): one is Picard")

    def begin(self, x: Tensor) -> Iteration:
        X, G = (x.new_empty(self.memory, x.numel()) for _ in range(2))
        grams, count = x.new_zeros(self.memory, self.memory), 0

        def advance(x: Tensor, fx: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal count
            slot = count % self.memory
            X[slot].copy_(x.view(-1))
            torch.sub(fx.view(-1), x.view(-1), out=G[slot])
            count += 1
            m = min(count, self.memory)
            grams[slot, :m] = grams[:m, slot] = G[:m] @ G[slot]
            gram = grams[:m, :m]
            share = gram.diagonal().mean() * RIDGE.get(x.dtype, 1e-7)
            ridge = torch.eye(m, dtype=x.dtype, device=x.device) * share
            # solve_ex does not check for a singular matrix, which would wait for the device; the ridge prevents one
            weights = torch.linalg.solve_ex(gram + ridge, x.new_ones(m)).result
            weights = (weights / weights.sum()).nan_to_num(1 / m)
            torch.mv(X[:m].t(), weights, out=x.view(-1))
            x.view(-1).addmv_(G[:m].t(), weights, alpha=self.damping)
            return x, fx

        return advance


SOLVERS: dict[str, type[Picard] | type[Anderson]] = {"picard": Picard, "anderson": Anderson}
"""Every solver by its name."""


def solver(choice: str | Solver) -> Solver:
    """A solver by name, with its default settings; a solver object is returned as it is."""
    if not isinstance(choice, str):
        return choice
    if choice not in SOLVERS:
        raise ConfigError(f"expected a solver in {sorted(SOLVERS)} (got {choice!r})")
    return SOLVERS[choice]()
