"""Redrawn batches at fixed addresses, so that cutting them, and their steps, can be recorded as CUDA graphs.

There are a few copies of fixed size (:mod:`lmc.graph.padded`), into which batches are cut in turn, so that a few
recordings serve all of them. The step on the copy gives the estimate of the batch itself:

- a row of padding has the number n, which is that of no node: tables on the device have room for it (``PADDING_ROWS``);
- a row of padding is read by no entry of an operator, has no label, and has only zeros as entries, so that its adjoints
  are zero wherever parameters take their gradient from.

Means over the rows of a batch would count padding, so redrawn batches of models with batch norm are not padded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from lmc.engine.batches import Batches, convert_matrices
from lmc.engine.cuda_graphs import no_collection
from lmc.engine.problem import Problem
from lmc.graph import Batch, Counted, Graph, PaddedExtractor, Room, with_empty_row
from lmc.kernels.availability import triton_available
from lmc.methods.protocol import Layout
from lmc.models.activation import normalised_by_batch

T = TypeVar("T")

COPIES = 4
"""Batches that have a copy at the same time: as many steps may be launched before the first of them is done. A multiple
of what ``measures_every`` of the methods may be, since a copy always serves the same kind of step."""
SEEN = 16
"""Batches of the first epoch that are looked at."""
MARGIN = 1.1
"""Room over what the largest of these batches needs; a batch that needs more is not padded."""
CORE_MARGIN = 1.01
"""The same for core rows, of which the largest number is known."""


def can_pad(problem: Problem, batches: Batches) -> bool:
    """Whether steps on redrawn batches can be recorded, where every row is on the device."""
    redrawn = batches.clusters.redraw and problem.placement.keep_batches
    return redrawn and not normalised_by_batch(problem.model) and ignores_padding(problem, batches)


def ignores_padding(problem: Problem, batches: Batches) -> bool:
    """Whether a step on a batch with padding gives the estimate of the batch itself, and makes nothing that outlives
    it. Means over the rows of a batch count padding, unless they are told of it (``Batch.num_real``)."""
    graph, pads = problem.graph, batches.method.traits.pads_batches
    plain = graph.adj.symmetric and problem.P.edge_data is None
    return (
        (pads == "all" or (pads == "plain" and plain))
        and batches.num_batches > 1
        and problem.kind.makes_nothing_in_steps(problem)
        and graph.weight is None
        and triton_available(graph.train)
        and not problem.P.on_host
    )


def _of_whole(name: str) -> Any:
    return property(lambda self: getattr(self.whole, name))


class DrawnBatch(Batch):
    """A batch whose step runs on its copy. It is cut out of the graph, as every other batch, when its rows are
    read, which a step does not do.

    Args:
        sizes: its core rows and its halo rows; None: they are counted when it is cut.
    """

    def __init__(
        self, cut: Callable[[], Batch], sizes: tuple[int, int] | None, slot: int, weight: float, graph: Graph,
        fixed: bool = False,
    ) -> None:  # fmt: skip
        vars(self).update(slot=slot, weight=weight, graph=graph, fixed=fixed, num_real=None, importance=None)
        vars(self).update(_cut=cut, _sizes=sizes)

    num_core = property(lambda self: self.whole.num_core if self._sizes is None else self._sizes[0])
    num_halo = property(lambda self: self.whole.num_halo if self._sizes is None else self._sizes[1])
    core, rows, halo = _of_whole("core"), _of_whole("rows"), _of_whole("halo")
    operators, coefficients, inputs = _of_whole("operators"), _of_whole("coefficients"), _of_whole("inputs")
    y, labelled, n_id = _of_whole("y"), _of_whole("labelled"), _of_whole("n_id")

    @cached_property
    def whole(self) -> Batch:
        """The batch as it is cut out of the graph."""
        return vars(self)["_cut"]()

    def unrecorded(self) -> Batch:
        return self.whole


class Padding:
    """The copies of fixed size, which the batches of an epoch take in turn.

    A copy is free again when the step on it is launched; a batch that finds its copy taken is not padded. The room
    follows from batches of the first epoch, so that it is the same in a run that is resumed.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches, self._problem = batches, batches.problem
        self._taken: dict[Batch, Cut] = {}
        self.thread = ThreadPoolExecutor(1, "lmc-draw")
        """Cuts one batch at a time, those of an epoch that was left early included."""
        padded = Padded(batches, room_of(batches))
        self._cuts = [Cut(padded, slot) for slot in range(min(COPIES, batches.num_batches))]

    def epoch(self, epoch: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch, from the ``start``-th on, each of which is cut into its copy where it fits."""
        batches = self._batches
        weight = float(batches.num_batches)
        self._taken.clear()  # copies that batches of an unfinished epoch hold are free again
        for slot, parts in enumerate(batches.clusters.epoch(epoch)[start:], start):
            whole, cut = partial(batches.make, batches.clusters.core(parts), weight, slot), self._cuts[slot % COPIES]
            # a thread of its own draws batches, and cuts none out of the graph: that memory is the training thread's
            free = cut not in self._taken.values()
            fits, sizes = cut(parts, slot) if free else (False, None)
            batch = DrawnBatch(whole, sizes, slot, weight, self._problem.graph)
            if fits:
                self._taken[batch] = cut
            yield batch

    def copy_of(self, batch: Batch) -> Batch | None:
        """The copy of a batch on which no step was launched; None where it has none."""
        cut = self._taken.get(batch)
        return None if cut is None else cut.copy

    def used(self, batch: Batch) -> None:
        """Note that a step on the copy of a batch is launched: the copy may be overwritten when it is done."""
        cut = self._taken.get(batch)
        if cut is not None:
            cut.used = torch.cuda.current_stream(self._problem.device).record_event()
            del self._taken[batch]


def with_room(batches: Batches, room: Room | Counted, sizes: list[tuple[Tensor, int]]) -> Batches:
    """Makes the same batches with room for so many halo rows and entries; ``sizes`` receives what each needs."""
    problem = batches.problem
    own = tuple(PaddedExtractor(with_empty_row(blocks.P), room, sizes) for blocks in problem.matrices)
    padded = replace(problem, matrices=own, blocks=own[problem.matrices.index(problem.blocks)])
    return Batches(batches.method, padded, batches.clusters, batches.seed, batches.tables)


class Padded:
    """Batches of fixed size, all of which are cut with the same memory, one after the other."""

    def __init__(self, batches: Batches, room: Room) -> None:
        problem, clusters = batches.problem, batches.clusters
        self.room, self.per_batch, self.device = room, clusters.per_batch, problem.device
        self.offsets = (*clusters.offsets, clusters.offsets[-1])
        """Where parts begin, with an empty one at the end."""
        self._starts = torch.tensor(self.offsets, device=problem.device)
        self._sizes: list[tuple[Tensor, int]] = []
        self._batches = with_room(batches, room, self._sizes)

    def cut(self, parts: Tensor, slot: int, halo: Tensor | None = None) -> tuple[Batch, Tensor, list[int]]:
        """The batch of these parts, how many halo rows and entries it needs, and how many there is room for. ``halo``:
        the halo rows, where the method has drawn them before; they are not counted."""
        problem, n = self._batches.problem, self._batches.problem.graph.num_nodes
        self._sizes.clear()
        core = rows_of_parts(parts, self._starts, self.room.core, n)
        layout = self._batches.layout(core, halo=halo)
        ext = torch.cat([core, layout.halo])
        batch = padded_batch(problem, ext, core.numel(), layout, self._batches.num_batches, slot)
        convert_matrices(batch, problem.dtype)
        needed, limits = zip(*self._sizes, strict=True)
        return batch, torch.stack([number.to(torch.int64) for number in needed]), list(limits)


def padded_batch(problem: Problem, ext: Tensor, c: int, layout: Layout, num_batches: int, slot: int) -> Batch:
    """The batch of rows ``ext``, c core rows and halo rows, where the number n marks a row of padding."""
    n, graph, beta = problem.graph.num_nodes, problem.graph, layout.coefficients
    node, real = ext.clamp(max=n - 1), ext < n
    assert isinstance(problem.X, Tensor)
    batch = Batch(
        core=ext[:c], rows=ext[:c], halo=ext[c:], operators=layout.operators, n_id=ext, fixed=True,
        inputs=problem.X[node if problem.model.reads_all_rows else node[: layout.operators[0].num_inputs]],
        y=graph.y[node], labelled=graph.train[node] & real, weight=float(num_batches), slot=slot, graph=graph,
        coefficients=None if beta is None else beta.where(real[c:].unsqueeze(1), 0),
    )  # fmt: skip
    vars(batch)["ext"] = ext  # cached: core and halo are views of it
    return batch


class Cut:
    """Cuts batches into one copy; on a GPU this is recorded.

    Attributes:
        used: on a GPU, the end of the last step on the copy.
    """

    def __init__(self, padded: Padded, slot: int) -> None:
        self._padded, on_gpu = padded, padded.device.type == "cuda"
        self.used: torch.cuda.Event | None = None
        none = len(padded.offsets) - 2
        self._given = torch.full((padded.per_batch + 1,), none, pin_memory=on_gpu)  # the parts, and the slot
        self._given[-1] = slot
        found: Tensor | None = None

        def cut() -> tuple[Batch, Tensor, list[int]]:
            nonlocal found
            given = self._given.to(padded.device, non_blocking=True)
            batch, needed, limits = padded.cut(given[:-1], slot)
            vars(batch)["place"] = given[-1:]
            if not on_gpu:
                return batch, needed, limits
            if found is None:
                found = torch.empty_like(needed, device="cpu", pin_memory=True)
            return batch, found.copy_(needed, non_blocking=True), limits

        self._replay = recorded(padded.device, cut)
        self.copy, self._needed, self._limits = self._replay()

    def __call__(self, parts: tuple[int, ...], slot: int) -> tuple[bool, tuple[int, int]]:
        """Cut the batch of these parts. Whether it fits, and its core rows and halo rows."""
        offsets = self._padded.offsets
        none = [len(offsets) - 2] * (self._padded.per_batch - len(parts))
        self._given.copy_(torch.tensor([*parts, *none, slot]))
        on_gpu = self._padded.device.type == "cuda"
        if on_gpu and self.used is not None:
            torch.cuda.current_stream(self._padded.device).wait_event(self.used)
        self.copy, self._needed, _ = self._replay()
        if on_gpu:
            torch.cuda.current_stream(self._padded.device).synchronize()
        needed = self._needed.tolist()
        fits = all(number <= limit for number, limit in zip(needed, self._limits, strict=True))
        num_core = sum(offsets[k + 1] - offsets[k] for k in parts)
        return fits, (num_core, needed[0] if self.copy.num_halo else 0)


def recorded(device: torch.device, cut: Callable[[], T]) -> Callable[[], T]:
    """Cuts as ``cut`` does; on a GPU always into the same memory, since it is recorded."""
    if device.type != "cuda":
        return cut
    cut()  # compiles the kernels
    graph = torch.cuda.CUDAGraph()
    # in a memory pool of its own: in a shared one, temporary values of another cut would overwrite the copy
    with no_collection(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        made = cut()

    def replay() -> T:
        graph.replay()
        return made

    return replay


def room_of(batches: Batches) -> Room:
    """Room for the batches of a run, which are redrawn."""
    sizes = sorted(torch.tensor(batches.clusters.offsets).diff().tolist())
    return room_seen(batches, int(CORE_MARGIN * sum(sizes[-batches.clusters.per_batch :])) + 1, MARGIN)[0]


def room_seen(batches: Batches, core: int, margin: float) -> tuple[Room, Tensor]:
    """Room for ``core`` core rows, and for ``margin`` times what the first batches need around them; and the rows and
    entries of these batches, [batches, 2]."""
    halo, entries, seen = 0, dict[tuple[str, str], int](), []
    for parts in batches.clusters.epoch(0)[:SEEN]:
        batch = batches.make(batches.clusters.core(parts), 1.0)
        halo = max(halo, batch.num_halo)
        P, c = batches.problem.blocks.induced(batch.ext), batch.num_core
        seen.append((P.num_rows, P.nnz))
        number = torch.bincount(2 * (P.row_index() >= c) + (P.indices >= c), minlength=4).tolist()
        pairs = [(a, b) for a in ("core", "halo") for b in ("core", "halo")]
        for (a, b), found in zip(pairs, number, strict=True):
            for pair in ((a, b), (b, a)):  # a block of the transpose needs as much
                entries[pair] = max(entries.get(pair, 0), int(margin * found) + 1)
    halo = int(margin * halo) + 2 if halo else 0
    return Room(core, halo + (halo == core), entries), torch.tensor(seen)


def rows_of_parts(parts: Tensor, offsets: Tensor, room: int, n: int) -> Tensor:
    """The rows of these parts, one after the other, in a list of ``room`` that is filled up with n."""
    sizes = offsets[parts + 1] - offsets[parts]
    ends = sizes.cumsum(0)
    i = torch.arange(room, device=parts.device)
    part = torch.searchsorted(ends, i, right=True)
    inside = part < parts.numel()
    part = part.clamp(max=parts.numel() - 1)
    return torch.where(inside, offsets[parts[part]] + i - (ends - sizes)[part], n)
