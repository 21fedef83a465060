"""The one training loop, and Ctrl-C as a request to stop after the current step."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor, nn

from lmc.engine import Run
from lmc.engine.exact import FEW_ELEMENTS, MAX_ELEMENTS
from lmc.errors import Interrupted
from lmc.graph import Batch
from lmc.results import EpochRecord
from lmc.train.checkpoint import Position
from lmc.train.evaluate import evaluate_problem
from lmc.train.run_folder import RunFolder, Settings, open_folder

Stop = Callable[[], bool]
"""Whether training is to stop after the current step."""


def never() -> bool:
    """The stop function of a loop that is not to be interrupted in this way."""
    return False


def train(
    run: Run, settings: Settings, run_dir: Path | None = None, resume: bool = False, stop: Stop = never
) -> Iterator[EpochRecord]:
    """Train and yield the record of every epoch; the caller may advance several of these loops in turn.

    Args:
        run_dir: where the run is saved; None: nowhere.
        resume: continue the run in ``run_dir``.
        stop: called after every step; where it returns True, the run is saved and :class:`Interrupted` raised.
    """
    optimizer = adam(run.problem.model, settings.lr, settings.weight_decay)
    folder = open_folder(run_dir, resume, run, settings, optimizer)
    position = _start(run, folder)
    while position.epoch < settings.epochs:
        _train_rest_of_epoch(run, optimizer, settings, position, stop)
        if stop() and position.step < run.num_batches:
            raise _interrupted(folder, position)
        record = _end_epoch(run, settings, position)
        if folder is not None:
            folder.append(record)
            due = folder.seconds_since_save() >= settings.checkpoint_seconds
            if due or stop() or position.epoch == settings.epochs:
                folder.save(position)
        yield record
        if stop() and position.epoch < settings.epochs:
            raise _interrupted(folder, position)


def train_step(run: Run, optimizer: torch.optim.Optimizer, batch: Batch, clip: float | None = None) -> Tensor:
    """One training step on ``batch``; returns the loss, which stays on the device."""
    model = run.problem.model
    optimizer.zero_grad(set_to_none=True)
    loss = run.accumulate(batch).loss
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    model.project()
    return loss


def train_epoch(
    run: Run, optimizer: torch.optim.Optimizer, *, clip: float | None = None, epoch: int | None = None,
    start: int = 0, stop: Stop = never,
) -> list[Tensor]:  # fmt: skip
    """The training steps of one epoch; returns the loss of each step, on the device.

    No step waits for the device: the caller reads the losses when the epoch is over.

    Args:
        clip: largest norm of the gradient; None: no clipping.
        epoch: number of the epoch, counted from 0; by default the run's next one.
        start: number of the first batch, greater than 0 where an interrupted epoch is continued.
        stop: called after every step; the epoch ends early where it returns True.
    """
    losses = []
    for batch in run.batches(epoch, start):
        losses.append(train_step(run, optimizer, batch, clip))
        if stop():
            break
    return losses


def _start(run: Run, folder: RunFolder | None) -> Position:
    """Restore the run from its checkpoint, or fill its histories where there is none; the position to train from."""
    position = None if folder is None else folder.load()
    if position is None:
        position = Position()
        run.refresh()
        if folder is not None:  # the initial parameters are the caller's: a later start may not have them
            folder.save(position)
    return position


def _train_rest_of_epoch(
    run: Run, optimizer: torch.optim.Optimizer, settings: Settings, position: Position, stop: Stop
) -> None:
    """Train from ``position`` to the end of its epoch, or until ``stop()``, and advance ``position``."""
    started = time.perf_counter()
    losses = train_epoch(run, optimizer, clip=settings.clip, epoch=position.epoch, start=position.step, stop=stop)
    position.step += len(losses)
    # float64: the sum must not depend on where an epoch was interrupted. Reading it waits for the device, so the time
    # below includes all of its work.
    position.loss += float(torch.stack(losses).double().sum())
    position.seconds += time.perf_counter() - started


def _end_epoch(run: Run, settings: Settings, position: Position) -> EpochRecord:
    """The record of the epoch that is complete, with scores where they are due; ``position`` moves to the next one."""
    epoch, scores = position.epoch + 1, None
    if settings.evaluates(epoch):
        # small chunks where rows are kept off the device, because memory is short
        size = MAX_ELEMENTS if set(run.tiers.values()) == {"device"} else FEW_ELEMENTS
        scores = evaluate_problem(run.problem, size, start=run.problem.kind.solver_start(run.tables))
    record = EpochRecord(epoch, position.loss / run.num_batches, position.seconds, scores, run.solves())
    position.epoch, position.step, position.loss = epoch, 0, 0.0
    return record


def _interrupted(folder: RunFolder | None, position: Position) -> Interrupted:
    """Save the run where it has a folder; the error that says so."""
    if folder is None:
        return Interrupted("stopped; nothing was saved, since no run folder was given")
    folder.save(position)
    return Interrupted(f"stopped after epoch {position.epoch}, step {position.step}; saved in {folder.path}")


def adam(model: nn.Module, lr: float, weight_decay: float = 0.0) -> torch.optim.Adam:
    """Adam over the parameters of ``model``; on a GPU its update is one kernel."""
    fused = all(p.is_cuda for p in model.parameters())
    return torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay, fused=fused)


@contextmanager
def stop_on_interrupt() -> Iterator[Stop]:
    """Within, the first Ctrl-C makes ``stop()`` true; a second one interrupts at once, as usual.

    Outside the main thread Python delivers no signals, and nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield never
        return
    requested = False
    previous = signal.getsignal(signal.SIGINT)

    def request(signum: int, frame: FrameType | None) -> None:
        nonlocal requested
        requested = True
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, request)
    try:
        yield lambda: requested
    finally:
        signal.signal(signal.SIGINT, previous)
