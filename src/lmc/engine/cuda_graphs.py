"""Steps on fixed subgraphs, and sweeps, recorded once as CUDA graphs and replayed.

A small step is bound by the time that its kernels take to launch. Everything that changes between two visits of a
fixed batch changes in place: parameters, tables, and the dropout generator, which a graph advances as an eager step
would. So the whole step, forward, backward and the pushes between, is one recording.

Rows are transferred outside of the recording. They are delivered to one of a few buffers, and there is a recording for
each; what the step pushes is written back afterwards from where the recording left it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmc.engine.batches import convert_matrices
from lmc.engine.exact import SWEEP_BYTES, Chunks, Passes, sweep_chunks, widest_row
from lmc.engine.layered import Estimate
from lmc.engine.problem import Problem
from lmc.graph import Batch
from lmc.kernels.beside import RECORDING, shared_stream
from lmc.models import modes_kept
from lmc.stores import Staging, WriteLogs, free_memory, overwrite

if TYPE_CHECKING:
    from lmc.engine.run import Run

LITTLE = 0.25
"""A recording first frees cached memory where less than this share of the GPU's memory is free."""

Compute = Callable[[Batch], Estimate]
"""Computes the estimate on a batch."""


@dataclass(frozen=True)
class Recording:
    """A step, where it leaves its results, and what it pushes."""

    graph: torch.cuda.CUDAGraph
    grads: list[Tensor]
    loss: Tensor
    logs: WriteLogs


class Recorder:
    """Records the step of every fixed batch, or that of the copy which fixed batches share, for every buffer that its
    rows are delivered to. All recordings share one memory pool, since steps never run at the same time.

    Args:
        early: record a batch when it is first visited; else that visit runs eagerly, since it may make things that
            outlive the step. Libraries must have created their handles (:func:`warm_up`).
    """

    def __init__(self, problem: Problem, generator: torch.Generator, staging: Staging, early: bool) -> None:
        device, self.early, self._dtype = problem.device, early, problem.dtype
        self._generator = generator
        self._staging = staging
        self._pool = torch.cuda.graph_pool_handle()
        self._stream, self._device = shared_stream(device, RECORDING), device
        self._seen: set[Batch] = set()
        self._recorded: dict[object, Recording] = {}
        self._filled = False
        self.recorded_fill: torch.cuda.CUDAGraph | None = None

    def __call__(self, batch: Batch, compute: Compute) -> Estimate:
        """The results of a step, valid until the next step."""
        known = batch in self._seen
        self._seen.add(batch)
        if not self._staging.recordable or not (known or self.early):
            return compute(batch)
        if not known:
            convert_matrices(batch, self._dtype)
        here = batch, self._staging.addresses
        if here not in self._recorded:
            self._recorded[here] = self._record(batch, compute)
        recording = self._recorded[here]
        recording.graph.replay()
        self._staging.replay(recording.logs)
        return recording.grads, recording.loss.clone()

    def _record(self, batch: Batch, compute: Compute) -> Recording:
        with self._recording() as graph:
            grads, loss = compute(batch)
        return Recording(graph, grads, loss, self._staging.logs())

    def fill(self, fill: Callable[[], None]) -> None:
        """Fill tables by ``fill``, which always does the same to the same memory. The first time it runs eagerly, since
        it makes things that outlive it."""
        if not self._filled:
            fill()
            self._filled = True
            return
        if self.recorded_fill is None:
            with self._recording() as graph:
                fill()
            self.recorded_fill = graph
        self.recorded_fill.replay()

    @contextmanager
    def _recording(self) -> Iterator[torch.cuda.CUDAGraph]:
        """Record what is launched within. Unlike within ``torch.cuda.graph``, the host does not wait for the GPU, which
        replays the step before meanwhile, unless rows are transferred beside it."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        free, total = torch.cuda.mem_get_info(self._device)
        limited = torch.cuda.get_per_process_memory_fraction(self._device.index) < 1
        if self._staging.active:
            torch.cuda.synchronize(self._device)
        if limited or not self._recorded or self._staging.active or free < LITTLE * total:
            torch.cuda.empty_cache()  # a recording cannot take memory that others have freed
        here = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(here)  # the beginning sets the offset of the generator, which a replay may still read
        with no_collection(), torch.cuda.stream(self._stream):
            # another thread may transfer rows of other steps meanwhile
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                yield graph
            finally:
                graph.capture_end()
        here.wait_stream(self._stream)


def records_fill(run: Run, chunks: Chunks) -> bool:
    """Whether a sweep is recorded: where it cuts nothing out of the graph, since cutting waits for the GPU, and where
    memory suffices for it beside the recording, which keeps what it has used."""
    recorder, problem = run.pipeline.recorder, run.problem
    autocast = torch.is_autocast_enabled(problem.device.type)  # it may keep narrowed weights that the sweep would read
    cuts = not (run.source.kept or run.clusters.redraw) or run.schedule is not None or problem.P.on_host
    if recorder is None or not recorder.early or not run.method.setup.records_fill or cuts or autocast:
        return False
    needed = 2 * SWEEP_BYTES * problem.num_nodes * widest_row(problem.graph, problem.model)
    fits = len(chunks) == 1 and needed <= free_memory(problem.device)
    return fits or recorder.recorded_fill is not None


def warm_up(run: Run) -> None:
    """Run the first sweep and the first steps and undo them, so that kernels are compiled, and libraries loaded, before
    they are recorded.

    Triton keeps what it has compiled on disk, so that this takes seconds once per machine, and milliseconds later.
    """
    recorder, model = run.pipeline.recorder, run.problem.model
    if recorder is None or not recorder.early:
        return
    trials = run.pipeline.trials()
    state, changed = run.generator.get_state(), [*run.numbers.values(), *model.buffers()]
    before = [tensor.clone() for tensor in changed]
    with modes_kept(model):
        if run.method.setup.records_fill and records_fill(run, chunks := sweep_chunks(run.problem)):
            recorder.fill(partial(run.method.fill, Passes(run, run.problem, chunks)))
        for batch in trials:
            run.problem.kind.estimate(run, batch, keep=True, dropout=True)
    for table in run.named_tables().values():
        overwrite(table)
    for tensor, was in zip(changed, before, strict=True):
        tensor.copy_(was)
    run.generator.set_state(state)


@contextmanager
def no_collection() -> Iterator[None]:
    """Python's garbage collector is off within: freeing the graphs of another run would invalidate the recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
