"""Exact states and adjoints of every node, layer by layer, in chunks of rows.

Memory beside the tables is that of one chunk and its 1-hop neighbours, whatever the size of the graph. Evaluation,
``refresh`` and the diagnostics are all made of these two passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.engine.problem import Problem
from lmc.engine.recurrent_exact import settle_adjoints, settle_states
from lmc.graph import Aggregation, Precomputed, row_chunks
from lmc.models import Operator, Pass, evaluating
from lmc.stores import Rows, Table

MakeTable = Callable[[int, int], Table]
"""(layer, width) -> a table for that layer."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """Rows to compute, the rows they read, and the operator between them."""

    rows: Rows
    ext: Rows
    operator: Operator


MAX_ELEMENTS = 2**28
"""Numbers in the widest state of a chunk and all it reads: 1 GiB of float32."""
FEW_ELEMENTS = 2**25
"""The same where memory is short: 128 MiB."""


def chunks_of(problem: Problem, max_elements: int = MAX_ELEMENTS) -> list[slice]:
    """Contiguous runs of rows, each reading at most ``max_elements`` numbers (a single row is never divided)."""
    n = problem.graph.num_nodes
    widest = max([problem.graph.num_features, *problem.model.widths])
    limit = max_elements // widest
    if n <= limit:
        return [slice(0, n)]
    # a row reads at most its neighbours; each row is a neighbour of its own
    return [rows for rows, _ in row_chunks(problem.P, limit)]


def cut(problem: Problem, rows: Rows, l: int) -> Chunk:
    """What layer l needs to compute ``rows`` completely."""
    problem, n = problem.of_layer(l), problem.graph.num_nodes
    if l == 1 and problem.aggregated:
        size = len(range(*rows.indices(n))) if isinstance(rows, slice) else rows.numel()
        return Chunk(rows, rows, Precomputed(size))
    if isinstance(rows, slice):
        if rows == slice(0, n) and not problem.P.on_host:
            return Chunk(rows, rows, Aggregation.exact(problem.P))
        rows_index = torch.arange(*rows.indices(n), device=problem.device)
    else:
        rows_index = rows
    ext = torch.cat([rows_index, problem.blocks.halo(rows_index)])
    return Chunk(rows, ext, Aggregation.exact(problem.blocks.block(rows_index, ext)))


def _state(problem: Problem, l: int, chunk: Chunk, previous: Tensor | None, p: Pass) -> Tensor:
    """State l of a chunk's rows from state l - 1 of the rows it reads."""
    if previous is not None and not problem.model.reads_input:
        return problem.advance(l, previous, chunk.operator, p, previous)
    h0 = problem.encode(problem.inputs(chunk.ext), p)
    return problem.advance(l, h0 if previous is None else previous, chunk.operator, p, h0)


@torch.no_grad()
def exact_states(problem: Problem, chunks: Sequence[Rows], make: MakeTable) -> Iterator[tuple[int, Table]]:
    """(l, table of the states of layer l) for l = 1..L; the model is used in evaluation mode."""
    if problem.model.owns_forward:
        yield from _driven_states(problem, chunks, make)
        return
    previous: Table | None = None
    with evaluating(problem.model):
        if problem.model.recurrent:
            Z = make(1, problem.model.widths[0])
            settle_states(problem, chunks, Z)
            yield 1, Z
            return
        for l, width in enumerate(problem.model.widths, start=1):
            table = make(l, width)
            for rows in chunks:
                chunk = cut(problem, rows, l)
                inputs = None if previous is None else previous.pull(chunk.ext)
                table.push(rows, _state(problem, l, chunk, inputs, Pass()))
            yield l, table
            previous = table


@torch.no_grad()
def exact_logits(
    problem: Problem, chunks: Sequence[Rows], states: Table | Sequence[Table]
) -> Iterator[tuple[Rows, Tensor]]:
    """(rows, logits) chunk by chunk from the states of layer L; a model that drives reads those of all layers."""
    tables = states if isinstance(states, Sequence) else [states]
    with evaluating(problem.model):
        for rows in chunks:
            if problem.model.owns_forward:
                yield rows, drive(problem, rows, [t.pull(rows) for t in tables])
            else:
                yield rows, problem.finish(tables[-1].pull(rows), Pass())


def exact_adjoints(
    problem: Problem, chunks: Sequence[Rows], H: Sequence[Table], make: MakeTable
) -> Iterator[tuple[int, Table]]:
    """(l, table of V^l = dL/ds^l) for l = L..1, given the tables ``H`` of the states of layers 1..L.

    Each chunk sends V^{l+1} of its rows back to all rows they read, so every adjoint is complete, whatever the layer.
    """
    if problem.model.owns_forward:
        yield from _driven_adjoints(problem, chunks, H, make)
        return
    L = problem.model.num_layers
    graph = problem.graph
    with evaluating(problem.model):
        above = make(L, problem.model.widths[-1])
        if problem.model.recurrent:
            settle_adjoints(problem, chunks, H[0], above)
            yield 1, above
            return
        for rows in chunks:
            s = H[L - 1].pull(rows).detach().requires_grad_()
            logits = problem.finish(s, Pass())
            loss = problem.row_losses(logits, graph.y[rows], graph.train[rows]).sum()
            above.push(rows, torch.autograd.grad(loss, s)[0])
        yield L, above
        for l in range(L - 1, 0, -1):
            table = make(l, problem.model.widths[l - 1])
            for rows in chunks:
                chunk = cut(problem, rows, l + 1)
                s = H[l - 1].pull(chunk.ext).detach().requires_grad_()
                out = _state(problem, l + 1, chunk, s, Pass())
                (v,) = torch.autograd.grad(out, s, above.pull(rows).to(out.dtype))
                if isinstance(chunk.ext, slice):
                    table.push(chunk.ext, v)
                else:
                    table.add(chunk.ext, v)
            yield l, table
            above = table


def exact_messages(problem: Problem, chunks: Sequence[Rows], T: dict[int, Table], make: MakeTable) -> Sequence[Table]:
    """T[l] <- the rows that layer l aggregates, for every l in ``T``; gives the states of all layers."""
    with evaluating(problem.model), torch.no_grad():
        states = [table for _, table in exact_states(problem, chunks, make)]
        for l, table in T.items():
            for rows in chunks:
                table.push(rows, _messages(problem, l, rows, states))
    return states


def _messages(problem: Problem, l: int, rows: Rows, states: Sequence[Table]) -> Tensor:
    model = problem.model
    if model.owns_forward:
        count = problem.graph.y[rows].shape[0]
        return drive(problem, rows, [t.pull(rows) for t in states[: l - 1]], Precomputed(count))
    if l > 1:
        return model.layer(l - 1).activate(states[l - 2].pull(rows), Pass())
    h0 = problem.encode(problem.inputs(rows), Pass())
    assert isinstance(h0, Tensor)  # T[1] is kept only where the features are encoded
    return h0


class _Reached(BaseException):
    """The state a driven pass was run for; not an Exception, which the model's own code might catch."""

    def __init__(self, s: Tensor) -> None:
        self.s = s


def drive(problem: Problem, rows: Rows, stored: Sequence[Tensor], operator: Operator | None = None) -> Tensor:
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


def _driven_states(problem: Problem, chunks: Sequence[Rows], make: MakeTable) -> Iterator[tuple[int, Table]]:
    tables: list[Table] = []
    for l, width in enumerate(problem.model.widths, start=1):
        table = make(l, width)
        for rows in chunks:
            chunk = cut(problem, rows, l)
            with evaluating(problem.model), torch.no_grad():
                table.push(rows, drive(problem, chunk.ext, [t.pull(chunk.ext) for t in tables], chunk.operator))
        tables.append(table)
        yield l, table


def _driven_adjoints(
    problem: Problem, chunks: Sequence[Rows], H: Sequence[Table], make: MakeTable
) -> Iterator[tuple[int, Table]]:
    """Any later state, and the logits, may read any earlier state (jumping knowledge): each sends to all of them."""
    L, graph = problem.model.num_layers, problem.graph
    V = [make(l, width) for l, width in enumerate(problem.model.widths, start=1)]

    def send(rows: Rows, states: list[Tensor], out: Tensor, v: Tensor | None) -> None:
        for table, g in zip(V, torch.autograd.grad(out, states, v, allow_unused=True), strict=False):
            if g is not None:
                index = torch.arange(*rows.indices(graph.num_nodes)) if isinstance(rows, slice) else rows
                table.add(index.to(g.device), g)

    def leaves(rows: Rows, upto: int) -> list[Tensor]:
        return [t.pull(rows).detach().clone().requires_grad_() for t in H[:upto]]

    with evaluating(problem.model):
        for rows in chunks:
            states = leaves(rows, L)
            logits = drive(problem, rows, states)
            send(rows, states, problem.row_losses(logits, graph.y[rows], graph.train[rows]).sum(), None)
        for l in range(L, 0, -1):
            yield l, V[l - 1]
            for rows in chunks if l > 1 else ():
                chunk = cut(problem, rows, l)
                states = leaves(chunk.ext, l - 1)
                out = drive(problem, chunk.ext, states, chunk.operator)
                send(chunk.ext, states, out, V[l - 1].pull(rows))
