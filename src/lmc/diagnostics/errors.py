"""Errors against exact values: of gradients, histories and fixed points; and the messages that a method keeps."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmc.engine import Run
from lmc.engine.exact import chunks_of, exact_adjoints, exact_states
from lmc.engine.recurrent import rules_of
from lmc.errors import typed
from lmc.graph import Aggregation, Batch
from lmc.methods import BackwardSGD, FullBatch
from lmc.models import modes_kept


@dataclass(frozen=True)
class GradientError:
    """Relative errors |g - g_exact| / |g_exact| by parameter name.

    ``backward_sgd``: against the exact gradient of this batch, which is the method's own error. The exact gradient is
    (10) and (11), or, for methods whose parameters take gradients from all rows, the gradient of the batch's loss with
    exact messages.
    ``full_batch``: against the exact gradient of the whole graph, which adds the error of every mini-batch.
    """

    backward_sgd: dict[str, float]
    full_batch: dict[str, float]

    @property
    def mean(self) -> float:
        """The mean over parameters of the error against backward SGD."""
        return sum(self.backward_sgd.values()) / len(self.backward_sgd)


class GradientProbe:
    """Measures batches of one run; the runs that compute exact gradients are bound once, on creation."""

    def __init__(self, run: Run) -> None:
        self.run = run
        problem = run.problem
        whole = torch.zeros(problem.graph.num_nodes, dtype=torch.int64)
        # bound to the graph in run order, with one part, so that its row numbers are those of the run
        given: dict[str, Any] = {"device": problem.device, "loss": problem.loss}
        self._backward_sgd = BackwardSGD().bind(problem.graph, problem.model, parts=whole, **given)
        self._full = FullBatch().bind(problem.graph, problem.model, **given)

    def __call__(self, batch: Batch) -> GradientError:
        """The errors of ``batch`` at the current parameters and histories, without dropout; nothing is changed."""
        estimate = self.run.gradient(batch)
        whole = next(self._full.batches())
        full = self._full.gradient(whole)
        if self.run.method.traits.grad_from_all_rows:
            exact = self._full.gradient(self._losses_of(batch, whole))
        else:
            exact = self._backward_sgd.gradient(self._backward_sgd.source.make(batch.rows, batch.weight))
        return GradientError(_relative(estimate, exact), _relative(estimate, full))

    def _losses_of(self, batch: Batch, whole: Batch) -> Batch:
        """The whole graph with the losses of the batch's core rows alone."""
        importance = torch.zeros(whole.num_core, dtype=self.run.problem.accumulate_dtype, device=whole.core.device)
        importance[batch.core] = 1.0 if batch.importance is None else batch.importance
        return dataclasses.replace(whole, importance=importance, weight=batch.weight)


@typed
def gradient_error(run: Run, batch: Batch) -> GradientError:
    """The errors of one batch's gradient; leaves run and model as they were."""
    return GradientProbe(run)(batch)


@typed
def bias(run: Run) -> dict[str, float]:
    """|mean gradient of an epoch - full gradient| / |full gradient| by parameter name, at fixed parameters and tables.

    It compares methods of all families: whatever share of the full gradient a batch estimates, their mean is the full
    gradient where the method is unbiased. Dropout is off, and nothing is changed.
    """
    problem, epoch = run.problem, run.epoch
    full_run = FullBatch().bind(problem.graph, problem.model, device=problem.device)
    full = full_run.gradient(next(full_run.batches()))
    mean = {name: torch.zeros_like(truth) for name, truth in full.items()}
    for batch in run.source.epoch(epoch, 0):
        for name, estimate in run.gradient(batch).items():
            mean[name] += estimate / run.num_batches
    return _relative(mean, full)


def _relative(estimate: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    errors = {}
    for name, truth in exact.items():
        difference, size = float((estimate[name] - truth).norm()), float(truth.norm())
        errors[name] = difference / size if size > 0 else 0.0 if difference == 0 else float("inf")
    return errors


@dataclass(frozen=True)
class EstimatedErrors:
    """Relative errors |estimate - exact| / |exact| on the core rows of one batch.

    ``H``: of the states H = relu(Z) that the batch's gradient reads; ``V``: of its adjoints dL/dZ.
    """

    H: float
    V: float


class EstimateProbe:
    """Measures batches of one run; the exact values at the current parameters are solved for once, on creation."""

    def __init__(self, run: Run) -> None:
        self.run = run
        problem, chunks = run.problem, chunks_of(run.problem)
        ((_, self._Z),) = exact_states(problem, chunks, lambda _, width: problem.table(width))
        ((_, self._V),) = exact_adjoints(problem, chunks, [self._Z], lambda _, width: problem.table(width))

    def __call__(self, batch: Batch) -> EstimatedErrors:
        """The errors of ``batch``, without dropout; nothing is changed."""
        c = batch.num_core
        with modes_kept(self.run.problem.model):
            found = rules_of(self.run.method).solve(self.run.method_step(batch, keep=False, dropout=False))
        Z, V = self._Z.pull(batch.rows), self._V.pull(batch.rows)
        return EstimatedErrors(relative_error(found.z[:c].relu(), Z.relu()), relative_error(found.v[:c], V))


def estimated_errors(run: Run, batch: Batch) -> EstimatedErrors:
    """The errors of one batch of a recurrent model."""
    return EstimateProbe(run)(batch)


@dataclass(frozen=True)
class Staleness:
    """Relative distance |stored - exact| / |exact| of the tables, by layer (evaluation mode, no dropout)."""

    H: dict[int, float]
    V: dict[int, float]


def staleness(run: Run) -> Staleness:
    """The distance of every history from the exact value at the current parameters; nothing is changed."""
    problem, chunks = run.problem, chunks_of(run.problem)
    states = dict(exact_states(problem, chunks, lambda _, width: problem.table(width)))
    H = {l: relative_error(table.data(), states[l].data()) for l, table in run.H.items()}
    V: dict[int, float] = {}
    if run.V:
        wide = problem.accumulate_dtype
        by_layer = [states[l] for l in sorted(states)]
        for l, exact in exact_adjoints(problem, chunks, by_layer, lambda _, w: problem.table(w, wide)):
            if l in run.V:
                V[l] = relative_error(run.V[l].data(), exact.data())
    return Staleness(H, V)


def relative_error(estimate: Tensor, exact: Tensor) -> float:
    """|estimate - exact| / |exact|; the absolute error where the exact value is zero."""
    size, difference = float(exact.norm()), float((estimate.to(exact.device) - exact).norm())
    return difference / size if size > 0 else difference


@dataclass(frozen=True)
class Messages:
    """Share of the full graph's messages (self-loops included) that reach core rows in one epoch."""

    forward: float
    backward: float


def messages_kept(run: Run) -> Messages:
    """sum over the batches of ||A_batch||_0 / ||A||_0, for the forward and for the backward pass."""
    epoch, nnz = run.epoch, run.problem.P.nnz
    forward = backward = 0
    for batch in run.batches(epoch):
        run.epoch = epoch
        operator = batch.operators[-1]
        if not isinstance(operator, Aggregation):  # P X, computed once on the whole graph: no message is missing
            return Messages(1.0, 1.0)
        forward += int(operator.forward.indptr[batch.num_core])
        backward += int(operator.backward.indptr[batch.num_core])
    return Messages(forward / nnz, backward / nnz)
