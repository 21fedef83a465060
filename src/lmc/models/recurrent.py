"""What a recurrent model is to a method: one layer, iterated to its fixed point.

    Z = P H W^T + b(X),   H = relu(Z)

It is a :class:`lmc.models.Model` whose encoder gives b(X), whose one layer is a step of the recurrence, and whose
decoder reads H.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lmc.errors import ConfigError
from lmc.graph import CSR, Aggregation
from lmc.models.base import Model
from lmc.models.equilibrium import Equilibrium, Solves, equilibrium
from lmc.models.passes import Operator, Pass
from lmc.models.rows import Linear
from lmc.solvers import Solver, solver


class Recurrent(Model):
    """A model whose one layer is iterated to its fixed point by ``solver``."""

    recurrent = True
    recordable = False  # the host reads residuals
    reads_input = True
    solver: Solver

    @property
    @abstractmethod
    def lin(self) -> Linear:
        """The linear map of the recurrence, without a bias."""

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
        return Equilibrium(P, P_t, self.W, with_tolerance(self.solver, tol))

    def equilibrium(self, b: Tensor, P: CSR, P_t: CSR, outer: Tensor | None, p: Pass, solves: Solves) -> Tensor:
        """H of the rows of P, differentiable, by the paper's (21).

        Args:
            b: b(X) of these rows.
            P, P_t: the aggregation among these rows, and its transpose.
            outer: the sum of the messages from outside these rows, P_out H_out, which is constant; None: zero.
            solves: the starting values and the results of the two solves.
        """
        equation = Equilibrium(P, P_t, self.W, self.solver)
        if outer is not None and solves.z_start is not None and solves.aged is not None and solves.moved is not None:
            e = equation.growth(b.detach(), outer, solves.aged, solves.moved, solves.z_start)
            outer, solves.z_start = outer + solves.aged * e, solves.z_start * (1 + e)
        C = b if outer is None else b + self.lin(outer, p)
        return equilibrium(C, self.W, equation, solves, p.core_of(P.num_rows))

    def forward(self, x: Tensor | CSR, P: Operator | Sequence[Operator], p: Pass | None = None) -> Tensor:
        p = p or Pass()
        operator = P[0] if isinstance(P, Sequence) else P
        if not isinstance(operator, Aggregation) or operator.num_inputs != operator.num_outputs:
            raise ConfigError(f"expected an Aggregation on one set of rows (got {operator!r}): a fixed point needs it")
        b = self.encode(x, p)
        assert isinstance(b, Tensor)
        return self.decode(self.equilibrium(b, operator.forward, operator.backward, None, p, Solves()), p)


def with_tolerance(choice: str | Solver, tol: float | None) -> Solver:
    """The solver, with the tolerance ``tol`` where it is given."""
    chosen: Any = solver(choice)
    return chosen if tol is None else dataclasses.replace(chosen, tol=tol)


def recurrent_model(model: Model) -> Recurrent:
    """The model, where it is a recurrent one."""
    if not isinstance(model, Recurrent):
        raise ConfigError(
            f"expected a recurrent model (got {type(model).__name__}): use lmc.models.RecGCN, or derive yours from "
            "lmc.models.Recurrent"
        )
    return model
