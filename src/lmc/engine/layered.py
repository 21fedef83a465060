"""Models that the engine runs layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmc.engine.distributed.exchange import publish
from lmc.engine.distributed.layer import total_of
from lmc.engine.exact import Aggregated, Chunk, Chunks, GivenSums, MakeTable, cut, layer_chunks
from lmc.engine.problem import Problem, losses_of
from lmc.graph import CSR, Batch, Precomputed
from lmc.methods.protocol import Method, ProblemView, RowwiseMethod, Step, Tables, Widths
from lmc.models import Model, Operator, Pass, evaluating
from lmc.models.passes import KnowsDistribution
from lmc.stores import Rows, Table

if TYPE_CHECKING:
    from lmc.engine.run import Run

Estimate = tuple[list[Tensor], Tensor]
"""The gradients of all parameters, and the loss, of a batch; both without the factor b/c."""


class Layered:
    """An encoder, layers, a decoder: between two layers a method may change the state.

    This is also what the engine asks of any kind of model; the other kinds override what differs.

    Args:
        trained_as: what a method's ``traits.trains`` has to contain.
        refusal: what a method that does not train this kind wants instead, and which method does train it.
        bracketed: a step reads every row once, so that transfers can be bracketed by its beginning and end.
        reads_batches_only: no more is read of the edges than those of a batch, so that they may stay on the host.
        logits_read_all_layers: the logits read the states of all layers instead of the last one's.
    """

    trained_as = "layered"
    refusal = ("a fixed point", "LMC4Conv")
    bracketed = True
    reads_batches_only = True
    logits_read_all_layers = False

    def bfloat16_obstacle(self, model: Model) -> str | None:
        """Why rows cannot be bfloat16; None where they can."""
        if model.linear:
            return None
        return "its aggregation takes differences or exponentials of rows, which enlarge their rounding"

    def records(self, problem: Problem) -> bool:
        """Whether steps of fixed batches can be recorded as CUDA graphs."""
        # sparse features that are transferred from the host are other tensors in every step
        constant_addresses = problem.features == "device" or problem.stored is not None
        loss = problem.loss is None or getattr(problem.loss, "recordable", False)
        if problem.exchange is not None and problem.exchange.world.options.sync == "layer":
            return False  # a collective inside of a recording may hang
        return problem.device.type == "cuda" and constant_addresses and problem.model.recordable and loss

    def makes_nothing_in_steps(self, problem: Problem) -> bool:
        """Whether a step converts nothing that outlives it but the matrices of its batch."""
        return problem.model.linear and isinstance(problem.X, Tensor)

    def first_layer(self, problem: Problem) -> str:
        """What layer 1 reads, in one word."""
        return "complete" if problem.aggregated else "pruned"

    def tables(self, method: Method, problem: ProblemView) -> Widths:
        """The tables that a method keeps on this kind of model."""
        return method.tables(problem)

    def numbers(self) -> dict[str, Tensor]:
        """Small tensors that the kind itself keeps between steps, on the host."""
        return {}

    def rows_read(self, method: Method, batch: Batch) -> tuple[Rows, ...]:
        """The rows at which a step pulls tables."""
        reads = (*method.traits.reads, "halo") if method.setup.draws_halo else method.traits.reads
        return tuple(getattr(batch, name) for name in reads)

    def estimate(self, run: Run, batch: Batch, keep: bool, dropout: bool) -> Estimate:
        """The method's estimate on a batch; with ``keep``, tables are updated."""
        method, problem, step = run.method, run.problem, run.method_step(batch, keep, dropout)
        traits, world = method.traits, None if problem.exchange is None else problem.exchange.world
        problem.model.train()
        p = Pass(
            num_core=batch.num_core if batch.num_halo and not traits.grad_from_all_rows else None,
            pooled=traits.batch_norm == "pooled",
            # the whole graph has no other statistics to be corrected towards
            batch_renorm=traits.batch_norm == "renormalised" and batch.num_core < problem.num_nodes,
            dropout=dropout,
            generator=run.generator,
            grad_from_halo=traits.grad_from_halo,
            num_real=batch.num_real,
            total=None if world is None or world.options.sync == "step" else partial(total_of, world),
        )
        outputs = method.outputs(step, p) if isinstance(method, RowwiseMethod) else self.forward(run, step, p)
        losses = problem.losses(outputs, batch)
        if traits.grad_from_all_rows:  # the estimate is the gradient of the loss of the core rows
            losses = losses[: batch.num_core]
        # a wrapped network may hold parameters that it does not use
        grads = torch.autograd.grad(losses.sum(), list(run.parameters.values()), materialize_grads=True)
        return list(grads), losses[: batch.num_core].sum().detach()

    def forward(self, run: Run, step: Step, p: Pass) -> Tensor:
        """The outputs of a batch: every layer aggregates with the method's operator, and its state is what the method
        makes of it."""
        method, problem = run.method, run.problem
        s = h0 = problem.encode(run.source.inputs(step.batch), p)
        for l in range(1, problem.model.num_layers + 1):
            if run.sync is not None:
                run.sync.arrive(l)
            operator = method.operator(step, l)
            s = method.compensate(step, l, advance(problem, l, s, operator, p, h0))
            p = replace(p, statistics=whole_statistics(problem.model, l, operator, p))
        assert isinstance(s, Tensor)
        return finish(problem, s, p)

    def fill_chunks(self, problem: Problem, chunks: Chunks) -> Chunks:
        """The chunks in which tables are filled, where ``chunks`` are the cores of the batches."""
        return chunks

    @torch.no_grad()
    def states(
        self, problem: Problem, chunks: Chunks, make: MakeTable, known: Mapping[int, Aggregated]
    ) -> Iterator[tuple[int, Table]]:
        """(l, table of the exact states of layer l) for l = 1..L, where what some layers aggregate is ``known``."""
        previous: Table | None = None
        with evaluating(problem.model):
            for l, width in enumerate(problem.model.widths, start=1):
                table, given = make(l, width), known.get(l)
                for rows in layer_chunks(problem, chunks, l, given):
                    chunk = cut(problem, rows, l, given)
                    if given is not None:
                        table.push(rows, _state_of_sums(problem, l, chunk, given.rows(rows)))
                    else:
                        inputs = None if previous is None else previous.pull(chunk.ext)
                        table.push(rows, _state(problem, l, chunk, inputs))
                if l + 1 not in known:  # with known sums, the next layer reads no row of another rank
                    publish(problem.exchange, table)
                yield l, table
                previous = table

    def adjoints(
        self, problem: Problem, chunks: Chunks, H: Sequence[Table], make: MakeTable
    ) -> Iterator[tuple[int, Table]]:
        """(l, table of V^l = dL/ds^l) for l = L..1.

        Each chunk sends V^{l+1} of its rows back to all rows they read, so every adjoint is complete.
        """
        L = problem.model.num_layers
        with evaluating(problem.model):
            above = make(L, problem.model.widths[-1])
            for rows in chunks:
                s = H[L - 1].pull(rows).detach().requires_grad_()
                losses = losses_of(problem, finish(problem, s, Pass()), rows)
                above.push(rows, torch.autograd.grad(losses.sum(), s)[0])
            yield L, above
            for l in range(L - 1, 0, -1):
                table = make(l, problem.model.widths[l - 1])
                for rows in chunks:
                    chunk = cut(problem, rows, l + 1)
                    s = H[l - 1].pull(chunk.ext).detach().requires_grad_()
                    out = _state(problem, l + 1, chunk, s)
                    (v,) = torch.autograd.grad(out, s, above.pull(rows).to(out.dtype))
                    add = table.push if isinstance(chunk.ext, slice) else table.add
                    add(chunk.ext, v)
                if problem.exchange is not None:
                    problem.exchange.collect(table)
                yield l, table
                above = table

    def logits(self, problem: Problem, rows: Rows, states: Sequence[Tensor]) -> Tensor:
        """Logits of rows from their states of all layers, or of the last one."""
        return finish(problem, states[-1], Pass())

    def messages(self, problem: Problem, l: int, rows: Rows, states: Sequence[Table]) -> Tensor:
        """The rows that layer l aggregates."""
        if l > 1:
            return problem.model.layer(l - 1).activate(states[l - 2].pull(rows), Pass())
        h0 = problem.encode(problem.inputs(rows), Pass())
        assert isinstance(h0, Tensor)  # T[1] is kept only where the features are encoded
        return h0

    def affine_adjoint(self, problem: Problem, l: int, rows: Rows, m: Table, t: Table, v: Table) -> Tensor:
        """The adjoint of the sums m of layer l, from the adjoint v of its state: back through the affine map."""
        with evaluating(problem.model):
            sums = m.pull(rows).detach().to(problem.dtype).requires_grad_()
            h0 = problem.encode(problem.inputs(rows), Pass())
            s = problem.model.layer(l)(t.pull(rows).detach(), GivenSums(sums), Pass(), h0)
            return torch.autograd.grad(s, sums, v.pull(rows).to(s.dtype))[0]

    def solver_start(self, tables: Tables) -> Table | None:
        """The states from which evaluation starts to solve; None where nothing is solved."""
        return None


def advance(problem: Problem, l: int, s: Tensor | CSR, P: Operator, p: Pass, h0: Tensor | CSR) -> Tensor:
    """The state of layer l from that of layer l - 1, l = 1..L; state 0 is the encoded input."""
    layer, others = problem.model.layer(l), replace(p, statistics=None)  # which belong to the activation of s
    if problem.cut == "after":
        return layer.activate(layer(s, P, others, h0).to(problem.dtype), others)
    if l > 1:
        assert isinstance(s, Tensor)
        s = problem.model.layer(l - 1).activate(s, p)
    return layer(s, P, others, h0).to(problem.dtype)


def whole_statistics(model: Model, l: int, P: Operator, p: Pass) -> tuple[Tensor, Tensor] | None:
    """Mean and variance of the state of layer l over all nodes; None where the operator does not know them."""
    whole = P.distribution() if isinstance(P, KnowsDistribution) else None
    if whole is None:
        return None
    clean = replace(p, dropout=False, statistics=None)

    def affine(m: Tensor, h: Tensor | None = None) -> Tensor:
        given = Precomputed(m.shape[0]) if isinstance(P, Precomputed) else GivenSums(m)
        return model.layer(l)(m if h is None else h, given, clean, m)

    return whole.through(affine)


def finish(problem: Problem, s: Tensor, p: Pass) -> Tensor:
    """Logits from the state of layer L."""
    h = problem.model.layer(problem.model.num_layers).activate(s, p) if problem.cut == "before" else s
    return problem.model.decode(h, replace(p, statistics=None))


def _state(problem: Problem, l: int, chunk: Chunk, previous: Tensor | CSR | None) -> Tensor:
    """State l of a chunk's rows from state l - 1 of the rows it reads."""
    state = partial(advance, problem, l, P=chunk.operator, p=Pass())
    if previous is not None and not problem.model.reads_input:
        return state(previous, h0=previous)
    h0 = problem.encode(problem.inputs(chunk.ext), Pass())
    return state(h0 if previous is None else previous, h0=h0)


def _state_of_sums(problem: Problem, l: int, chunk: Chunk, t: Tensor) -> Tensor:
    """State l of a chunk's rows from the rows that layer l aggregates, whose sums the operator gives."""
    h0 = problem.encode(problem.inputs(chunk.rows), Pass()) if problem.model.reads_input else t
    return problem.model.layer(l)(t, chunk.operator, Pass(), h0).to(problem.dtype)
