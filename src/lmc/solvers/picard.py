"""Damped Picard iteration."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lmc.solvers.loop import Iteration, check


@dataclass(frozen=True)
class Picard:
    """x <- (1 - damping) x + damping f(x).

    Args:
        tol: the relative residual to stop at.
        max_steps: the largest number of evaluations of the map.
        damping: in (0, 1]; 1 is the plain iteration, which converges where the map is a contraction.
        check_every: steps between readings of the residual; None: 1 on a CPU, and 4 on a GPU, where the host waits.
    """

    tol: float = 1e-4
    max_steps: int = 300
    damping: float = 1.0
    check_every: int | None = None

    def __post_init__(self) -> None:
        check(self.tol, self.max_steps, self.damping, self.check_every)

    def begin(self, x: Tensor) -> Iteration:
        return _Step(self.damping)


@dataclass(frozen=True)
class _Step:
    damping: float

    def advance(self, x: Tensor, fx: Tensor) -> tuple[Tensor, Tensor]:
        if self.damping == 1:
            return fx, x
        return x.lerp_(fx, self.damping), fx
