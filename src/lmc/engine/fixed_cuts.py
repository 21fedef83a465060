"""How fixed batches are cut out of the graph where they share a copy (:mod:`lmc.engine.shared_copy`).

A batch is cut to the size of the copy, with padding, by a recording. Before it gets a recording of its own it is cut
once more without padding; its sizes are then known, so that the host does not wait for the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lmc.engine.batches import Batches, convert_matrices
from lmc.engine.padding import Padded, recorded, with_room
from lmc.graph import CSR, Aggregation, Batch, Counted, Precomputed, Room
from lmc.graph.product import Exact


class PaddedCut:
    """Cuts fixed batches with padding, always into the same memory, while the host does not wait for the GPU.

    Sizes of batches without a halo, or with one that was drawn before, are known; those of batches with a whole halo
    are counted by their cut.
    """

    def __init__(self, batches: Batches, room: Room) -> None:
        clusters, device = batches.clusters, batches.problem.device
        fixed, none = sorted(clusters.epoch(0)), clusters.num_parts
        rows = [[*parts, *[none] * (clusters.per_batch - len(parts))] for parts in fixed]
        self._parts_of = torch.tensor(rows, device=device)
        self._parts = self._parts_of[0].clone()
        self._num_core = torch.tensor(bounds_of(batches), device=device).diff()
        self._drawn = [batch.halo for batch in batches.fixed()] if batches.method.setup.draws_halo else None
        self._none, self._halo = batches.problem.num_nodes, self._parts.new_empty(room.halo)
        halo = None if self._drawn is None else self._halo
        self._found: dict[int, Tensor] = {}
        self._padded = Padded(batches, room)  # kept: the recording reads its memory
        self._set(0)
        self._replay = recorded(device, lambda: self._padded.cut(self._parts, 0, halo))
        _, _, self._limits = self._replay()
        # a halo is listed before blocks are cut; a layout may ask for one where there is no room
        self._counts = self._drawn is None and self._limits[0] == room.halo

    def __call__(self, slot: int) -> tuple[Batch, Tensor]:
        """The batch with padding, and the numbers of its core rows, and of its halo rows, that are not padding."""
        self._set(slot)
        batch, needed, _ = self._replay()
        num_real = self._num_core[slot : slot + 1]
        if self._counts:
            self._found[slot] = needed.clone()
            num_real = torch.cat([num_real, needed[:1]]) if self._halo.numel() else num_real
        return batch, num_real

    def _set(self, slot: int) -> None:
        self._parts.copy_(self._parts_of[slot])
        if self._drawn is not None:
            halo = self._drawn[slot]
            self._halo.fill_(self._none)[: halo.numel()] = halo

    def sizes(self, slots: Sequence[int]) -> list[list[int] | None]:
        """The number of halo rows of batches that have been cut, and where it was counted, the entries of every block;
        None for a batch that does not fit. The host waits once for all that were counted."""
        if not self._counts:
            return [[0 if self._drawn is None else self._drawn[slot].numel()] for slot in slots]
        counted = torch.stack([self._found.pop(slot) for slot in slots]).tolist()
        # a single halo row has no statistics
        fits = (
            each[0] > 1 and all(n <= limit for n, limit in zip(each, self._limits, strict=True)) for each in counted
        )
        return [each if fitting else None for each, fitting in zip(counted, fits, strict=True)]


class CountedCut:
    """Cuts fixed batches without padding, whose sizes :class:`PaddedCut` has counted."""

    def __init__(self, batches: Batches) -> None:
        self._room, self._counts = Counted(), list[tuple[Tensor, int]]()
        self._batches, self._bounds = with_room(batches, self._room, self._counts), bounds_of(batches)

    def __call__(self, slot: int, sizes: list[int]) -> Batch:
        rows, problem = slice(*self._bounds[slot : slot + 2]), self._batches.problem
        self._room.sizes = iter(sizes)
        core = torch.arange(rows.start, rows.stop, device=problem.device)
        batch = self._batches.make(core, float(self._batches.num_batches), slot)
        convert_matrices(batch, problem.dtype)  # which cuts the blocks that a step reads
        self._counts.clear()
        return replace(with_tensors(batch, {}), rows=rows)


def bounds_of(batches: Batches) -> list[int]:
    """Where the core rows of fixed batches begin, and where the last ones end."""
    clusters = batches.clusters
    return [*clusters.offsets[: -1 : clusters.per_batch], clusters.offsets[-1]]


def tensors_of(batch: Batch) -> list[Tensor]:
    """What differs between batches, except the inputs, which are rows of a matrix, and the slot."""
    coefficients = [] if batch.coefficients is None else [batch.coefficients]
    of_matrices = [part for P in _matrices_of(batch) for part in (P.indptr, P.indices, P.data)]
    found = [batch.ext, batch.y, batch.labelled, *coefficients, *of_matrices]
    return list({id(each): each for each in found}.values())


def with_tensors(batch: Batch, given: Mapping[int, Tensor]) -> Batch:
    """The batch with other tensors in the places of :func:`tensors_of`, by the identity of these; its matrices are
    plain ones."""

    def at(tensor: Tensor) -> Tensor:
        return given.get(id(tensor), tensor)

    made = {
        P: CSR(at(P.indptr), at(P.indices), at(P.data), P.num_cols, symmetric=P.symmetric) for P in _matrices_of(batch)
    }
    for P, copy in made.items():
        for key, cut in _cut_beside(P).items():
            found = tuple(made[each] for each in cut)
            copy._cache[key] = found if isinstance(P._cache[key], tuple) else found[0]

    def operator(op: Aggregation | Precomputed) -> Aggregation | Precomputed:
        if isinstance(op, Precomputed):
            return op
        return Exact(made[op.forward]) if isinstance(op, Exact) else Aggregation(made[op.forward], made[op.backward])

    ext, c, beta = at(batch.ext), batch.num_core, batch.coefficients
    return replace(
        batch, core=ext[:c], rows=ext[:c], halo=ext[c:], n_id=at(batch.n_id), y=at(batch.y),
        labelled=at(batch.labelled), coefficients=None if beta is None else at(beta),
        operators=tuple(map(operator, batch.operators)),
    )  # fmt: skip


def _matrices_of(batch: Batch) -> list[CSR]:
    """The matrices of a batch, and what was cut together with them."""
    found: dict[CSR, None] = {}
    left = [P for op in batch.operators if isinstance(op, Aggregation) for P in (op.forward, op.backward)]
    while left:
        P = left.pop()
        if P not in found:  # a matrix and its transpose may each be in the cache of the other
            found[P] = None
            left += [each for cut in _cut_beside(P).values() for each in cut]
    return list(found)


def _cut_beside(P: CSR) -> dict[object, tuple[CSR, ...]]:
    """What was cut together with a matrix, its transpose and blocks of it, by the keys of its cache."""
    kept = {key: made if isinstance(made, tuple) else (made,) for key, made in P._cache.items()}
    return {key: made for key, made in kept.items() if all(isinstance(each, CSR) for each in made)}
