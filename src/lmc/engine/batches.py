"""Batches: core rows, what a method lays out around them, and what is read for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from lmc.engine.distributed import layer
from lmc.engine.distributed.ownership import Schedule
from lmc.engine.problem import Problem
from lmc.graph import CSR, Aggregation, Batch, Extractor, Precomputed, rows_split
from lmc.methods.protocol import HistoryMethod, Layout, Method, SamplingMethod, Tables
from lmc.sampling import Clusters
from lmc.stores import Rows


class Batches:
    """Makes the batches of a method on one graph (:class:`lmc.methods.protocol.BatchSource`).

    Fixed batches are made once and kept where the placement says so.

    Args:
        tables: the tables of the run; a sampling method may ask which of them there are.
        fixed: whether the same graph comes again in every epoch.
        turns: in a distributed run, the batches of all ranks.
    """

    def __init__(
        self, method: Method, problem: Problem, clusters: Clusters, seed: int, tables: Tables,
        fixed: bool = True, turns: Schedule | None = None,
    ) -> None:  # fmt: skip
        self.method, self.problem, self.clusters, self.seed, self.tables = method, problem, clusters, seed, tables
        self.prepared = method.prepare(problem, seed) if isinstance(method, SamplingMethod) else None
        exchange = problem.exchange
        self._by_layers = exchange is not None and exchange.world.options.sync == "layer"
        of_parts = self._by_layers and isinstance(method, HistoryMethod)
        self._reach = layer.Reach(exchange) if of_parts and exchange is not None else None
        self._come_again = fixed and not clusters.redraw and not of_parts
        self.kept = self._come_again and method.traits.keeps_batches and problem.placement.keep_batches
        """Whether batches are fixed, and kept on the device."""
        self._fixed: dict[tuple[int, ...], Batch] = {}
        self.entries: dict[tuple[Extractor, str], CSR] | None = {} if self.kept and not problem.P.on_host else None
        """The entries of each matrix within fixed batches and between them, from the first sweep on; None where they
        are not kept."""
        ids = problem.graph.n_id
        if ids is None and problem.exchange is not None:
            ids = problem.exchange.shard.ids
        self._order, self._turns = (clusters.order if ids is None else ids).to(problem.device), turns

    @property
    def num_batches(self) -> int:
        if isinstance(self.method, SamplingMethod):
            return self.method.num_batches(self.problem.graph)
        return self.clusters.num_batches if self._turns is None else self._turns.steps

    def epoch(self, epoch: int, start: int) -> Iterator[Batch]:
        if isinstance(self.method, SamplingMethod):
            yield from self.method.draw(self, epoch, start)
            return
        for slot, parts in enumerate(self.clusters.epoch(epoch)[start:], start):
            own = slot if self.clusters.redraw else parts[0] // self.clusters.per_batch
            yield self._of_parts(parts, own, self._parts_of_all(epoch, slot))
        for step in range(max(start, self.clusters.num_batches), self.num_batches):
            none = torch.empty(0, dtype=torch.int64, device=self.problem.device)
            yield self.make(none, float(self.num_batches), union=self._parts_of_all(epoch, step))

    def fixed(self) -> Iterator[Batch]:
        """The fixed batches, by slot; those that are not kept are made. None where batches change."""
        parts = sorted(self.clusters.epoch(0)) if self._come_again else []
        return (self._of_parts(each, slot) for slot, each in enumerate(parts))

    def _parts_of_all(self, epoch: int, step: int) -> tuple[int, ...]:
        """The parts in the batches of all ranks; none where there are no others."""
        turns = [] if self._turns is None else self._turns.turns(epoch, step)
        return tuple(part for turn in turns for part in turn.parts)

    def _of_parts(self, parts: tuple[int, ...], slot: int, union: tuple[int, ...] = ()) -> Batch:
        if parts in self._fixed:
            return self._fixed[parts]
        batch = self.make(self.clusters.core(parts), float(self.num_batches), slot, union)
        if self.kept:
            batch = self._fixed[parts] = replace(batch, fixed=True)
        return batch

    def make(self, rows: Rows, weight: float, slot: int = 0, union: tuple[int, ...] = ()) -> Batch:
        """The batch whose core is ``rows`` (run order), built on the training device; ``union`` are the parts of all
        ranks in this step."""
        device = self.problem.device
        core = torch.arange(rows.start, rows.stop, device=device) if isinstance(rows, slice) else rows.to(device)
        batch = self.assemble(core, self.layout(core, union), weight, slot)
        return replace(batch, rows=rows) if isinstance(rows, slice) else batch

    def layout(self, core: Tensor, union: tuple[int, ...] = (), halo: Tensor | None = None) -> Layout:
        """The method's layout, with the operator of each layer cut out of the matrix that layer reads; with the given
        halo rows where the method has drawn them before."""
        problem, exchange, turns, lay = self.problem, self.problem.exchange, self._turns, self.method.layout
        if halo is not None:
            lay = partial(self.method.layout_with, halo=halo)
        if not core.numel() and not self._by_layers:
            return Layout(core, (Precomputed(0),))
        if self._by_layers and exchange is not None and turns is not None:
            reached = None if self._reach is None else self._reach(union)
            whole = len(union) == sum(map(len, turns.parts))
            lay = partial(layer.layout, exchange, self.method, reached, whole)
        first_layers = [problem.matrix_index.index(number) + 1 for number in range(len(problem.matrices))]
        layouts = [lay(problem.of_layer(l), core) for l in first_layers]
        if len(layouts) == 1:
            return layouts[0]
        # the matrices share their pattern, so halo and coefficients are the same
        operators = tuple(layouts[number].operators[l] for l, number in enumerate(problem.matrix_index))
        return replace(layouts[0], operators=operators)

    def assemble(
        self, core: Tensor, layout: Layout, weight: float, slot: int, importance: Tensor | None = None
    ) -> Batch:
        problem, graph, halo = self.problem, self.problem.graph, layout.halo
        ext = torch.cat([core, halo]) if halo.numel() else core
        # dense rows are gathered when needed; a sparse slice is small, and its transpose is worth keeping with it
        first = ext if problem.model.reads_all_rows else ext[: layout.operators[0].num_inputs]
        return Batch(
            core=core,
            rows=core,
            halo=halo,
            operators=layout.operators,
            inputs=problem.inputs(first) if isinstance(problem.X, CSR) and problem.features == "device" else None,
            y=graph.y[ext],
            labelled=graph.train[ext],
            weight=weight,
            n_id=self._order[ext],
            coefficients=layout.coefficients,
            slot=slot,
            graph=graph,
            importance=importance,
        )

    def inputs(self, batch: Batch) -> Tensor | CSR:
        """What the encoder reads for a batch."""
        return self.problem.inputs(self.input_rows(batch)) if batch.inputs is None else batch.inputs

    def input_rows(self, batch: Batch) -> Rows:
        """The rows whose features the encoder reads."""
        core_alone = batch.operators[0].num_inputs == batch.num_core and not self.problem.model.reads_all_rows
        return batch.rows if core_alone else batch.ext


def convert_matrices(batch: Batch, dtype: torch.dtype) -> None:
    """Convert the matrices of a batch to the form that products with rows of this dtype read.

    Otherwise this happens at the first product. If the method reads the columns of core and halo separately, these
    blocks are converted too. If the core is the larger part and consecutive, its columns are also converted by rows.
    """
    c, consecutive = batch.num_core, isinstance(batch.rows, slice)
    sums = [op for op in batch.operators if isinstance(op, Aggregation)]
    # the gradient of weights that are applied before the product reads the transpose of the forward matrix
    for matrix in (each for op in sums for each in (op.forward, op.backward, op.forward.t())):
        by_columns = matrix.columns(c) if ("columns", c) in matrix._cache else ()
        by_rows = rows_split(by_columns[0], c) if by_columns and consecutive and 2 * c >= matrix.num_rows else ()
        for each in (matrix, *by_columns, *by_rows):
            each.as_torch(torch.float32 if dtype == torch.bfloat16 else dtype)
    batch.ext, batch.place  # noqa: B018 - cached, so that a recording makes nothing that outlives it
