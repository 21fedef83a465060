"""A recurrent model: one layer, iterated to its fixed point on a set of rows, and implicit differentiation through it.

    forward    Z = P relu(Z) W^T + C                    C: the part that is constant while Z is solved for     (21)
    backward   V = 1[Z > 0] * (P^T V W + G)             V = dL/dZ; G = dL/dH of the loss and of rows outside    (23)

It is a :class:`lmc.models.Model` whose encoder gives b(X), whose one layer is a step of the recurrence, and whose
decoder reads H = relu(Z). The second equation is the adjoint of the first, and is solved by the same iteration. One
iteration is one sparse and one dense product, and allocates nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from lmc.errors import ConfigError, SolverWarning
from lmc.graph import CSR, Aggregation, spmm
from lmc.models.base import Model, operators_of
from lmc.models.passes import Operator, Pass
from lmc.models.rows import Linear
from lmc.solvers import Map, Solution, Solver, best_factor, solve

MAX_GROWTH = 10.0
"""A column of states is changed by at most this many times the relative change of W."""
MAX_LOSS = 0.5
"""A column is reduced by at most this share. Older messages are reduced more, and must keep their sign."""
SAMPLED_ROWS = 16
"""The growth of d columns is measured on the first 16 d rows."""
RIDGE = 1e-3
"""Share of the mean squared column norm that is added to each: columns that are nearly zero determine no factor."""
REMEDY = (
    "the weights of the fixed point are outside the set where it is well-posed; call model.project() after every "
    "optimiser step (lmc.fit does), or lower kappa"
)


@runtime_checkable
class OtherRanks(Protocol):
    """An operator whose rows are solved for by several ranks at the same time."""

    @property
    def P(self) -> Aggregation:
        """The rows of P that this rank solves for, over these rows and the mirrors of others."""

    def mirrored(self, t: Tensor) -> Tensor:
        """The rows of this rank, and behind them those of mirrors."""

    def returned(self, v: Tensor) -> Tensor:
        """The adjoints of the rows of this rank, from those that every rank has of its rows and mirrors."""

    def total(self, value: Tensor) -> Tensor:
        """The sum of a value over the ranks."""


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """The two equations on a set of rows.

    Args:
        P: the aggregation among these rows; ``P_t`` is its transpose.
        W: the weights, [d, d].
        solver: of both equations.
        others: where other ranks solve for further rows; P then has columns of mirrors too.
    """

    P: CSR
    P_t: CSR
    W: Tensor
    solver: Solver
    others: OtherRanks | None = None

    def aggregated(self, h: Tensor, core: int | None = None, out: Tensor | None = None) -> Tensor:
        """P h, of all rows or of the first ``core``."""
        P = self.P if core is None else self.P.leading(core)
        return spmm(P, h if self.others is None else self.others.mirrored(h), out=out)

    def _sent_back(self, v: Tensor, out: Tensor) -> Tensor:
        """P^T v."""
        return spmm(self.P_t, v, out=out) if self.others is None else self.others.returned(spmm(self.P_t, v))

    def states(self, C: Tensor, start: Tensor) -> Solution:
        """Z = P relu(Z) W^T + C."""
        C, W_t = C.detach(), self.W.detach().t()
        h, m = torch.empty_like(start), torch.empty_like(start)

        def step(z: Tensor, out: Tensor) -> None:
            torch.clamp_min(z, 0, out=h)
            torch.addmm(C, self.aggregated(h, out=m), W_t, out=out)

        return self._solved("states", step, start, C)

    def adjoints(self, z: Tensor, G: Tensor, start: Tensor, inner: Tensor | None = None) -> Solution:
        """V = 1[Z > 0] * (P^T V W + G); ``inner`` is 1[Z > 0] * P^T V W at the start, where it is known."""
        W, active = self.W.detach(), (z > 0).to(z.dtype)
        G = G.detach() * active
        q = torch.empty_like(start)

        def step(v: Tensor, out: Tensor) -> None:
            torch.addmm(G, self._sent_back(v, q), W, out=out)
            out.mul_(active)

        return self._solved("adjoints", step, start, G, None if inner is None else inner.add_(G))

    def growth(self, b: Tensor, outer: Tensor, aged: Tensor, moved: Tensor, stored: Tensor) -> Tensor:
        """The relative growth e of each column of the states since they were stored, estimated from these rows, [d].

        When the parameters change, a column of Z changes in all rows by about the same factor. e is chosen so that the
        residual of Z = S * (1 + e) is orthogonal to the columns of the stored S (Galerkin). Since relu(S * a) =
        relu(S) * a for a >= 0, the rows then receive M + M' * e with M = P relu(S) + outer and M' = P relu(S) + aged,
        so that

            |S_j|^2 e_j - sum_i W_ji <S_j, M'_i> e_i = <S_j, R_j>,   R = M W^T + b - S

        e is 0 where S solves the current equation, and where no parameter has changed.

        Args:
            b: b(X) of the rows.
            outer: messages from outside the rows.
            aged: the same messages, each times its age relative to the age of the rows.
            moved: the relative change of W since the rows were stored.
            stored: S.
        """
        W, m = self.W.detach(), min(stored.shape[0], SAMPLED_ROWS * stored.shape[1])
        S, late = stored[:m], aged[:m]
        T = W * (S.t() @ spmm(self.P.leading(m), stored.clamp_min(0)).add_(late))
        rest = W * (S.t() @ (outer[:m] - late))
        size = S.square().sum(0)
        residual = (T + rest).sum(1) + (S * b[:m]).sum(0) - size
        ridge = RIDGE * size.mean() + torch.finfo(size.dtype).tiny
        # solve_ex does not check for a singular matrix, which would wait for the device
        e = torch.linalg.solve_ex(torch.diag(size + ridge) - T, residual).result.nan_to_num(0.0)
        limit = MAX_GROWTH * moved
        return e.clamp(-limit.clamp(max=MAX_LOSS), limit)

    def drift(self, z: Tensor, G: Tensor, outer: Tensor, stored: Tensor) -> tuple[Tensor, Tensor]:
        """The factor a in [0, 1] by which adjoints have shrunk since they were stored, estimated from these rows.

        Adjoints shrink with the loss, all by about the same factor: a = argmin |a D - 1[Z > 0] * G|, where
        D = V - 1[Z > 0] * (P^T V W + outer) is the gradient of the loss for which the stored adjoints V of these rows
        and of the halo would be the solution. a is 1 where nothing is stale, and where no row here has a loss.

        Args:
            G: dL/dH of the loss.
            outer: what the stored adjoints outside the rows add to G.
            stored: V.

        Returns:
            a, one number on the device; and 1[Z > 0] * P^T V W, which the solver can start from.
        """
        active = (z > 0).to(z.dtype)
        now = G.detach() * active
        inner = (spmm(self.P_t, stored) @ self.W.detach()).mul_(active)
        D = torch.addcmul(stored - inner, outer, active, value=-1)
        return torch.where(now.any(), best_factor(D, now).clamp(max=1), 1.0), inner

    def _solved(self, what: str, step: Map, start: Tensor, origin: Tensor, first: Tensor | None = None) -> Solution:
        # relu(a z) = a relu(z) for a >= 0, and the adjoint equation is linear: the start may be scaled
        total = None if self.others is None else self.others.total
        solution = solve(step, start, self.solver, REMEDY, origin, first, total)
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
    """The inputs of the two solves of a step, and their results.

    Args:
        z_start, v_start: the starting values of Z and V; None: zero.
        outer_adjoints: called in the backward pass for what adjoints outside the rows add to G; None, or a call that
            returns None: nothing.
        undo_drift: multiply the outer adjoints by the factor of :meth:`Equilibrium.drift`.
        aged, moved: the arguments of :meth:`Equilibrium.growth`; None: states from outside are used as stored.
        others: where other ranks solve for further rows.
        states, adjoints: the results, set by the forward and by the backward pass.
    """

    z_start: Tensor | None = None
    v_start: Tensor | None = None
    outer_adjoints: Callable[[], Tensor | None] | None = None
    undo_drift: bool = False
    aged: Tensor | None = None
    moved: Tensor | None = None
    others: OtherRanks | None = None
    states: Solution | None = None
    adjoints: Solution | None = None


class _Solve(torch.autograd.Function):
    """H = relu(Z) at the fixed point; W takes its gradient from the first ``num_core`` rows."""

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
        start = torch.zeros_like(z) if solves.v_start is None else solves.v_start
        outer = None if solves.outer_adjoints is None else solves.outer_adjoints()
        inner = None
        if outer is not None and solves.undo_drift and solves.v_start is not None:
            a, inner = equation.drift(z, G, outer, start)
            outer = outer * a
        solves.adjoints = equation.adjoints(z, G if outer is None else G + outer, start, inner)
        v = solves.adjoints.value
        m = equation.aggregated(z.clamp_min(0), core)
        return v, v[:core].t() @ m, None, None, None  # dL/dC; dL/dW (25)


class Recurrent(Model):
    """A model whose one layer is iterated to its fixed point by ``solver``."""

    recurrent = True
    recordable = False  # the host reads residuals
    reads_input = True
    solver: Solver

    @property
    def lin(self) -> Linear:
        """The linear map of the recurrence, without a bias: ``lin`` of the one layer."""
        return cast(Linear, self.layer(1).lin)

    @property
    def W(self) -> Tensor:
        """The weights of the recurrence, [d, d]."""
        return self.lin.weight

    @property
    def settings(self) -> dict[str, object]:
        own = {f"solver.{name}": value for name, value in vars(self.solver).items()}
        return super().settings | {"solver": type(self.solver).__name__.lower()} | own

    def exact_equilibrium(self, P: CSR, P_t: CSR) -> Equilibrium:
        """The fixed point among the rows of P at the current parameters, with a smaller tolerance than in training: a
        hundredth of the solver's, as far as the dtype allows."""
        tol = min(self.solver.tol, max(self.solver.tol / 100, 10 * torch.finfo(self.W.dtype).eps))
        return Equilibrium(P, P_t, self.W, replace(self.solver, tol=tol))

    def equilibrium(self, b: Tensor, P: CSR, P_t: CSR, outer: Tensor | None, p: Pass, solves: Solves) -> Tensor:
        """H of the rows of P, differentiable, by the paper's (21).

        Args:
            b: b(X) of these rows.
            P, P_t: the aggregation among these rows, and its transpose.
            outer: the sum of the messages from outside these rows, P_out H_out, which is constant; None: zero.
            solves: the starting values and the results of the two solves.
        """
        equation = Equilibrium(P, P_t, self.W, self.solver, solves.others)
        if outer is not None and solves.z_start is not None and solves.aged is not None and solves.moved is not None:
            e = equation.growth(b.detach(), outer, solves.aged, solves.moved, solves.z_start)
            outer, solves.z_start = outer + solves.aged * e, solves.z_start * (1 + e)
        C = b if outer is None else b + self.lin(outer, p)
        return _Solve.apply(C, self.W, equation, solves, p.core_of(P.num_rows))

    def forward(
        self, x: Tensor | CSR, P: Tensor | Operator | Sequence[Operator], p: Pass | Tensor | None = None, *,
        edge_weight: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        (operator, *_), p = operators_of(self, x, P, p if edge_weight is None else edge_weight)
        if not isinstance(operator, Aggregation) or operator.num_inputs != operator.num_outputs:
            raise ConfigError(f"expected an Aggregation on one set of rows (got {operator!r}): a fixed point needs it")
        b = self.encode(x, p)
        assert isinstance(b, Tensor)
        return self.decode(self.equilibrium(b, operator.forward, operator.backward, None, p, Solves()), p)


def recurrent_model(model: Model) -> Recurrent:
    """``model`` itself, typed as a recurrent model; another one is refused."""
    if not isinstance(model, Recurrent):
        raise ConfigError(
            f"expected a recurrent model (got {type(model).__name__}): use lmc.models.RecGCN, or derive yours from "
            "lmc.models.Recurrent"
        )
    return model
