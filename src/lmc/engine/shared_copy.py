"""Fixed batches at fixed addresses, so that one recorded step serves all of them.

Recording a step takes the host several milliseconds; in a short training, all recordings take longer than all steps. So
there is one copy of fixed size (:mod:`lmc.graph.padded`), to which a batch is copied before its step.

- Batches without a halo have nearly the same size, and so have those whose method draws as many halo rows as core rows
  (``Setup.draws_halo``). They share the copy for good.
- Batches with a whole halo, which holds all neighbours of the core, differ more in size, and their padding is computed
  in every step. Where an epoch has many short steps, recording all of them takes as long as many epochs. They then
  share the copy at first, and get recordings of their own after as many epochs as it takes for these to pay off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor, nn

from lmc.engine.batches import Batches, convert_matrices
from lmc.engine.fixed_cuts import CountedCut, PaddedCut, bounds_of, tensors_of, with_tensors
from lmc.engine.padding import DrawnBatch, ignores_padding, room_seen
from lmc.engine.problem import Problem
from lmc.graph import Aggregation, Batch, Room, entry_chunks
from lmc.models.activation import Activation, BatchNorm
from lmc.sampling import Clusters

WASTE = 1.15
"""Batches without a halo, or with drawn halo rows, share a copy if the largest batch has at most this many times the
rows, and the entries, of an average one."""

MANY, SHORT = 16, 4e7
"""Batches with a whole halo share the copy at first where there are so many of them, and where their rows, times the
widths of all layers, are at most so many numbers. With fewer batches all recordings take about 0.1 s; a longer step
loses more by its padding than a recording takes."""

HALO_WASTE = 2.0
"""Batches with a whole halo share no copy that has more than this many times the rows, or the entries, of an average
one."""

FIRST_OWN, SPREAD = 64, 16
"""The epoch from which on they get recordings of their own, a few in each of so many epochs. On one H200 (arxiv-like in
20 and 80 batches, GAS, LMC4Conv and CMC) recordings take as long as the padding of 60 to 140 epochs."""

ALIGN = 256
"""Bytes at a multiple of which a tensor begins, as GPUs read them best."""


def shared_room(problem: Problem, batches: Batches) -> Room | None:
    """Room for fixed batches of a run; None where they share no copy."""
    clusters = batches.clusters
    # products of bfloat16 rows read a converted copy of the values
    if not batches.kept or problem.dtype == torch.bfloat16 or not ignores_padding(problem, batches):
        return None
    drawn, cores = batches.method.setup.draws_halo, torch.tensor(bounds_of(batches)).diff()
    if not _statistics_ignore_padding(batches, drawn, int(cores.amin())):
        return None
    if batches.tables and not batches.method.traits.grad_from_all_rows:  # GAS, LMC4Conv, CMC: tables of a whole halo
        return _room_with_halo(batches, int(cores.amax()) + 1)
    sizes = _sizes_with_halo(batches) if drawn else _sizes(problem, clusters)
    if bool((sizes.amax(1) > WASTE * sizes.double().mean(1)).any()):
        return None
    core, halo, entries = sizes.amax(1).tolist()
    others = dict.fromkeys([("core", "halo"), ("halo", "core"), ("halo", "halo")], 0)
    return Room(core + 1, halo + 1 if drawn else 0, {("core", "core"): entries, **others})


def _statistics_ignore_padding(batches: Batches, drawn: bool, smallest: int) -> bool:
    """Whether no batch norm counts rows of padding, of which it is told only by the activation that applies it.

    Args:
        drawn: whether halo rows are drawn.
        smallest: the core rows of the smallest batch; a single row has no statistics.
    """
    modules = list(batches.problem.model.modules())
    norms = {module for module in modules if isinstance(module, nn.BatchNorm1d)}
    applied = {module.norm for module in modules if isinstance(module, Activation) and type(module.norm) is BatchNorm}
    pooled = batches.method.traits.batch_norm == "pooled"
    return not norms or (norms <= applied and not drawn and not pooled and smallest >= 2)


def _room_with_halo(batches: Batches, core: int) -> Room | None:
    """Room for batches of at most ``core`` rows and a whole halo; None where they share no copy."""
    clusters, widths = batches.clusters, sum(batches.problem.model.widths)
    if clusters.num_batches < MANY:
        return None
    first = batches.make(clusters.core(clusters.epoch(0)[0]), 1.0)
    if first.ext.numel() * widths > SHORT:
        return None
    room, seen = room_seen(batches, core, 1.0)
    rows, most = room.core + room.halo, HALO_WASTE * seen.double().mean(0)
    wasteful = rows > most[0] or room.of(rows, rows) > most[1]
    return None if wasteful or rows * widths > SHORT else room


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
    """The copy, and what is copied to it. Batches are cut out of the graph when the first epoch begins.

    What differs between batches lies one behind the other in one tensor, so that one transfer brings all of it.
    """

    def __init__(self, batches: Batches, room: Room) -> None:
        problem, drawn = batches.problem, batches.method.setup.draws_halo
        assert isinstance(problem.X, Tensor)
        self._whole, self._X, self._bounds = batches, problem.X, bounds_of(batches)
        self._measured = batches.method.traits.measures_every
        self._places = torch.arange(batches.num_batches, device=problem.device)
        self._cut = PaddedCut(batches, room)
        self._own = CountedCut(batches) if room.halo and not drawn else None
        """Cuts batches that get recordings of their own; None where all share the copy for good."""
        cut, num_real = self._cut(0)
        assert isinstance(cut.inputs, Tensor)
        self._inputs, like = cut.inputs, [self._places[:1], num_real, *tensors_of(cut)]
        self._to, views = _packed(like)
        copy = with_tensors(cut, dict(zip(map(id, like), views, strict=True)))
        convert_matrices(copy, problem.dtype)
        self._copies = [replace(copy, slot=slot, num_real=views[1]) for slot in range(2)]
        for each in self._copies:
            vars(each).update(place=views[0], ext=views[2])
        self._from: dict[Batch, Tensor] = {}
        self._counted: dict[Batch, list[int]] = {}
        self._batches: dict[int, Batch] = {}

    def epoch(self, epoch: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch, from the ``start``-th on."""
        clusters = self._whole.clusters
        slots = [parts[0] // clusters.per_batch for parts in clusters.epoch(epoch)]
        own = {slot for slot in slots if self._own is not None and epoch >= FIRST_OWN + slot % SPREAD}
        self._share([slot for slot in sorted(slots) if slot not in self._batches])
        for slot in slots[start:]:
            batch = self._batches[slot]
            if slot in own and batch in self._from:
                self._batches[slot] = batch = self._cut_own(slot, batch)
            yield batch

    def trials(self) -> list[Batch]:
        """One batch of every kind that steps run on: a batch as it is, the shared copy, or both."""
        copy = None
        for slot in range(self._whole.num_batches):  # the first batch that fits the copy, which is nearly always slot 0
            self._share([slot])
            copy = self.copy_of(self._batches[slot])
            if copy is not None:
                break
        whole = [self._as_it_is(0)] if copy is None or self._own is not None else []
        return [*whole, *([] if copy is None else [copy])]

    def copy_of(self, batch: Batch) -> Batch | None:
        """The copy, with this batch in it; None for a batch that is computed as it is. There are two views of the
        copy; one of them is for batches whose step measures something."""
        if batch not in self._from:
            return None
        slot, c = batch.slot, batch.num_core
        self._to.copy_(self._from[batch])
        first, copy = self._bounds[slot], self._copies[slot % self._measured > 0]
        if copy.num_halo:
            rows = copy.ext[: len(self._inputs)].clamp(max=len(self._X) - 1)
            torch.index_select(self._X, 0, rows, out=self._inputs)
        else:
            self._inputs[:c].copy_(self._X[first : first + c])
        return copy

    def _share(self, slots: list[int]) -> None:
        """Cut batches for the copy; those that do not fit are computed as they are."""
        found = {}
        for slot in slots:
            cut, num_real = self._cut(slot)
            tensors = [self._places[slot : slot + 1], num_real, *tensors_of(cut)]
            found[slot], views = _packed(tensors)
            torch._foreach_copy_(views, tensors)
        graph, weight = self._whole.problem.graph, float(self._whole.num_batches)
        for (slot, packed), sizes in zip(found.items(), self._cut.sizes(slots) if slots else [], strict=True):
            if sizes is None:
                self._batches[slot] = replace(self._as_it_is(slot), fixed=True)
                continue
            first, stop = self._bounds[slot : slot + 2]
            cut_again = partial(self._whole.make, slice(first, stop), weight, slot)
            batch = DrawnBatch(cut_again, (stop - first, sizes[0]), slot, weight, graph, fixed=True)
            self._batches[slot], self._from[batch], self._counted[batch] = batch, packed, sizes

    def _cut_own(self, slot: int, shared: Batch) -> Batch:
        """The batch without padding, and no longer among those that share the copy."""
        assert self._own is not None
        del self._from[shared]
        return replace(self._own(slot, self._counted.pop(shared)), fixed=True)

    def _as_it_is(self, slot: int) -> Batch:
        """The batch, cut out of the graph, for which the host waits."""
        return self._whole.make(slice(*self._bounds[slot : slot + 2]), float(self._whole.num_batches), slot)


def _packed(like: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Room for tensors of these shapes in one tensor of bytes, and its views with these shapes."""
    starts = list(accumulate((-(-each.nbytes // ALIGN) * ALIGN for each in like), initial=0))
    memory = torch.empty(starts[-1], dtype=torch.uint8, device=like[0].device)
    pieces = (memory[start : start + each.nbytes] for start, each in zip(starts, like, strict=False))
    return memory, [piece.view(each.dtype).view(each.shape) for piece, each in zip(pieces, like, strict=True)]
