"""Models that run their own forward pass, such as networks of PyG convolutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmc.engine.distributed.exchange import publish
from lmc.engine.exact import Aggregated, Chunks, MakeTable, cut
from lmc.engine.layered import Layered
from lmc.engine.problem import Problem, losses_of
from lmc.graph import CSR, Precomputed
from lmc.methods.protocol import Step
from lmc.models import Model, Operator, Pass, evaluating
from lmc.stores import Rows, Table

if TYPE_CHECKING:
    from lmc.engine.run import Run


class OwnForward(Layered):
    """The model calls back at every aggregation, with a function that computes the state from an operator."""

    reads_batches_only = False
    logits_read_all_layers = True

    def bfloat16_obstacle(self, model: Model) -> str | None:
        return (
            "a network of PyG convolutions multiplies rows with its own float32 parameters; use torch.autocast around "
            "run.accumulate instead"
        )

    def records(self, problem: Problem) -> bool:
        # sparse features are made dense in every step
        return super().records(problem) and not isinstance(problem.X, CSR)

    def forward(self, run: Run, step: Step, p: Pass) -> Tensor:
        method = run.method

        def at(l: int, layer: Callable[[Operator], Tensor]) -> Tensor:
            if run.sync is not None:
                run.sync.arrive(l)
            return method.compensate(step, l, layer(method.operator(step, l)))

        return run.problem.model.run_forward(run.source.inputs(step.batch), p, at)

    def makes_nothing_in_steps(self, problem: Problem) -> bool:
        return False  # its code is not ours

    def states(
        self, problem: Problem, chunks: Chunks, make: MakeTable, known: Mapping[int, Aggregated]
    ) -> Iterator[tuple[int, Table]]:
        tables: list[Table] = []
        for l, width in enumerate(problem.model.widths, start=1):
            table = make(l, width)
            for rows in chunks:
                chunk = cut(problem, rows, l, known.get(l))
                with evaluating(problem.model), torch.no_grad():
                    stored = [t.pull(chunk.ext) for t in tables]
                    table.push(rows, next_state(problem, chunk.ext, stored, chunk.operator))
            if l + 1 not in known:
                publish(problem.exchange, table)
            tables.append(table)
            yield l, table

    def adjoints(
        self, problem: Problem, chunks: Chunks, H: Sequence[Table], make: MakeTable
    ) -> Iterator[tuple[int, Table]]:
        """Any later state, and the logits, may read any earlier state (jumping knowledge): each sends to all of
        them."""
        L = problem.model.num_layers
        V = [make(l, width) for l, width in enumerate(problem.model.widths, start=1)]

        def leaves(rows: Rows, upto: int) -> list[Tensor]:
            return [t.pull(rows).detach().clone().requires_grad_() for t in H[:upto]]

        with evaluating(problem.model):
            for rows in chunks:
                states = leaves(rows, L)
                logits = next_state(problem, rows, states)
                _send_back(problem, V, rows, states, losses_of(problem, logits, rows).sum(), None)
            for l in range(L, 0, -1):
                if problem.exchange is not None:
                    problem.exchange.collect(V[l - 1])
                yield l, V[l - 1]
                for rows in chunks if l > 1 else ():
                    chunk = cut(problem, rows, l)
                    states = leaves(chunk.ext, l - 1)
                    out = next_state(problem, chunk.ext, states, chunk.operator)
                    _send_back(problem, V, chunk.ext, states, out, V[l - 1].pull(rows))

    def logits(self, problem: Problem, rows: Rows, states: Sequence[Tensor]) -> Tensor:
        return next_state(problem, rows, states)

    def messages(self, problem: Problem, l: int, rows: Rows, states: Sequence[Table]) -> Tensor:
        count = problem.graph.y[rows].shape[0]
        return next_state(problem, rows, [t.pull(rows) for t in states[: l - 1]], Precomputed(count))

    def affine_adjoint(self, problem: Problem, l: int, rows: Rows, m: Table, t: Table, v: Table) -> Tensor:
        return v.pull(rows)  # its states are the sums


def _send_back(
    problem: Problem, V: Sequence[Table], rows: Rows, states: list[Tensor], out: Tensor, v: Tensor | None
) -> None:
    """Add to the tables V what the adjoint v of ``out`` gives to the states of ``rows`` that ``out`` was made of."""
    if not out.requires_grad:  # it reads the features alone
        return
    index = torch.arange(*rows.indices(problem.graph.num_nodes)) if isinstance(rows, slice) else rows
    for table, g in zip(V, torch.autograd.grad(out, states, v, allow_unused=True), strict=False):
        if g is not None:
            table.add(index.to(g.device), g)


class _Reached(BaseException):
    """Ends a forward pass at the state it was run for; not an Exception, which the model's own code might catch."""

    def __init__(self, s: Tensor) -> None:
        self.s = s


def next_state(problem: Problem, rows: Rows, stored: Sequence[Tensor], operator: Operator | None = None) -> Tensor:
    """The next state after the ``stored`` ones, by ``operator``, or the logits after the last; ``rows`` are read."""

    def at(l: int, layer: Callable[[Operator], Tensor]) -> Tensor:
        if l <= len(stored):
            return stored[l - 1]
        assert operator is not None
        raise _Reached(layer(operator))

    try:
        return problem.model.run_forward(problem.inputs(rows), Pass(), at)
    except _Reached as reached:
        return reached.s
