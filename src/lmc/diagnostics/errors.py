"""Errors against exact values: of gradients, histories and fixed points; and the messages that a method keeps."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from lmc.engine import Problem, Run
from lmc.engine.exact import chunks_of, exact_adjoints, exact_states
from lmc.engine.recurrent import rules_of
from lmc.engine.run import regraph, source_on
from lmc.errors import ConfigError, typed
from lmc.graph import Aggregation, Batch
from lmc.methods import BackwardSGD, FullBatch, Method
from lmc.methods.protocol import SamplingMethod
from lmc.models import modes_kept
from lmc.stores import Table

MAX_BATCHES = 20_000
"""The largest number of batches that :func:`bias_variance` enumerates."""

NEGLIGIBLE = 1e-5
"""The share of the norm of the whole gradient below which that of a parameter is rounding."""


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
        self._backward_sgd, self._full = exact_run(BackwardSGD(), problem), exact_run(FullBatch(), problem)

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


def exact_run(method: Method, problem: Problem) -> Run:
    """A run of a method that computes exact gradients. It is bound to the graph in run order, with one part, so that
    its row numbers are those of the problem; ranks of a distributed run exchange fresh rows."""
    given: dict[str, Any] = {"device": problem.device, "loss": problem.loss}
    if problem.exchange is None:
        whole = torch.zeros(problem.graph.num_nodes, dtype=torch.int64)
        return method.bind(problem.graph, problem.model, parts=whole, **given)
    shard, options = problem.exchange.shard, problem.exchange.world.options
    others = torch.arange(shard.ranks).repeat_interleave(torch.tensor(shard.receive_counts))
    one = dataclasses.replace(shard, parts=torch.cat([torch.full((shard.num_owned,), shard.rank), others]))
    by_layers = dataclasses.replace(options, sync="layer", sync_every=1, wire="exact")
    return method.bind(one, problem.model, distributed=by_layers, **given)


@typed
def gradient_error(run: Run, batch: Batch) -> GradientError:
    """The errors of one batch's gradient; leaves run and model as they were.

    In a distributed run every rank calls it with its batch of the step; the errors are those of the sum over ranks.
    """
    return GradientProbe(run)(batch)


@typed
def bias(run: Run) -> dict[str, float]:
    """|mean gradient of an epoch - full gradient| / |full gradient| by parameter name, at fixed parameters and tables.

    It compares methods of all families: whatever share of the full gradient a batch estimates, their mean is the full
    gradient where the method is unbiased. Dropout is off, and nothing is changed. Under DropEdge the epoch is the next
    one; sums of messages are filled for its graph, and afterwards again for the graph before.

    Parameters whose full gradient is 0 but for rounding (:data:`NEGLIGIBLE`) are left out, such as the bias of a linear
    map before a batch norm: their relative error says nothing.
    """
    full = _full_gradient(run)
    mean = {name: torch.zeros_like(truth) for name, truth in full.items()}
    source = source_on(run, run.epoch)
    regraph(run, source.problem)
    for step, batch in enumerate(source.epoch(run.epoch, 0)):
        if run.sync is not None:
            run.sync.begin(run.epoch, step)
        for name, estimate in run.gradient(batch).items():
            mean[name] += estimate / run.num_batches
    if run.schedule is not None:
        regraph(run, source_on(run, max(0, run.epoch - 1)).problem)
    least = NEGLIGIBLE * math.hypot(*(float(g.norm()) for g in full.values()))
    return _relative(mean, {name: g for name, g in full.items() if float(g.norm()) >= least})


def _full_gradient(run: Run) -> dict[str, Tensor]:
    """The exact gradient at the current parameters."""
    full = exact_run(FullBatch(), run.problem)
    return full.gradient(next(full.batches()))


@dataclass(frozen=True)
class BiasVariance:
    """Bias and variance of a method's gradient g of a random batch, by parameter name.

    With g* the exact gradient and E the mean over all batches, ``bias`` is |E g - g*|, ``variance`` is E |g - E g|^2
    and ``squared_error`` is E |g - g*|^2 = bias^2 + variance (Theorems 2 and 4 of the paper); ``exact`` is |g*|.
    """

    bias: dict[str, float]
    variance: dict[str, float]
    squared_error: dict[str, float]
    exact: dict[str, float]

    @property
    def relative_bias(self) -> float:
        """|E g - g*| / |g*| of all parameters together."""
        return math.hypot(*self.bias.values()) / math.hypot(*self.exact.values())

    @property
    def relative_variance(self) -> float:
        """E |g - E g|^2 / |g*|^2 of all parameters together."""
        return sum(self.variance.values()) / sum(size**2 for size in self.exact.values())


@typed
def bias_variance(run: Run) -> BiasVariance:
    """Bias and variance of the gradient at the current parameters and tables, over all batches that can be drawn.

    Fixed batches are those of one epoch. Redrawn batches are all choices of c of the b parts, at most
    :data:`MAX_BATCHES`, each as the first of its epoch. Dropout is off, sums are float64, and nothing is changed.
    """
    exact = {name: g.double() for name, g in _full_gradient(run).items()}
    mean = {name: torch.zeros_like(g) for name, g in exact.items()}
    variance, squared_error, total = dict.fromkeys(exact, 0.0), dict.fromkeys(exact, 0.0), 0.0
    for batch, probability in _all_batches(run):
        total += probability
        for name, estimate in run.gradient(batch).items():
            g = estimate.double()
            before = g - mean[name]
            mean[name] += before * (probability / total)
            variance[name] += probability * float((before * (g - mean[name])).sum())
            squared_error[name] += probability * float((g - exact[name]).square().sum())
    bias = {name: float((mean[name] - g).norm()) for name, g in exact.items()}
    return BiasVariance(bias, variance, squared_error, {name: float(g.norm()) for name, g in exact.items()})


def _all_batches(run: Run) -> Iterator[tuple[Batch, float]]:
    """Every batch that the run can draw, and its probability."""
    clusters = run.clusters
    if run.sync is not None:
        raise ConfigError("expected a run of one process (got a distributed one): bind it with distributed=False")
    if isinstance(run.method, SamplingMethod) or run.schedule is not None:
        raise ConfigError(
            f"expected a method whose batches are parts of the graph (got {(run.schedule or run.method).traits.title}, "
            "whose batches cannot be enumerated): use lmc.diagnostics.bias, the mean of one epoch"
        )
    if not clusters.redraw:
        yield from ((batch, 1 / run.num_batches) for batch in run.source.epoch(run.epoch, 0))
        return
    # an epoch cuts a permutation of the parts into batches, of which the last may be smaller
    sizes = Counter(len(parts) for parts in clusters.epoch(0))
    choices = {size: math.comb(clusters.num_parts, size) for size in sizes}
    if sum(choices.values()) > MAX_BATCHES:
        raise ConfigError(
            f"expected at most {MAX_BATCHES:,} batches (got {sum(choices.values()):,} choices of parts): bind with "
            "fewer parts or redraw=False"
        )
    for size, number in sizes.items():
        for parts in combinations(range(clusters.num_parts), size):
            batch = run.source.make(clusters.core(parts), float(run.num_batches))
            yield batch, number / run.num_batches / choices[size]


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
    H = {l: _error_of_rows(problem, table, states[l]) for l, table in run.H.items()}
    V: dict[int, float] = {}
    if run.V:
        dtype = problem.accumulate_dtype
        by_layer = [states[l] for l in sorted(states)]
        for l, exact in exact_adjoints(problem, chunks, by_layer, lambda _, w: problem.table(w, dtype)):
            if l in run.V:
                V[l] = _error_of_rows(problem, run.V[l], exact)
    return Staleness(H, V)


def _error_of_rows(problem: Problem, estimate: Table, exact: Table) -> float:
    """The relative error of a table, over the rows of all ranks."""
    if problem.exchange is None:
        return relative_error(estimate.data(), exact.data())
    owned = slice(0, problem.num_owned)
    size = exact.pull(owned).double()
    difference = estimate.pull(owned).double() - size
    both = problem.exchange.world.sum(torch.stack([difference.square().sum(), size.square().sum()])).sqrt()
    return float(both[0] / both[1] if both[1] > 0 else both[0])


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
    """The share of messages that an epoch keeps in each pass: the sum over batches of ||A_batch||_0 / ||A||_0."""
    nnz, forward, backward = run.problem.P.nnz, 0, 0
    for batch in source_on(run, run.epoch).epoch(run.epoch, 0):
        operator = batch.operators[-1]
        if not isinstance(operator, Aggregation):  # P X, computed once on the whole graph: no message is missing
            return Messages(1.0, 1.0)
        forward += int(operator.forward.indptr[batch.num_core])
        backward += int(operator.backward.indptr[batch.num_core])
    return Messages(forward / nnz, backward / nnz)
