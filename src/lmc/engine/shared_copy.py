"""Fixed batches without a halo, at fixed addresses, so that one recorded step serves all of them.

Recording a step takes the host several milliseconds; in a short training, all recordings take longer than all steps.
Batches without a halo have nearly the same size. There is one copy of fixed size (:mod:`lmc.graph.padded`), to which a
batch is copied before its step. With a halo there is more padding, which is computed in every step, so that recordings
soon pay: every batch has one of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate

import torch
from torch import Tensor, nn

from lmc.engine.batches import Batches, convert_matrices
from lmc.engine.padding import DrawnBatch, Padded, ignores_padding, recorded
from lmc.engine.problem import Problem
from lmc.graph import CSR, Aggregation, Batch, Precomputed, Room, entry_chunks
from lmc.graph.product import Exact
from lmc.kernels.packed import num_rows
from lmc.models.activation import Activation, BatchNorm

WASTE = 1.15
"""Rows, and entries, of the largest batch over those of an average one up to which batches share a copy."""

ALIGN = 256
"""Bytes at a multiple of which a tensor begins, as GPUs read them best."""


def shared_room(problem: Problem, batches: Batches) -> Room | None:
    """Room for every fixed batch of a run; None where they share no copy."""
    clusters = batches.clusters
    # products of bfloat16 rows read a converted copy of the values
    if not batches.kept or problem.dtype == torch.bfloat16 or not ignores_padding(problem, batches):
        return None
    modules = list(problem.model.modules())
    norms = {module for module in modules if isinstance(module, nn.BatchNorm1d)}
    applied = {module.norm for module in modules if isinstance(module, Activation) and type(module.norm) is BatchNorm}
    if not norms <= applied or (norms and batches.method.traits.batch_norm == "pooled"):
        return None  # statistics that would count padding
    first = batches.make(clusters.core(clusters.epoch(0)[0]), 1.0)
    if first.num_halo or not all(isinstance(op, Exact | Precomputed) for op in first.operators):
        return None
    batch = clusters.parts.to(problem.device) // clusters.per_batch
    rows, entries = batch.bincount(), torch.zeros(clusters.num_batches, dtype=torch.int64, device=problem.device)
    for row, some in entry_chunks(problem.P):
        own = batch[row]
        entries += own[own == batch[problem.P.indices[some].long()]].bincount(minlength=clusters.num_batches)
    sizes = torch.stack([rows, entries])
    if bool((sizes.amax(1) > WASTE * sizes.double().mean(1)).any()) or (norms and bool(rows.amin() < 2)):
        return None  # a single row has no statistics
    most_rows, most_entries = sizes.amax(1).tolist()
    return Room(most_rows + 1, 0, {("core", "core"): most_entries})


class SharedCopy:
    """The copy, and what is copied to it. A batch is cut out of the graph at its first visit.

    What differs between batches lies one behind the other in one tensor, so that one transfer brings all of it.
    """

    def __init__(self, batches: Batches, room: Room) -> None:
        clusters, problem = batches.clusters, batches.problem
        assert isinstance(problem.X, Tensor)
        self._X, self._offsets, self._clusters = problem.X, clusters.offsets[:: clusters.per_batch], clusters
        self._measured = batches.method.traits.measures_every
        none, weight = clusters.num_parts, float(clusters.num_batches)
        fixed = sorted(clusters.epoch(0))
        rows = [[*parts, *[none] * (clusters.per_batch - len(parts))] for parts in fixed]
        self._parts_of = torch.tensor(rows, device=problem.device)
        self._places = torch.arange(len(fixed), device=problem.device)
        self._sizes = torch.tensor(self._offsets + clusters.offsets[-1:], device=problem.device).diff()
        self._parts = self._parts_of[0].clone()
        self._padded = Padded(batches, room)  # kept: the recording reads its memory
        self._cut = recorded(problem.device, lambda: self._padded.cut(self._parts, 0)[0])
        cut = self._cut()
        assert isinstance(cut.inputs, Tensor)
        self._inputs, like = cut.inputs, [self._places[:1], self._sizes[:1], *_tensors(cut)]
        self._to, views = _packed(like)
        copy = _with_tensors(cut, dict(zip(map(id, like), views, strict=True)))
        convert_matrices(copy, problem.dtype)
        self._copies = [replace(copy, slot=slot, num_real=views[1]) for slot in range(2)]
        for each in self._copies:
            vars(each)["place"] = views[0]
        self._from: dict[Batch, Tensor] = {}
        self._batches = {}
        for slot, parts in enumerate(fixed):
            core = clusters.core(parts)
            assert isinstance(core, slice)
            whole = partial(batches.make, core, weight, slot)
            self._batches[parts] = DrawnBatch(whole, num_rows(core), 0, slot, weight, problem.graph, fixed=True)

    def epoch(self, epoch: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch, from the ``start``-th on."""
        return (self._batches[parts] for parts in self._clusters.epoch(epoch)[start:])

    def copy_of(self, batch: Batch) -> Batch | None:
        """The copy, with this batch in it; None for a batch that is computed as it is. Of two views of the copy, one is
        for batches whose step measures something."""
        if not isinstance(batch, DrawnBatch):
            return None
        slot, c = batch.slot, batch.num_core
        if batch not in self._from:
            self._parts.copy_(self._parts_of[slot])
            found = [self._places[slot : slot + 1], self._sizes[slot : slot + 1], *_tensors(self._cut())]
            self._from[batch], views = _packed(found)
            for mine, other in zip(views, found, strict=True):
                mine.copy_(other)
        self._to.copy_(self._from[batch])
        first = self._offsets[slot]
        self._inputs[:c].copy_(self._X[first : first + c])
        return self._copies[slot % self._measured > 0]


def _tensors(batch: Batch) -> list[Tensor]:
    """What differs between batches, but the inputs, which are rows of a matrix, and the slot."""
    forward = [op.forward for op in batch.operators if isinstance(op, Aggregation)]
    matrices = dict.fromkeys(each for P in forward for each in (P, P.t()))
    return [batch.core, batch.y, batch.labelled, *(part for P in matrices for part in (P.indptr, P.indices, P.data))]


def _with_tensors(batch: Batch, given: dict[int, Tensor]) -> Batch:
    """The batch with other tensors in the places of :func:`_tensors`, by the identity of these."""

    @cache
    def matrix(P: CSR) -> CSR:
        return CSR(given[id(P.indptr)], given[id(P.indices)], given[id(P.data)], P.num_cols, symmetric=P.symmetric)

    def operator(op: Aggregation | Precomputed) -> Aggregation | Precomputed:
        if isinstance(op, Precomputed):
            return op
        P = matrix(op.forward)
        if not P.symmetric:
            P._cache["t",] = matrix(op.forward.t())
        return Aggregation.exact(P)

    core = given[id(batch.core)]
    return replace(
        batch, core=core, rows=core, halo=core[:0], n_id=core, y=given[id(batch.y)], labelled=given[id(batch.labelled)],
        operators=tuple(operator(op) for op in batch.operators),
    )  # fmt: skip


def _packed(like: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Room for tensors of these shapes in one tensor of bytes, and its views with these shapes."""
    starts = list(accumulate((-(-each.nbytes // ALIGN) * ALIGN for each in like), initial=0))
    memory = torch.empty(starts[-1], dtype=torch.uint8, device=like[0].device)
    pieces = (memory[start : start + each.nbytes] for start, each in zip(starts, like, strict=False))
    return memory, [piece.view(each.dtype).view(each.shape) for piece, each in zip(pieces, like, strict=True)]
