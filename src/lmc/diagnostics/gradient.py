"""The error of a mini-batch gradient."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.engine import Run
from lmc.graph import Batch
from lmc.methods import BackwardSGD, FullBatch


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
        self._backward_sgd = BackwardSGD().bind(problem.graph, problem.model, parts=whole, device=problem.device)
        self._full = FullBatch().bind(problem.graph, problem.model, device=problem.device)

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


def gradient_error(run: Run, batch: Batch) -> GradientError:
    """The errors of one batch's gradient; leaves run and model as they were."""
    return GradientProbe(run)(batch)


def _relative(estimate: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    errors = {}
    for name, truth in exact.items():
        difference, size = float((estimate[name] - truth).norm()), float(truth.norm())
        errors[name] = difference / size if size > 0 else 0.0 if difference == 0 else float("inf")
    return errors
