"""Processes that train groups of methods at the same time on one device."""

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Self

import torch

from experiments.paper.item import Item
from experiments.paper.training import Trained, Training, one_line
from lmc.bench.epoch import matmul_precision


@dataclass(frozen=True)
class Task:
    """One group of trainings, the seconds it may take, and the value of ``time.monotonic`` at which it must end."""

    item: Item
    cell: Training
    seconds: float
    until: float
    started: float = field(default_factory=time.monotonic)

    @property
    def ends(self) -> float:
        """When its seconds are over."""
        return min(self.until, self.started + self.seconds)


@dataclass(frozen=True)
class Outcome:
    """The records of a task, or why it has none."""

    task: Task
    records: Sequence[Trained] = ()
    failure: str | None = None


def measure(task: Task) -> Outcome:
    """Train the group of a task in this process."""
    item = task.item
    try:
        with matmul_precision(item.on, item.tf32):
            return Outcome(task, item.train(task.cell, task.seconds, task.until, settle=True))
    except Exception as error:  # the other groups go on
        return Outcome(task, failure=one_line(error))


def serve(connection: Connection) -> None:
    """Measure tasks until the other end of the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one decides
    torch.set_num_threads(1)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        connection.send(measure(task))


@dataclass(eq=False)
class Workers:
    """So many processes; a single one is this process, in which a task is measured when it is started."""

    jobs: int
    _idle: list[tuple[Connection, SpawnProcess]] = field(default_factory=list)
    _busy: dict[Connection, tuple[SpawnProcess, Task]] = field(default_factory=dict)
    _done: list[Outcome] = field(default_factory=list)

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")  # a process with CUDA cannot be forked
        for _ in range(self.jobs if self.jobs > 1 else 0):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(there,), daemon=True)
            process.start()
            there.close()
            self._idle.append((here, process))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all processes, whatever they do."""
        for process in [process for _, process in self._idle] + [process for process, _ in self._busy.values()]:
            process.kill()
            process.join()

    @property
    def running(self) -> list[Task]:
        """The tasks that are being measured."""
        return [task for _, task in self._busy.values()]

    def can_start(self) -> bool:
        """Whether a worker is idle."""
        return bool(self._idle) or (self.jobs == 1 and not self._done)

    def start(self, task: Task) -> None:
        """Give a task to an idle worker."""
        if self.jobs == 1:
            self._done.append(measure(task))
            return
        connection, process = self._idle.pop()  # the worker that was busy last: it has loaded graphs and kernels
        with contextlib.suppress(OSError):  # of a process that died: its outcome says so
            # a copy has none of the values that the item has cached
            connection.send(replace(task, item=replace(task.item)))
        self._busy[connection] = process, task

    def finished(self, until: float) -> list[Outcome]:
        """The outcomes since the last call; where there are none, wait for one until ``time.monotonic`` is ``until``.

        A process that died gives an outcome with a failure, and no further one takes its place.
        """
        found, self._done = self._done, []
        for connection in wait(list(self._busy), max(0.0, until - time.monotonic())) if self._busy else ():
            assert isinstance(connection, Connection)
            process, task = self._busy.pop(connection)
            try:
                found.append(replace(connection.recv(), task=task))
                self._idle.append((connection, process))
            except (EOFError, OSError):
                process.join()
                found.append(Outcome(task, failure=f"its process ended with exit code {process.exitcode}"))
        return found
