"""The inputs of a layer besides its rows: the operator it aggregates with, the settings and the modes of a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lmc.graph import Aggregation
from lmc.models.statistics import Distribution


class Operator(Protocol):
    """The aggregation P of a layer: ``P(t)`` has a row for every output, from the rows ``t`` of its inputs.

    Core rows come first in both. ``clean`` are the rows before dropout, for operators that store rows.
    """

    @property
    def num_outputs(self) -> int: ...

    @property
    def num_inputs(self) -> int: ...

    def __call__(self, t: Tensor, clean: Tensor | None = None) -> Tensor: ...


@runtime_checkable
class TakesWeights(Protocol):
    """An operator that can apply weights before it aggregates, with the gradient that aggregating first would have."""

    def linear_first(self, W: Tensor, b: Tensor | None, t: Tensor, clean: Tensor | None) -> Tensor | None:
        """(P t) W^T + b; None where the operator has to aggregate first."""


@runtime_checkable
class CompletesRows(Protocol):
    """An operator for layers that combine the rows of neighbours by themselves."""

    def complete(self, *rows: Tensor) -> tuple[Aggregation, tuple[Tensor, ...]]:
        """The aggregation over rows that are all here, and these rows: the given ones, unless other ranks have more."""


@runtime_checkable
class KnowsDistribution(Protocol):
    """An operator that knows how what its layer reads is distributed over all nodes of the graph."""

    def distribution(self) -> Distribution | None:
        """The distribution of the sums, or of the sums and the rows, of all nodes (``Layer.affine_of``), once the
        operator was applied; None: it is not known."""


@dataclass(frozen=True)
class Pass:
    """The settings of one forward pass.

    Args:
        num_core: the first rows, from which parameters take their gradient; None: all rows.
        pooled: batch statistics are taken over all rows together, not over core and halo separately.
        batch_renorm: core and halo rows share the core's batch statistics, corrected towards the running ones
            (:func:`lmc.models.activation.batch_renorm`).
        statistics: mean and variance over all nodes of the state that is activated next, through which the gradient
            flows; a batch norm then reads these instead of those of the rows. None: they are not known.
        dropout: False switches every dropout off while batch norm stays in training mode (for diagnostics).
        generator: the source of the dropout masks; None: torch's global generator.
        grad_from_halo: weights that are applied before the aggregation take their gradient from every row that the
            aggregation reads. This is right where the adjoint of a halo row comes from core rows alone and is not
            passed on (GAS). The gradient is then that of weights after the aggregation, taken from core rows.
        num_real: the number of core rows, and of halo rows, that are not padding, [1] or [2]; statistics leave padding
            out. None: these numbers are not needed.
        total: the sum of a value over the ranks, which together compute all rows; None: there are no others.
    """

    num_core: int | None = None
    pooled: bool = False
    batch_renorm: bool = False
    statistics: tuple[Tensor, Tensor] | None = None
    dropout: bool = True
    generator: torch.Generator | None = None
    grad_from_halo: bool = False
    num_real: Tensor | None = None
    total: Callable[[Tensor], Tensor] | None = None

    @property
    def before_aggregation(self) -> Pass:
        """This pass for weights that are applied before the aggregation."""
        return replace(self, num_core=None) if self.grad_from_halo else self

    def core_of(self, num_rows: int) -> int:
        """How many of the first ``num_rows`` rows are core rows."""
        return num_rows if self.num_core is None else min(self.num_core, num_rows)


@contextmanager
def modes_kept(module: nn.Module) -> Iterator[None]:
    """At the end, every submodule has the training flag that it had at the beginning.

    ``module.train(was)`` would give the root's flag to all of them, also to those that a user has frozen.
    """
    modes = [(m, m.training) for m in module.modules()]
    try:
        yield
    finally:
        for m, training in modes:
            m.training = training


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Every submodule is in evaluation mode within, and in its own mode again at the end."""
    torch.clear_autocast_cache()  # it keeps narrowed weights until its context ends; these may have changed
    with modes_kept(module):
        module.eval()
        yield
