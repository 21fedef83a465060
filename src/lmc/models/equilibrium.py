"""A fixed point on a set of rows, and implicit differentiation through it: written once, for every method.

    forward    Z = P relu(Z) W^T + C                         C: what does not change while Z is sought
    backward   U = 1[Z > 0] * (P^T U W + G)                  U = dL/dZ; G = dL/dH of the loss and of what is outside

U is the adjoint (I - J)^-T of the forward equation; it is never inverted, but iterated as Z is. One iteration is one
sparse and one dense product, and allocates nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmc.errors import SolverWarning
from lmc.graph import CSR, spmm
from lmc.solvers import Solution, Solver, best_factor, solve

REACH = 10.0
"""A column of states changes by at most this many times the relative change of W."""
MOST_LOSS = 0.5
"""A column loses at most this share: messages older than the rows lose more, and must not change their sign."""
ROWS = 16
"""Rows that are asked for the change of the columns, as many times the columns: the first, whose P is at hand."""
RIDGE = 1e-3
"""Share of the mean squared column that is added to every one: columns that are nearly zero have no factor to show."""
REMEDY = (
    "the weights of the fixed point are outside the set where it is well-posed; call model.project() after every "
    "optimiser step (lmc.fit does), or lower kappa"
)


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """The two equations on some rows.

    Args:
        P: the aggregation among these rows; ``P_t`` its transpose.
        W: the weights, [d, d].
        solver: of both equations.
    """

    P: CSR
    P_t: CSR
    W: Tensor
    solver: Solver

    def states(self, C: Tensor, start: Tensor) -> Solution:
        """Z = P relu(Z) W^T + C."""
        C, W_t = C.detach(), self.W.detach().t()
        h, m = torch.empty_like(start), torch.empty_like(start)

        def step(z: Tensor, out: Tensor) -> None:
            torch.clamp_min(z, 0, out=h)
            torch.addmm(C, spmm(self.P, h, out=m), W_t, out=out)

        return self._solved("states", step, start, C)

    def adjoints(self, z: Tensor, G: Tensor, start: Tensor, heard: Tensor | None = None) -> Solution:
        """U = 1[Z > 0] * (P^T U W + G); ``heard``: 1[Z > 0] * P^T U W at the start, where it is known."""
        W, active = self.W.detach(), (z > 0).to(z.dtype)
        G = G.detach() * active
        q = torch.empty_like(start)

        def step(u: Tensor, out: Tensor) -> None:
            torch.addmm(G, spmm(self.P_t, u, out=q), W, out=out)
            out.mul_(active)

        return self._solved("adjoints", step, start, G, None if heard is None else heard.add_(G))

    def growth(self, b: Tensor, arrived: Tensor, aged: Tensor, moved: Tensor, stored: Tensor) -> Tensor:
        """By what share each column of the states has grown since they were stored, as the rows at hand show it, [d].

        The parameters have moved, and with them a column of Z, in all rows much alike. Sought is the e for which the
        residual of Z = S * (1 + e) is orthogonal to the columns of the stored S (Galerkin). Since relu(S * a) =
        relu(S) * a for a >= 0, what the rows hear is then M + M' * e, M = P relu(S) + arrived, and

            |S_j|^2 e_j - sum_i W_ji <S_j, M'_i> e_i = <S_j, R_j>,   R = M W^T + b - S

        It is 0 where S solves today's equation, and where no parameter has moved.

        Args:
            arrived: messages from outside the rows.
            aged: the same, each times its age as a share of that of the rows: M' = P relu(S) + aged.
            moved: the relative change of W since the rows were stored.
        """
        W, m = self.W.detach(), min(stored.shape[0], ROWS * stored.shape[1])
        S, late = stored[:m], aged[:m]
        T = W * (S.t() @ spmm(self.P.leading(m), stored.clamp_min(0)).add_(late))
        rest = W * (S.t() @ (arrived[:m] - late))
        size = S.square().sum(0)
        residual = (T + rest).sum(1) + (S * b[:m]).sum(0) - size
        least = RIDGE * size.mean() + torch.finfo(size.dtype).tiny
        # solve_ex does not look whether the matrix is singular, which would wait for the device
        e = torch.linalg.solve_ex(torch.diag(size + least) - T, residual).result.nan_to_num(0.0)
        reach = REACH * moved
        return e.clamp(-reach.clamp(max=MOST_LOSS), reach)

    def drift(self, z: Tensor, G: Tensor, arrived: Tensor, stored: Tensor) -> tuple[Tensor, Tensor]:
        """What is left of the adjoints since they were stored, by the rows at hand; one number in [0, 1] on the device.
        With it what the rows hear of each other's stored adjoints, 1[Z > 0] * P^T V W.

        Adjoints fade with the loss, all at once: a = argmin |a D - 1[Z > 0] * G|, where D = V - 1[Z > 0] * (P^T V W +
        arrived) is the loss gradient that the stored V of these rows and of the halo are the answer to. It is 1 where
        nothing is stale, and where no row here has a loss.
        """
        active = (z > 0).to(z.dtype)
        now = G.detach() * active
        heard = (spmm(self.P_t, stored) @ self.W.detach()).mul_(active)
        D = torch.addcmul(stored - heard, arrived, active, value=-1)
        return torch.where(now.any(), best_factor(D, now).clamp(max=1), 1.0), heard

    def _solved(
        self,
        what: str,
        step: Callable[[Tensor, Tensor], None],
        start: Tensor,
        origin: Tensor,
        first: Tensor | None = None,
    ) -> Solution:
        # relu(a z) = a relu(z) for a >= 0, and the adjoint equation is linear: the start may be scaled
        solution = solve(step, start, self.solver, REMEDY, origin, first)
        if not solution.converged:
            warnings.warn(
                f"expected the {what} to settle to {self.solver.tol:g} (got {solution.residual:.2g} after "
                f"{solution.steps} steps): allow more steps, raise the tolerance, or lower kappa",
                SolverWarning,
                stacklevel=2,
            )
        return solution


@dataclass
class Solves:
    """What a method brings to the two solves, and what it takes away from them.

    Args:
        z_start, v_start: where to start from; None: zero.
        outer_adjoints: called in the backward pass for what adjoints outside the rows send to their H; None, or a call
            that gives None: nothing.
        undo_drift: multiply what arrives by :meth:`Equilibrium.drift`.
        aged, moved: as of :meth:`Equilibrium.growth`, for the states that come from outside; None: they are taken as
            they are.
        states, adjoints: filled in by the forward and the backward pass.
    """

    z_start: Tensor | None = None
    v_start: Tensor | None = None
    outer_adjoints: Callable[[], Tensor | None] | None = None
    undo_drift: bool = False
    aged: Tensor | None = None
    moved: Tensor | None = None
    states: Solution | None = None
    adjoints: Solution | None = None


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, C: Tensor, W: Tensor, equation: Equilibrium, solves: Solves, num_core: int) -> Tensor:
        ctx.equation, ctx.solves, ctx.num_core = equation, solves, num_core
        solves.states = equation.states(C, torch.zeros_like(C) if solves.z_start is None else solves.z_start)
        z = solves.states.value
        ctx.save_for_backward(z)
        return z.clamp_min(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        (G,) = grads
        (z,) = ctx.saved_tensors
        solves, equation, core = ctx.solves, ctx.equation, ctx.num_core
        arrived = None if solves.outer_adjoints is None else solves.outer_adjoints()
        heard = None
        if arrived is not None:
            if solves.undo_drift and solves.v_start is not None:
                factor, heard = equation.drift(z, G, arrived, solves.v_start)
                arrived = arrived * factor
            G = G + arrived
        solves.adjoints = equation.adjoints(
            z, G, torch.zeros_like(z) if solves.v_start is None else solves.v_start, heard
        )
        u = solves.adjoints.value
        m = spmm(equation.P.leading(core), z.clamp_min(0))
        return u, u[:core].t() @ m, None, None, None


def equilibrium(C: Tensor, W: Tensor, equation: Equilibrium, solves: Solves, num_core: int) -> Tensor:
    """H = relu(Z) of the fixed point, differentiable in C and W; W takes its gradient from the first ``num_core``
    rows."""
    return _Solve.apply(C, W, equation, solves, num_core)
