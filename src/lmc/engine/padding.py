"""Redrawn batches at fixed addresses, so that their steps can be recorded as those of fixed batches are.

Every batch of an epoch has a copy of fixed capacity, into which the batch that is drawn for its slot is written: rows
and entries beyond it are padding. The step on the copy gives the estimate of the batch itself:

- a padding row has the number n, which is a row of no node: tables on the device have room for it (``PADDING_ROWS``);
- no entry of an operator reads a padding row, it has no label, and no entry of its own but zeros, so that its
  adjoints are zero where parameters take their gradient from.

Means over the rows of a batch would count padding, so models with batch norm are not padded.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor, nn

from lmc.engine.batches import Batches
from lmc.engine.problem import Problem
from lmc.graph import CSR, Aggregation, Batch, Extractor, Precomputed
from lmc.kernels.availability import triton_available
from lmc.kernels.padded import pad_entries, pad_rows, pad_starts

SEEN = 16
"""Batches of the first epoch that are looked at."""
MARGIN = 1.1
"""Capacity over what the largest of these batches needs; a batch that needs more is not padded."""
CORE_MARGIN = 1.01
"""The same for core rows, of which the largest number is known."""


@dataclass(frozen=True, eq=False)
class Part:
    """One matrix of a batch, and of what its rows and columns are: "core", "halo", or "ext" for both."""

    matrix: CSR
    rows: str
    columns: str


def can_pad(problem: Problem, batches: Batches) -> bool:
    """Whether steps on redrawn batches can be recorded, where every row is on the device: no step makes a mean over
    the rows of its batch."""
    model, method = problem.model, batches.method
    plain = problem.kind.makes_nothing_in_steps(problem) and problem.graph.weight is None
    return (
        batches.clusters.redraw
        and problem.placement.keep_batches
        and method.traits.pads_batches
        and batches.num_batches > 1
        and plain
        and triton_available(problem.graph.train)
        and not any(isinstance(module, nn.BatchNorm1d) for module in model.modules())
    )


class Padding:
    """The copies of fixed capacity, one for every batch of an epoch.

    Batches are cut apart from everything else, so that another thread can do it at any time. The capacity follows from
    batches of the first epoch, so that it is the same in a run that is resumed.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches, self._problem = apart(batches), batches.problem
        self._copies: dict[int, tuple[Batch, Batch]] = {}
        self._used: dict[int, torch.cuda.Event] = {}
        self.thread = ThreadPoolExecutor(1, "lmc-draw")
        """Cuts one batch at a time, those of an epoch that was left early included."""
        sizes = sorted(torch.tensor(batches.clusters.offsets).diff().tolist())
        self._core = int(CORE_MARGIN * sum(sizes[-batches.clusters.per_batch :])) + 1
        seen = list(islice(self._batches.epoch(0, 0), SEEN))
        halo = max(batch.num_halo for batch in seen)
        self._halo = int(MARGIN * halo) + 1 if halo else 0
        parts = [parts_of(batch) for batch in seen]
        self._entries = [int(MARGIN * max(part.matrix.nnz for part in same)) + 1 for same in zip(*parts, strict=True)]
        self._write(seen[0])  # its kernels are compiled before training

    def epoch(self, epoch: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch, from the ``start``-th on, each of which is written to its copy where it fits."""
        for batch in self._batches.epoch(epoch, start):
            self._write(batch)
            yield batch

    def copy_of(self, batch: Batch) -> Batch | None:
        """The copy of the last batch of its slot; None where it has none."""
        original, copy = self._copies.get(batch.slot, (None, None))
        return copy if original is batch else None

    def used(self, batch: Batch) -> None:
        """Note that a step on the copy of a batch is launched: the copy may be overwritten when it is done."""
        if self.copy_of(batch) is not None:
            self._used[batch.slot] = torch.cuda.current_stream(self._problem.device).record_event()

    def _write(self, batch: Batch) -> None:
        parts = parts_of(batch)
        fits = all(part.matrix.nnz <= room for part, room in zip(parts, self._entries, strict=True))
        fits &= batch.num_core < self._core and (0 < batch.num_halo < self._halo or batch.num_halo == self._halo == 0)
        if not fits:
            return
        copy = self._copies[batch.slot][1] if batch.slot in self._copies else self._new(batch, parts)
        if batch.slot in self._used:
            torch.cuda.current_stream(self._problem.device).wait_event(self._used[batch.slot])
        self._copies[batch.slot] = batch, copy
        graph, c, h = self._problem.graph, batch.num_core, batch.num_halo
        node = pad_rows(batch.core, batch.halo, graph.train, self._core, copy.ext, copy.labelled)
        torch.index_select(graph.y, 0, node, out=copy.y)
        assert isinstance(copy.inputs, Tensor)
        assert isinstance(self._problem.X, Tensor)
        torch.index_select(self._problem.X, 0, node[: copy.inputs.shape[0]], out=copy.inputs)
        if copy.coefficients is not None and batch.coefficients is not None:
            copy.coefficients.zero_()[:h] = batch.coefficients
        for part, mine in zip(parts, parts_of(copy), strict=True):
            self._write_matrix(part, mine.matrix, c, h)

    def _write_matrix(self, part: Part, out: CSR, c: int, h: int) -> None:
        matrix = part.matrix
        used = (self._core + h if part.rows == "ext" else c) + 1
        pad_starts(matrix.indptr, out.indptr, c, self._core, used, matrix.nnz, out.nnz)
        shift = self._core - c if part.columns == "ext" else 0
        pad_entries(matrix.indices, matrix.data, (out.indices, out.data), c, shift)
        if out.dtype == torch.bfloat16:  # products multiply with a converted copy
            out.as_torch(torch.float32).values().copy_(out.data)

    def _new(self, batch: Batch, parts: list[Part]) -> Batch:
        """A copy with room for every batch of this slot."""
        problem, core, ext = self._problem, self._core, self._core + self._halo
        size = {"core": core, "halo": self._halo, "ext": ext}
        made: dict[CSR, CSR] = {}
        for part, room in zip(parts, self._entries, strict=True):
            old, device = part.matrix, part.matrix.device
            made[old] = CSR(
                torch.zeros(size[part.rows] + 1, dtype=torch.int32, device=device),
                torch.zeros(room, dtype=torch.int32, device=device),
                torch.zeros(room, dtype=old.dtype, device=device),
                size[part.columns],
                old.symmetric,
            )
        for old, new in made.items():
            if ("t",) in old._cache and old.t() in made:
                new._cache["t",] = made[old.t()]
            if ("columns", batch.num_core) in old._cache:
                a, b = old.columns(batch.num_core)
                new._cache["columns", core] = made[a], made[b]

        def padded(op: Aggregation | Precomputed) -> Aggregation | Precomputed:
            if isinstance(op, Precomputed):
                return Precomputed(core if op.num_outputs == batch.num_core else ext)
            return Aggregation(made[op.forward], made[op.backward])

        rows = torch.empty(ext, dtype=torch.int64, device=problem.device)
        operators = tuple(padded(op) for op in batch.operators)
        inputs = ext if problem.model.reads_all_rows else operators[0].num_inputs
        beta = batch.coefficients
        assert isinstance(problem.X, Tensor)
        copy = replace(
            batch, core=rows[:core], rows=rows[:core], halo=rows[core:], operators=operators, fixed=True, n_id=rows,
            inputs=problem.X.new_empty(inputs, problem.X.shape[1]),
            y=batch.y.new_empty(ext, *batch.y.shape[1:]), labelled=batch.labelled.new_empty(ext),
            coefficients=None if beta is None else beta.new_empty(self._halo, 1),
        )  # fmt: skip
        vars(copy)["ext"] = rows  # cached: core and halo are views of it
        return copy


def apart(batches: Batches) -> Batches:
    """The same batches, cut with a memory of their own."""
    problem = batches.problem
    own = tuple(Extractor(blocks.P) for blocks in problem.matrices)
    problem = replace(problem, matrices=own, blocks=own[problem.matrices.index(problem.blocks)])
    return Batches(batches.method, problem, batches.clusters, batches.seed, batches.tables)


def parts_of(batch: Batch) -> list[Part]:
    """The matrices of a batch, each once, and their columns by core and halo where its method reads them so."""
    c, found = batch.num_core, dict[CSR, Part]()
    sums = [op for op in batch.operators if isinstance(op, Aggregation)]
    # the gradient of weights that are applied before the product reads the transpose of the forward matrix
    for matrix in (each for op in sums for each in (op.forward, op.backward, op.forward.t())):
        rows, columns = ("core" if size == c else "ext" for size in matrix.shape)
        found[matrix] = Part(matrix, rows, columns)
        if ("columns", c) in matrix._cache:
            core, halo = matrix.columns(c)
            found |= {core: Part(core, rows, "core"), halo: Part(halo, rows, "halo")}
    return list(found.values())
