"""What happens before and after a step.

Batches are drawn ahead, rows are prefetched, steps are recorded as CUDA graphs, and what a step pushed is written back:

    draw batch k + 1     on a GPU, beside step k, where batches are not kept
    prefetch k + 1       once step k is launched
    step k + 1           begin, run or replay, end
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmc.engine.batches import Batches
from lmc.engine.cuda_graphs import Compute, Recorder
from lmc.engine.layered import Estimate
from lmc.engine.padding import Padding, can_pad
from lmc.engine.prefetch import ConcurrentDraw, DrawAhead, Lookahead
from lmc.engine.shared_copy import SharedCopy, shared_room
from lmc.graph import Batch
from lmc.methods.protocol import Tables
from lmc.stores import Rows, Staging


class Pipeline:
    """Runs steps one after the other with as little waiting between them as possible.

    Args:
        batches: makes the batches; with a schedule of graphs, those of the whole graph.
        tables: the tables that steps read and write.
        looks_ahead: whether the batches of an epoch may be drawn before the epoch before has ended.
    """

    def __init__(self, batches: Batches, tables: Tables, generator: torch.Generator, looks_ahead: bool) -> None:
        problem = batches.problem
        self._batches, self._looks_ahead = batches, looks_ahead
        every = [table for layers in tables.values() for table in layers.values()]
        self.staging = Staging(every, problem.stored, problem.device, bracketed=problem.kind.bracketed)
        recorded = problem.kind.records(problem)
        alone = problem.exchange is None and not self.staging.active
        early = alone and problem.kind.makes_nothing_in_steps(problem)
        self.recorder = Recorder(problem, generator, self.staging, early) if recorded else None
        """Records the steps of fixed batches; None where they are not recorded."""
        copied = recorded and alone and looks_ahead
        self._padding = Padding(batches) if copied and can_pad(problem, batches) else None
        room = shared_room(problem, batches) if copied else None
        self._shared = None if room is None else SharedCopy(batches, room)
        self._source: Lookahead | None = None
        self._epoch = 0
        self._next_epoch: tuple[int, Lookahead] | None = None
        self._prefetched: Batch | None = None

    def epoch(self, epoch: int, start: int, batches: Batches) -> Iterator[Batch]:
        ready, self._next_epoch, self._epoch = self._next_epoch, None, epoch
        begun = ready is not None and ready[0] == epoch and start == 0
        self._source = ready[1] if ready and begun else self._draw(batches, epoch, start)
        yield from self._source

    def _draw(self, batches: Batches, epoch: int, start: int) -> Lookahead:
        """The batches of an epoch; on a GPU those that are not kept are drawn beside steps."""
        problem, traits = batches.problem, batches.method.traits
        if self._padding is not None:
            return DrawAhead(self._padding.epoch(epoch, start), problem.device, self._padding.thread)
        drawn = (self._shared or batches).epoch(epoch, start)
        # cutting a batch for a model with its own forward pass may call its convolutions, which a step also does
        cut_apart = self._looks_ahead and not batches.kept and problem.kind.reads_batches_only
        concurrent = (traits.draws_concurrently or cut_apart) and problem.kind.bracketed
        on_gpu = problem.device.type == "cuda"
        return ConcurrentDraw(drawn, problem.device) if concurrent and on_gpu else Lookahead(drawn)

    def step(self, batch: Batch, compute: Compute) -> Estimate:
        """Run one step, or replay its recording, and start to fetch the rows of the next one."""
        # a recording repeats the dtypes that it was made with
        autocast = torch.is_autocast_enabled(self._batches.problem.device.type)
        copies = None if autocast else self._padding or self._shared
        computed = batch if copies is None else copies.copy_of(batch) or batch
        recorder = self.recorder if computed.fixed and not autocast else None
        if self._source is not None:
            self._source.step_begins()
        self.prefetch(batch)
        self.staging.begin(fixed=recorder is not None)
        estimate = compute(computed) if recorder is None else recorder(computed, compute)
        with self.staging.together():
            self.staging.end()
            if self._source is not None:
                self._source.step_ends()
            if self._padding is not None:
                self._padding.used(batch)
                if batch.slot == self._batches.num_batches - 1:
                    self._next_epoch = self._epoch + 1, self._draw(self._batches, self._epoch + 1, 0)
            self._look_ahead()
        return estimate

    def trials(self) -> list[Batch]:
        """One batch of every kind that steps run on, for trial steps (:func:`lmc.engine.cuda_graphs.warm_up`)."""
        return [next(self._batches.epoch(0, 0))] if self._shared is None else self._shared.trials()

    def prefetch(self, batch: Batch) -> None:
        """Start to fetch the rows that a step on ``batch`` reads, unless that has happened."""
        if not self.staging.active or (self._prefetched is batch and self.staging.in_flight):
            return
        self._prefetched = batch
        self.staging.prefetch(*self._rows_read(batch))

    def _rows_read(self, batch: Batch) -> tuple[tuple[Rows, ...], Rows]:
        """The rows of the tables, and of the features, that a step reads."""
        batches = self._batches
        return batches.problem.kind.rows_read(batches.method, batch), batches.input_rows(batch)

    def _look_ahead(self) -> None:
        """Fetch the rows of the next step; they include what this step pushed."""
        self._prefetched = None
        if self._source is not None and self.staging.active and (following := self._following()) is not None:
            rows, inputs = self._rows_read(following)
            self.staging.expect(*rows, inputs, following.rows)
            self.prefetch(following)

    def _following(self) -> Batch | None:
        """The batch of the next step, of this epoch or of the next one."""
        assert self._source is not None
        following = self._source.peek()
        if following is not None or not self._looks_ahead:
            return following
        if self._next_epoch is None or self._next_epoch[0] != self._epoch + 1:
            self._next_epoch = self._epoch + 1, self._draw(self._batches, self._epoch + 1, 0)
        return self._next_epoch[1].peek()
