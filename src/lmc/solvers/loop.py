"""The fixed-point solvers, Picard and Anderson, and the one loop that runs them.

A map writes f(x) into given memory, so that an iteration allocates nothing of the size of x. The loop stops by the
relative residual |f(x) - x| / |f(x)|. Reading it makes the host wait for the device, so on a GPU it is read only every
few steps.

A start that is an old solution is often right up to a factor, because the constant term of the equation has grown or
shrunk since. For maps f(x) = J(x) + c with J(a x) = a J(x), a >= 0 (linear maps, and a ReLU), the best factor costs no
evaluation: f(a x) = c + a (f(x) - c), so a = argmin |a (x - J(x)) - c| is known after the first step. A second factor
is computed after the second step, when the error that the first factor could not remove is smaller.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.errors import ConfigError, SolverError, check_at_least, check_fields, check_within

Map = Callable[[Tensor, Tensor], None]
"""f(x, out) writes the map's value at x into ``out``; x and ``out`` are different memory."""
Total = Callable[[Tensor], Tensor]
"""Adds up numbers over the processes that hold the rows of x."""

GROWTH = 1e4
"""A change this many times the first one counts as divergence; for a contraction the ratio is at most sqrt(width)."""
CUDA_CHECK_EVERY = 4
"""Steps between two readings of the residual on a GPU."""
RIDGE = {torch.float32: 1e-7, torch.float64: 1e-14}
"""Share of the mean of the Gram matrix's diagonal that is added to the diagonal, since late residuals are nearly
parallel."""
SCALED_STEPS = 2
"""Steps after which the iterate is scaled."""


@dataclass(frozen=True)
class Solution:
    """The result of a solver.

    Args:
        value: f at the last iterate.
        steps: evaluations of the map.
        residual: |f(x) - x| / |f(x)| at the last iterate.
        converged: whether the residual is within the tolerance.
    """

    value: Tensor
    steps: int
    residual: float
    converged: bool


Iteration = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""The next iterate and memory for its value, from the last iterate and its value. Both may be overwritten."""


@dataclass(frozen=True)
class Solver(ABC):
    """The settings of an iteration, and the rule for the next iterate.

    Args:
        tol: the relative residual to stop at.
        max_steps: the largest number of evaluations of the map.
        damping: in (0, 1]; 1 is the plain iteration.
        check_every: steps between readings of the residual; None: 1 on a CPU, and 4 on a GPU, where the host waits.
    """

    tol: float = 1e-4
    max_steps: int = 300
    damping: float = 1.0
    check_every: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        check_within("(0, 1)", tol=self.tol)
        check_within("(0, 1]", damping=self.damping)
        check_at_least(1, max_steps=self.max_steps, check_every=self.check_every)

    def interval(self, x: Tensor) -> int:
        """Steps between two readings of the residual of values like ``x``."""
        return self.check_every or (CUDA_CHECK_EVERY if x.is_cuda else 1)

    @abstractmethod
    def begin(self, x: Tensor, total: Total | None = None) -> Iteration:
        """A new iteration for values like ``x``; ``total`` is given where other processes hold further rows of x."""


@dataclass(frozen=True)
class Picard(Solver):
    """x <- (1 - damping) x + damping f(x); the plain iteration converges where the map is a contraction."""

    def begin(self, x: Tensor, total: Total | None = None) -> Iteration:
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

    def begin(self, x: Tensor, total: Total | None = None) -> Iteration:
        X, G = (x.new_empty(self.memory, x.numel()) for _ in range(2))
        grams, count = x.new_zeros(self.memory, self.memory), 0

        def advance(x: Tensor, fx: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal count
            slot = count % self.memory
            X[slot].copy_(x.view(-1))
            torch.sub(fx.view(-1), x.view(-1), out=G[slot])
            count += 1
            m = min(count, self.memory)
            grams[slot, :m] = grams[:m, slot] = _whole(G[:m] @ G[slot], total)
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


@torch.no_grad()
def solve(
    f: Map, start: Tensor, solver: Solver, remedy: str = "damp the iteration", origin: Tensor | None = None,
    first: Tensor | None = None, total: Total | None = None,
) -> Solution:  # fmt: skip
    """Iterate from ``start``, which is not changed, until the tolerance or the maximum number of steps is reached.

    Divergence raises :class:`lmc.errors.SolverError`. Reaching the maximum number of steps does not: ``converged`` is
    then False.

    Args:
        remedy: what the user can do about divergence; it ends the message.
        origin: f(0), for maps with f(a x) - f(0) = a (f(x) - f(0)) for all a >= 0: the start is then multiplied by
            the factor with the smallest residual, so that it is never worse than starting from zero.
        first: f(start), where it is known; its memory is used. It counts as a step.
        total: where other processes hold further rows of x, norms and products are those of all rows; all processes
            take the same steps.
    """
    x = start.clone(memory_format=torch.contiguous_format)
    change, every = torch.empty_like(x), solver.interval(x)
    advance, watch = solver.begin(x, total), _Residual(x, remedy, total)
    if first is None:
        first = torch.empty_like(x)
        f(x, first)
    fx = first
    for step in range(1, solver.max_steps + 1):
        reads = step in (1, solver.max_steps) or step % every == 0
        scales = origin is not None and step <= SCALED_STEPS
        if reads or scales:
            torch.sub(fx, x, out=change)
        if reads:
            residual = watch.read(change, fx, step)
            if residual <= solver.tol or step == solver.max_steps:
                return Solution(fx, step, residual, residual <= solver.tol)
        if scales:
            assert origin is not None
            _scale(x, fx, change, origin, total)
        x, fx = advance(x, fx)
        f(x, fx)
    raise AssertionError("unreachable: the last step returns")


def _scale(x: Tensor, fx: Tensor, change: Tensor, origin: Tensor, total: Total | None) -> None:
    """x <- a x and f(x) <- f(a x), in place, with the factor a >= 0 whose residual is smallest; ``change``, which is
    f(x) - x, is overwritten."""
    a = best_factor(torch.sub(origin, change, out=change), origin, total)
    x.mul_(a)
    torch.lerp(origin, fx, a, out=fx)


class _Residual:
    """Reads relative residuals, and raises where the iteration diverges."""

    def __init__(self, x: Tensor, remedy: str, total: Total | None) -> None:
        self._norms = x.new_empty(2)
        self._remedy, self._total = remedy, total
        self._first = math.inf

    def read(self, change: Tensor, fx: Tensor, step: int) -> float:
        """|f(x) - x| / |f(x)|; the host waits for the device."""
        torch.linalg.vector_norm(change, out=self._norms[0])
        torch.linalg.vector_norm(fx, out=self._norms[1])
        norms = self._norms if self._total is None else self._total(self._norms.square()).sqrt_()
        moved, size = norms.tolist()
        if step == 1:
            self._first = min(self._first, moved)
        if not math.isfinite(moved) or moved > GROWTH * max(self._first, 1e-300):
            raise SolverError(
                f"expected a fixed-point iteration that settles (got a change of {moved:.3g} at step {step} after "
                f"{self._first:.3g} at step 1): {self._remedy}"
            )
        return moved / size if size > 0 else moved


def best_factor(d: Tensor, c: Tensor, total: Total | None = None) -> Tensor:
    """argmin over a >= 0 of |a d - c|, on the device; 0 where d is zero."""
    d, c = d.view(-1), c.reshape(-1)
    along, size = _whole(d.dot(c), total), _whole(d.dot(d), total)
    return (along / size.clamp_min(torch.finfo(d.dtype).tiny)).clamp_min_(0)


def _whole(value: Tensor, total: Total | None) -> Tensor:
    """A sum over the rows of all processes, from that over those of this one."""
    return value if total is None else total(value)
