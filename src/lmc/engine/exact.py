"""Exact states and adjoints of every node, layer by layer, in chunks of rows.

Memory beside the tables is that of one chunk and its 1-hop neighbours, whatever the size of the graph; sweeps of fixed
batches also keep the entries of P, divided by where they lie. Evaluation, ``refresh`` and the diagnostics are all made
of these passes. How a pass goes depends on the kind of the model (:func:`lmc.engine.problem.kind_of`).
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmc.engine.distributed.exchange import publish
from lmc.graph import CSR, Aggregation, Extractor, Graph, Precomputed, accumulate, row_chunks, spmm
from lmc.graph.csr import chosen_entries
from lmc.kernels.beside import beside
from lmc.kernels.copies import copied
from lmc.kernels.packed import in_pieces
from lmc.kernels.row_moments import RowMoments
from lmc.models import Model, Operator, evaluating
from lmc.sampling import derive
from lmc.stores import Device, PassTable, Rows, Table, free_memory, overwrite

if TYPE_CHECKING:
    from lmc.engine.problem import Problem
    from lmc.engine.run import Run
    from lmc.methods.protocol import Tables

MakeTable = Callable[[int, int], Table]
"""(layer, width) -> a table for that layer."""

Chunks = Sequence[Rows]

MAX_ELEMENTS = 2**28
"""Numbers in the widest state of a chunk and all it reads: 1 GiB of float32."""
FEW_ELEMENTS = 2**25
"""The same where memory is short: 128 MiB."""

SWEEP_BYTES = 64
"""Bytes of free memory per number in the widest state of a chunk that is filled: several such states exist at a time.
"""

IN_CACHE = 2**20
"""Numbers in the widest state of the rows that a CPU computes at a time, if they read no other rows: 4 MiB of float32,
so that temporary values stay in its cache."""


@dataclass(frozen=True, eq=False)
class Aggregated:
    """What a layer aggregates, where it is known before a pass comes to the layer.

    Args:
        table: a table whose first columns are the rows t.
        complete: gives the sums of these rows, of all columns of the table; a pass asks for every row once.
        width: the columns of t.
    """

    table: Table
    complete: Callable[[Rows], Tensor]
    width: int

    def rows(self, rows: Rows) -> Tensor:
        """t of these rows."""
        return self.table.pull(rows)[:, : self.width]

    def sums(self, rows: Rows) -> Tensor:
        """P t of these rows."""
        return self.complete(rows)[:, : self.width]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Rows to compute, the rows they read, and the operator between them."""

    rows: Rows
    ext: Rows
    operator: Operator


@dataclass(frozen=True, eq=False)
class GivenSums:
    """An operator whose sums are known."""

    sums: Tensor

    @property
    def num_inputs(self) -> int:
        return self.sums.shape[0]

    num_outputs = num_inputs

    def __call__(self, t: Tensor, clean: Tensor | None = None) -> Tensor:
        return self.sums


def chunks_of(problem: Problem, max_elements: int = MAX_ELEMENTS, per_edge: bool = False) -> list[slice]:
    """Contiguous runs of rows, each reading at most ``max_elements`` numbers (a single row is never divided).

    Args:
        per_edge: a row that is read counts once for every edge that reads it, as models count that make a message of
            each edge.
    """
    n = problem.num_owned
    limit = max_elements // widest_row(problem.graph, problem.model)
    if n <= limit and not per_edge:
        return [slice(0, n)]
    # a row reads at most its neighbours; each row is a neighbour of its own
    return [rows for rows, _ in row_chunks(problem.P.leading(n), limit)]


def widest_row(graph: Graph, model: Model) -> int:
    """Numbers in the widest row of a forward pass; sparse features have as many as a row stores on average."""
    features = math.ceil(graph.x.nnz / graph.num_nodes) if isinstance(graph.x, CSR) else graph.num_features
    return max([features, *model.widths])


def sweep_chunks(problem: Problem) -> list[slice]:
    """The chunks in which tables are filled: on a GPU as large as memory allows, since filling counts as training; on a
    CPU always the same, so that rounding does not depend on what else is in memory."""
    on_gpu = problem.device.type == "cuda"
    return chunks_of(problem, max(FEW_ELEMENTS, free_memory(problem.device) // SWEEP_BYTES) if on_gpu else MAX_ELEMENTS)


def cache_sized(problem: Problem, chunks: Chunks) -> Chunks:
    """The chunks in which rows are computed that read no other rows: on a CPU smaller ones (:data:`IN_CACHE`)."""
    if problem.device.type != "cpu":
        return chunks
    return list(in_pieces(chunks, max(1, IN_CACHE // widest_row(problem.graph, problem.model))))


def layer_chunks(problem: Problem, chunks: Chunks, l: int, known: Aggregated | None) -> Chunks:
    """The chunks in which layer l is computed."""
    if known is None:
        reads_itself = l == 1 and problem.aggregated
    else:
        reads_itself = _read_in_place(problem, known.table) and not problem.P.on_host
    return cache_sized(problem, chunks) if reads_itself else chunks


def cut(problem: Problem, rows: Rows, l: int, known: Aggregated | None = None) -> Chunk:
    """What layer l needs to compute ``rows`` completely; only the rows themselves where their sums are known."""
    if known is not None:
        return Chunk(rows, rows, GivenSums(known.sums(rows)))
    problem = problem.of_layer(l)
    if l == 1 and problem.aggregated:
        size = len(range(*rows.indices(problem.num_owned))) if isinstance(rows, slice) else rows.numel()
        return Chunk(rows, rows, Precomputed(size))
    ext, P = rows_with_columns(problem, problem.blocks, rows)
    return Chunk(rows, ext, Aggregation.exact(P))


def row_numbers(problem: Problem, rows: Rows) -> Tensor:
    """The numbers of rows, int64, on the device of the problem."""
    return torch.arange(*rows.indices(problem.num_owned), device=problem.device) if isinstance(rows, slice) else rows


def rows_with_columns(problem: Problem, blocks: Extractor, rows: Rows) -> tuple[Rows, CSR]:
    """The rows that ``rows`` read, themselves first, and the block of the matrix between them."""
    n = problem.num_owned
    if rows == slice(0, n) and not blocks.P.on_host:
        return slice(0, problem.graph.num_nodes), blocks.P.leading(n)
    index = row_numbers(problem, rows)
    ext = torch.cat([index, blocks.halo(index)])
    return ext, blocks.block(index, ext)


def exact_states(
    problem: Problem, chunks: Chunks, make: MakeTable, known: Mapping[int, Aggregated] = MappingProxyType({})
) -> Iterator[tuple[int, Table]]:
    """(l, table of the states of layer l) for l = 1..L; the model is used in evaluation mode.

    Args:
        known: what some layers aggregate. The caller computes it before it asks for the states of these layers.
    """
    return problem.kind.states(problem, chunks, make, known)


def pass_table(problem: Problem, width: int) -> Table:
    """A table for the states of one pass, which writes all rows before it reads them."""
    if not isinstance(problem.placement.tier, Device):
        return problem.table(width)
    return PassTable(problem.graph.num_nodes, width, problem.dtype, problem.device)


def last_states(problem: Problem, chunks: Chunks, start: Table | None = None, upto: int | None = None) -> list[Table]:
    """The states that :func:`exact_logits` reads: those of the last layer, or of all layers.

    Args:
        start: the initial states of a fixed-point solver.
        upto: the last layer to compute; None: all.
    """

    def make(_: int, width: int) -> Table:
        if problem.kind.trained_as == "layered":
            return pass_table(problem, width)
        table = problem.table(width)
        if start is not None:
            table.data().copy_(start.data())
        return table

    states = (table for _, table in islice(exact_states(problem, chunks, make), upto))
    return list(deque(states, maxlen=None if problem.kind.logits_read_all_layers else 1))


@torch.no_grad()
def exact_logits(problem: Problem, chunks: Chunks, states: Sequence[Table]) -> Iterator[tuple[Rows, Tensor]]:
    """(rows, logits) chunk by chunk from the states of all layers, or of the last (``logits_read_all_layers``)."""
    with evaluating(problem.model):
        for rows in chunks:
            yield rows, problem.kind.logits(problem, rows, [table.pull(rows) for table in states])


def exact_adjoints(
    problem: Problem, chunks: Chunks, H: Sequence[Table], make: MakeTable
) -> Iterator[tuple[int, Table]]:
    """(l, table of V^l = dL/ds^l) for l = L..1, given the tables ``H`` of the states of layers 1..L."""
    return problem.kind.adjoints(problem, chunks, H, make)


def randomised(model: Model, seed: int) -> Model:
    """A copy of the model with random parameters, which are drawn on the CPU and so are the same on every device."""
    device = next(model.parameters()).device
    drawn = copy.deepcopy(model).cpu()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, "random basis"))  # not those of GPUs
        for module in drawn.modules():
            reset = getattr(module, "reset_parameters", None)
            if module is not drawn and callable(reset):
                reset()
    return drawn.to(device)


def set_statistics(problem: Problem, l: int, s: Table, chunks: Chunks) -> None:
    """The running statistics of the batch norm after layer l <- those of all rows of its state ``s``."""
    model = problem.model
    activation = None if model.owns_forward else model.layer(l).activation
    norm = None if activation is None else activation.norm
    if not isinstance(norm, nn.BatchNorm1d) or norm.running_mean is None or norm.running_var is None:
        return
    moments = RowMoments(norm.running_mean, covariance=False)
    for rows in cache_sized(problem, chunks):
        moments.add(s.pull(rows))
    mean, variance = moments.of_all(problem.num_nodes, partial(_total, problem))
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(variance)


def _total(problem: Problem, value: Tensor) -> Tensor:
    """The sum of ``value`` over all ranks, in place."""
    return value if problem.exchange is None else problem.exchange.world.sum(value)


def _read_in_place(problem: Problem, table: Table) -> bool:
    """Whether a product reads the rows of a table where they are; those of bfloat16 it converts."""
    return table.tier == "device" and problem.dtype != torch.bfloat16


class Passes:
    """The exact passes of a run, for filling its tables (:class:`lmc.methods.protocol.ExactPasses`).

    Args:
        problem: the graph on which the passes run; that of the run, or another on the same nodes.
        chunks: the rows of each chunk.
    """

    def __init__(self, run: Run, problem: Problem, chunks: Chunks) -> None:
        self.problem, self._clusters = problem, run.clusters
        self._source = run.source if problem is run.problem else None
        self.seed = run.seed if problem.exchange is None else problem.exchange.seed
        self.tables: Tables = run.tables
        self.numbers = run.numbers
        self.chunks = list(problem.kind.fill_chunks(problem, chunks))

    @property
    def cores(self) -> list[Rows]:
        return [] if self._clusters.redraw else self._clusters.cores(self.problem.device)

    @property
    def extended(self) -> list[Tensor]:
        return [] if self._source is None else [batch.ext for batch in self._source.fixed()]

    def fill_states(self) -> list[Table]:
        H = self.tables["H"]
        return [t for _, t in exact_states(self.problem, self.chunks, lambda l, w: H.get(l) or self.problem.table(w))]

    def fill_adjoints(self, states: list[Table]) -> None:
        V, problem = self.tables["V"], self.problem
        # the tables themselves are filled: recorded steps read and write their memory
        for table in V.values():
            overwrite(table)
        # chunks add to adjoints, so tables of a narrower dtype are rounded afterwards
        direct = problem.dtype == problem.accumulate_dtype

        def make(l: int, width: int) -> Table:
            return (V.get(l) if direct else None) or problem.table(width, problem.accumulate_dtype)

        for l, table in exact_adjoints(problem, self.chunks, states, make):
            if l in V and not direct:
                overwrite(V[l], table.data())
            if l == min(V, default=l):
                break

    def adjoints(self, states: list[Table]) -> Iterator[tuple[int, Table]]:
        dtype = self.problem.accumulate_dtype
        return exact_adjoints(self.problem, self.chunks, states, lambda _, w: self.problem.table(w, dtype))

    @torch.no_grad()
    def fill_messages(self) -> list[Table]:
        problem = self.problem
        with evaluating(problem.model):
            states = [table for _, table in exact_states(problem, self.chunks, lambda _, w: self.problem.table(w))]
            for l, table in self.tables["T"].items():
                for rows in self.chunks:
                    table.push(rows, problem.kind.messages(problem, l, rows, states))
        return states

    @torch.no_grad()
    def messages(
        self,
        sums: str,
        store: Callable[[int, Rows, Tensor], None],
        stored: Callable[[int], None],
        complete: Callable[[int, Rows, Tensor], None],
        random: bool = False,
    ) -> None:
        problem = self.problem if not random else replace(self.problem, model=randomised(self.problem.model, self.seed))
        model, Q, M = problem.model, self.tables["Q"], self.tables[sums]
        outside, last = sums == "S", max(Q, default=0)
        # one stream transfers rows of slower tiers; sums that overlap read halo rows of other ranks, which arrive later
        meanwhile = [l for l, table in Q.items() if outside and table.tier == "device"]
        states: list[Table] = []

        def read(l: int, rows: Rows) -> Tensor:
            m = self.complete_sums(l, Q[l], M[l], rows) if outside else M[l].pull(rows)
            complete(l, rows, m)
            return m

        with evaluating(model):
            known = {l: Aggregated(Q[l], partial(read, l), model.message_widths[l]) for l in Q}
            later = exact_states(problem, self.chunks, lambda _, width: pass_table(problem, width), known)
            for l in range(1, last + 1):
                if l in Q:
                    self._store_messages(problem, l, states, store)
                    if l in meanwhile:
                        beside(problem.device, partial(stored, l))
                    self._fill_sums_of_messages(l, outside, last)
                if l < last:
                    states.append(next(later)[1])
                    set_statistics(problem, l, states[-1], self.chunks)
        for l in sorted(Q.keys() - set(meanwhile)):
            stored(l)

    def _store_messages(
        self, problem: Problem, l: int, states: list[Table], store: Callable[[int, Rows, Tensor], None]
    ) -> None:
        for rows in cache_sized(problem, self.chunks):
            store(l, rows, problem.kind.messages(problem, l, rows, states))

    def _fill_sums_of_messages(self, l: int, outside: bool, last: int) -> None:
        """Fill M[l]; or S[l], which a pass does not read in the last layer."""
        Q = self.tables["Q"][l]
        if not outside:
            self.fill_sums(l, Q, self.tables["M"][l])
            return
        publish(self.problem.exchange, Q)
        if l < last:
            self.fill_sums(l, Q, self.tables["S"][l], outside=True)

    def fill_feature_sums(self, sums: Table) -> None:
        overwrite(sums, self.problem.aggregate(self.problem.inputs, sums.data().shape[1]).data())

    def fill_sums(
        self, l: int, rows: Table, sums: Table, transposed: bool = False, relu: bool = False, outside: bool = False
    ) -> None:
        problem = self.problem.of_layer(l)
        blocks = problem.transposed if transposed else problem.blocks
        if not outside:
            publish(problem.exchange, rows)
        dtype = sums.data().dtype
        converted = relu or rows.data().dtype != dtype
        for out in self.chunks:
            if outside:
                ext, A = self._entries(problem, out, "between", rows)
            else:
                ext, A = self._block(problem, blocks, out, None if converted else rows)
            read = rows.pull(ext).to(dtype)
            there = sums.pull(out) if sums.tier == "device" and isinstance(out, slice) else None
            sums.push(out, spmm(A, read.clamp_min(0) if relu else read, there))

    def complete_sums(self, l: int, rows: Table, outside: Table, of: Rows) -> Tensor:
        ext, P = self._entries(self.problem.of_layer(l), of, "within", rows)
        there = outside.pull(of)
        return accumulate(copied(there), P, rows.pull(ext).to(there.dtype))

    def _block(self, problem: Problem, blocks: Extractor, out: Rows, table: Table | None) -> tuple[Rows, CSR]:
        """The rows that ``out`` read, and the block of the matrix between them.

        If ``table`` is on the device and needs no conversion, these are all rows, and nothing is copied.
        """
        in_place = table is not None and _read_in_place(problem, table) and not blocks.P.on_host
        if in_place and isinstance(out, slice) and out != slice(0, problem.num_owned):
            return slice(0, problem.graph.num_nodes), blocks.P.select_rows(out)
        return rows_with_columns(problem, blocks, out)

    def _entries(
        self, problem: Problem, out: Rows, where: Literal["within", "between"], table: Table
    ) -> tuple[Rows, CSR]:
        """The rows of the table that ``out`` read, and the entries of P that lie within fixed batches, or between them.

        The entries are kept if batches are kept. They are not kept if there are several chunks and either the memory
        of a GPU is short or each chunk would copy the rows of the table.
        """
        kept, short = None if self._source is None else self._source.entries, problem.device.type == "cuda"
        if kept is None or (len(self.chunks) > 1 and (short or not _read_in_place(problem, table))):
            ext, P = self._block(problem, problem.blocks, out, table)
            return ext, self._chosen(P, out, ext, where)
        every, columns = slice(0, problem.num_owned), slice(0, problem.graph.num_nodes)
        if (problem.blocks, where) not in kept:
            kept[problem.blocks, where] = self._chosen(
                problem.blocks.P.leading(problem.num_owned), every, columns, where
            )
        P = kept[problem.blocks, where]
        return columns, P if out == every else P.select_rows(out)

    def _chosen(self, P: CSR, out: Rows, ext: Rows, where: Literal["within", "between"]) -> CSR:
        """The entries of a block that lie within fixed batches, or between them."""
        row, column, degrees = self._slots[out], self._slots[ext], P.degrees().long()

        def choose(rows: slice, entries: slice) -> Tensor:
            own = row[rows].repeat_interleave(degrees[rows], output_size=entries.stop - entries.start)
            return (own == column.index_select(0, P.indices[entries])) == (where == "within")

        return chosen_entries(P, choose)

    @cached_property
    def _slots(self) -> Tensor:
        """The number of the fixed batch of every row, on the device of P; -1 for mirrors, which are in no batch."""
        batch = self._clusters.parts.to(self.problem.P.device, torch.int32) // self._clusters.per_batch
        return F.pad(batch, (0, self.problem.graph.num_nodes - batch.numel()), value=-1)

    def total(self, value: Tensor) -> Tensor:
        return _total(self.problem, value)

    def publish(self, tables: Iterable[Table]) -> None:
        publish(self.problem.exchange, *tables)

    def affine_adjoint(self, l: int, rows: Rows, m: Table, t: Table, v: Table) -> Tensor:
        return self.problem.kind.affine_adjoint(self.problem, l, rows, m, t, v)
