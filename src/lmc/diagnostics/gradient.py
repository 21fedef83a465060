"""How far a mini-batch gradient is from the truth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.graph import Batch
from lmc.methods import BackwardSGD, FullBatch, Run


@dataclass(frozen=True)
class GradientError:
    """Relative errors |g - g_exact| / |g_exact| by parameter name.

    ``backward_sgd``: against the exact gradient of this batch, (10) and (11): the method's own error.
    ``full_batch``: against the exact gradient of the whole graph: that, plus what every mini-batch misses.
    """

    backward_sgd: dict[str, float]
    full_batch: dict[str, float]

    @property
    def mean(self) -> float:
        """The mean over parameters of the error against backward SGD."""
        return sum(self.backward_sgd.values()) / len(self.backward_sgd)


class GradientProbe:
    """Measures batches of one run again and again, with the yardsticks set up once."""

    def __init__(self, run: Run) -> None:
        self.run = run
        problem = run.problem
        whole = torch.zeros(problem.graph.num_nodes, dtype=torch.int64)
        # bound in run order with one part, so that row numbers are the run's own
        self._oracle = BackwardSGD().bind(problem.graph, problem.model, parts=whole, device=problem.device)
        self._full = FullBatch().bind(problem.graph, problem.model, device=problem.device)

    def __call__(self, batch: Batch) -> GradientError:
        """The errors of ``batch`` at the current parameters and histories, without dropout; nothing is changed."""
        training = self.run.problem.model.training
        estimate = self.run.gradient(batch)
        exact = self._oracle.gradient(self._oracle.make_batch(batch.rows, batch.weight))
        full = self._full.gradient(next(self._full.batches()))
        self.run.problem.model.train(training)
        return GradientError(_relative(estimate, exact), _relative(estimate, full))


def gradient_error(run: Run, batch: Batch) -> GradientError:
    """The errors of one batch's gradient; leaves run and model as they were."""
    return GradientProbe(run)(batch)


def _relative(estimate: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    errors = {}
    for name, truth in exact.items():
        difference, size = float((estimate[name] - truth).norm()), float(truth.norm())
        errors[name] = difference / size if size > 0 else 0.0 if difference == 0 else float("inf")
    return errors
