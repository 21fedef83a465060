"""Fixed batches of nearly the same size, at fixed addresses, so that one recorded step serves all of them.

Recording a step takes the host several milliseconds; in a short training, all recordings take longer than all steps.
Batches without a halo have nearly the same size, and so have those whose method draws as many halo rows as core rows
(``Setup.draws_halo``). There is one copy of fixed size (:mod:`lmc.graph.padded`), to which a batch is copied before its
step. With a whole halo there is more padding, which is computed in every step, so that recordings soon pay: every batch
has one of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmc.engine.batches import Batches, convert_matrices
from lmc.engine.padding import DrawnBatch, Padded, ignores_padding, padded_batch, recorded
from lmc.engine.problem import Problem
from lmc.graph import CSR, Aggregation, Batch, Precomputed, Room, entry_chunks, with_padding
from lmc.graph.product import Exact
from lmc.kernels.packed import num_rows
from lmc.methods.protocol import Layout
from lmc.models.activation import Activation, BatchNorm
from lmc.sampling import Clusters

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
    drawn = batches.method.setup.draws_halo
    if not norms <= applied or (norms and (drawn or batches.method.traits.batch_norm == "pooled")):
        return None  # statistics that would count padding
    first = batches.make(clusters.core(clusters.epoch(0)[0]), 1.0)
    if (first.num_halo and not drawn) or not all(isinstance(op, Exact | Precomputed) for op in first.operators):
        return None
    sizes = _sizes_with_halo(batches) if drawn else _sizes(problem, clusters)
    if bool((sizes.amax(1) > WASTE * sizes.double().mean(1)).any()) or (norms and bool(sizes[0].amin() < 2)):
        return None  # a single row has no statistics
    core, halo, entries = sizes.amax(1).tolist()
    others = dict.fromkeys([("core", "halo"), ("halo", "core"), ("halo", "halo")], 0)
    return Room(core + 1, halo + 1 if drawn else 0, {("core", "core"): entries, **others})


def _sizes(problem: Problem, clusters: Clusters) -> Tensor:
    """Core rows, halo rows, of which there are none, and entries of every fixed batch, [3, batches]."""
    batch = clusters.parts.to(problem.device) // clusters.per_batch
    rows, entries = batch.bincount(), torch.zeros(clusters.num_batches, dtype=torch.int64, device=problem.device)
    for row, some in entry_chunks(problem.P):
        own = batch[row]
        entries += own[own == batch[problem.P.indices[some].long()]].bincount(minlength=clusters.num_batches)
    return torch.stack([rows, torch.zeros_like(rows), entries])


def _sizes_with_halo(batches: Batches) -> Tensor:
    """The same where batches have halo rows."""
    found = []
    for batch in batches.fixed():
        entries = [op.forward.nnz for op in batch.operators if isinstance(op, Aggregation)]
        found.append([batch.num_core, batch.num_halo, max(entries, default=0)])
    return torch.tensor(found).t()


class SharedCopy:
    """The copy, and what is copied to it. A batch is cut out of the graph at its first visit.

    What differs between batches lies one behind the other in one tensor, so that one transfer brings all of it.
    """

    def __init__(self, batches: Batches, room: Room) -> None:
        clusters, problem = batches.clusters, batches.problem
        assert isinstance(problem.X, Tensor)
        self._X, self._offsets, self._clusters = problem.X, clusters.offsets[:: clusters.per_batch], clusters
        self._measured = batches.method.traits.measures_every
        fixed, weight = sorted(clusters.epoch(0)), float(clusters.num_batches)
        self._places = torch.arange(len(fixed), device=problem.device)
        self._sizes = torch.tensor(self._offsets + clusters.offsets[-1:], device=problem.device).diff()
        self._cut = (_PaddedBatches if room.halo else _RecordedCut)(batches, room)
        cut = self._cut(0)
        assert isinstance(cut.inputs, Tensor)
        self._inputs, like = cut.inputs, [self._places[:1], self._sizes[:1], *_tensors(cut)]
        self._to, views = _packed(like)
        copy = _with_tensors(cut, dict(zip(map(id, like), views, strict=True)))
        convert_matrices(copy, problem.dtype)
        self._copies = [replace(copy, slot=slot, num_real=views[1]) for slot in range(2)]
        for each in self._copies:
            vars(each).update(place=views[0], ext=views[2])
        self._from: dict[Batch, Tensor] = {}
        self._batches = {}
        for slot, parts in enumerate(fixed):
            core = clusters.core(parts)
            assert isinstance(core, slice)
            whole, halo = partial(batches.make, core, weight, slot), self._cut.num_halo(slot)
            self._batches[parts] = DrawnBatch(whole, num_rows(core), halo, slot, weight, problem.graph, fixed=True)

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
            found = [self._places[slot : slot + 1], self._sizes[slot : slot + 1], *_tensors(self._cut(slot))]
            self._from[batch], views = _packed(found)
            for mine, other in zip(views, found, strict=True):
                mine.copy_(other)
        self._to.copy_(self._from[batch])
        first, copy = self._offsets[slot], self._copies[slot % self._measured > 0]
        if copy.num_halo:
            rows = copy.ext[: len(self._inputs)].clamp(max=len(self._X) - 1)
            torch.index_select(self._X, 0, rows, out=self._inputs)
        else:
            self._inputs[:c].copy_(self._X[first : first + c])
        return copy


class _RecordedCut:
    """Cuts fixed batches without a halo out of the graph, always into the same memory, without a number on the host."""

    def __init__(self, batches: Batches, room: Room) -> None:
        clusters, device = batches.clusters, batches.problem.device
        fixed, none = sorted(clusters.epoch(0)), clusters.num_parts
        rows = [[*parts, *[none] * (clusters.per_batch - len(parts))] for parts in fixed]
        self._parts_of = torch.tensor(rows, device=device)
        self._parts = self._parts_of[0].clone()
        self._padded = Padded(batches, room)  # kept: the recording reads its memory
        self._replay = recorded(device, lambda: self._padded.cut(self._parts, 0)[0])

    def __call__(self, slot: int) -> Batch:
        self._parts.copy_(self._parts_of[slot])
        return self._replay()

    def num_halo(self, slot: int) -> int:
        return 0


class _PaddedBatches:
    """Pads batches with halo rows, which were cut out of the graph before."""

    def __init__(self, batches: Batches, room: Room) -> None:
        self._problem, self._room, self._fixed = batches.problem, room, list(batches.fixed())

    def __call__(self, slot: int) -> Batch:
        batch, room, n = self._fixed[slot], self._room, self._problem.graph.num_nodes
        rows = ((batch.core, room.core), (batch.halo, room.halo))
        ext = torch.cat([F.pad(each, (0, size - each.numel()), value=n) for each, size in rows])
        fill = partial(with_padding, num_core=batch.num_core, padding=ext == n, room=room)

        @cache
        def operator(op: Aggregation | Precomputed) -> Aggregation | Precomputed:
            if isinstance(op, Precomputed):
                return Precomputed(ext.numel())
            P = fill(op.forward)
            if not P.symmetric:
                P._cache["t",] = fill(op.forward.t())
            return Aggregation.exact(P)

        operators = tuple(operator(op) for op in batch.operators)
        layout = Layout(ext[room.core :], operators)
        return padded_batch(self._problem, ext, room.core, layout, len(self._fixed), slot)

    def num_halo(self, slot: int) -> int:
        return self._fixed[slot].num_halo


def _tensors(batch: Batch) -> list[Tensor]:
    """What differs between batches, but the inputs, which are rows of a matrix, and the slot."""
    forward = [op.forward for op in batch.operators if isinstance(op, Aggregation)]
    matrices = dict.fromkeys(each for P in forward for each in (P, P.t()))
    return [batch.ext, batch.y, batch.labelled, *(part for P in matrices for part in (P.indptr, P.indices, P.data))]


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

    ext, c = given[id(batch.ext)], batch.num_core
    return replace(
        batch, core=ext[:c], rows=ext[:c], halo=ext[c:], n_id=ext, y=given[id(batch.y)],
        labelled=given[id(batch.labelled)], operators=tuple(operator(op) for op in batch.operators),
    )  # fmt: skip


def _packed(like: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Room for tensors of these shapes in one tensor of bytes, and its views with these shapes."""
    starts = list(accumulate((-(-each.nbytes // ALIGN) * ALIGN for each in like), initial=0))
    memory = torch.empty(starts[-1], dtype=torch.uint8, device=like[0].device)
    pieces = (memory[start : start + each.nbytes] for start, each in zip(starts, like, strict=False))
    return memory, [piece.view(each.dtype).view(each.shape) for piece, each in zip(pieces, like, strict=True)]
