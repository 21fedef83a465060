"""Ranks on this machine for one measurement: processes that are connected as torchrun connects them, by gloo."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch.distributed import TCPStore

from lmc.errors import DistributedError, LmcError

_START: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")


def on_ranks(ranks: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What a function of a module returns on every rank; each rank has one thread and is ended afterwards.

    An error of a rank ends all of them and is raised here.
    """
    if sys.platform == "linux":
        _START.set_forkserver_preload(["lmc.bench.ranks", "torch._dynamo"])
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=120))
    facts = {"WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}
    facts["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    ends: dict[Connection, int] = {}
    processes = []
    try:
        for rank in range(ranks):
            here, there = _START.Pipe()
            own = {name: str(value) for name, value in {**facts, "RANK": rank, "LOCAL_RANK": rank}.items()}
            process = _START.Process(target=_enter, args=(own, there, function, arguments), daemon=True)
            with _interrupts_blocked():
                process.start()
            processes.append(process)
            there.close()
            ends[here] = rank
        return _answers(ends)
    finally:
        for process in processes:
            process.kill()
            process.join()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Ctrl-C waits until the end; processes that are started within never get it, since they inherit the mask."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # it would be started within, and unblock signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _answers(ends: dict[Connection, int]) -> list[Any]:
    """The answers of all ranks, in their order."""
    answers: dict[int, Any] = {}
    while len(answers) < len(ends):
        ready: list[Any] = wait([end for end, rank in ends.items() if rank not in answers])
        answers |= {ends[end]: _answer(end, ends[end]) for end in ready}
    return [answers[rank] for rank in sorted(answers)]


def _answer(end: Connection, rank: int) -> Any:
    """The answer of a rank, or its error, which is raised here."""
    try:
        answer, error = end.recv()
    except EOFError:
        answer, error = None, "it ended without an answer"
    if isinstance(error, LmcError):
        raise error
    if error is not None:
        raise DistributedError(f"expected an answer of rank {rank} (got none): {error}")
    return answer


def _enter(facts: dict[str, str], end: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """The process of one rank."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started the ranks
    os.environ |= facts
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    try:
        end.send((function(*arguments), None))
    except LmcError as error:
        end.send((None, error))
    except Exception as error:
        end.send((None, f"{type(error).__name__}: {' '.join(str(error).split())}"))
