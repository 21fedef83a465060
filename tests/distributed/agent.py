"""Ranks as torchrun starts them: the environment, the command line, and an agent that may start them again."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rank_pool import START
from torch.distributed import TCPStore

TRAIN = ["train", "tiny-like", "--epochs", "2", "--parts", "4", "--clusters", "1", "--model", "gcn:hidden=8"]
TRAIN += ["--device", "cpu"]
"""A short run."""
LIMIT = 90
"""Seconds after which ranks are ended."""


class Agent:
    """One start of torchrun: its store outlives the ranks, which it may start several times.

    Args:
        start: how processes are started; "spawn" gives each an interpreter of its own.
    """

    def __init__(self, folder: Path, start: str = "forkserver") -> None:
        self.folder, self.failures, self.processes = folder, 0, list[BaseProcess]()
        self._context = START if start == "forkserver" else multiprocessing.get_context(start)
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))

    def start(self, ranks: int, function: Callable[..., None], *arguments: Any, failures: Sequence[int] = ()) -> None:
        """Start ranks that call a function; ``failures`` are those that the machine of every rank has counted."""
        facts: dict[str, Any] = {"WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.store.port}
        facts |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "GLOO_SOCKET_IFNAME": "lo"}
        facts |= {"XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]}
        self.processes = []
        for rank in range(ranks):
            count = failures[rank] if failures else self.failures
            own = facts | {"RANK": rank, "LOCAL_RANK": rank, "TORCHELASTIC_RESTART_COUNT": count}
            given = own, self.folder, rank, function, arguments
            process = self._context.Process(target=_enter, args=given, daemon=True)  # type: ignore[attr-defined]
            process.start()
            self.processes.append(process)

    def wait(self) -> tuple[list[int], list[str]]:
        """Exit codes and outputs of the ranks."""
        deadline = time.monotonic() + LIMIT
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        codes = [process.exitcode or 0 for process in self.processes]
        self.failures += any(codes)
        return codes, [(self.folder / f"out{rank}").read_text() for rank in range(len(codes))]


def launch(
    ranks: int, folder: Path, function: Callable[..., None], *arguments: Any, start: str = "forkserver"
) -> tuple[list[int], list[str]]:
    """Run a function on ranks that are started once; exit codes and outputs."""
    agent = Agent(folder, start)
    agent.start(ranks, function, *arguments)
    return agent.wait()


def _enter(facts: dict[str, Any], folder: Path, rank: int, function: Callable[..., None], arguments: Any) -> None:
    os.environ |= {name: str(value) for name, value in facts.items()}
    os.chdir(folder)
    sys.stdout = sys.stderr = open(f"out{rank}", "w", buffering=1)  # noqa: SIM115 - open to the end of the process
    import torch

    torch.set_num_threads(1)
    function(*arguments)


def command(arguments: list[str]) -> None:
    """``lmc ARGUMENTS``."""
    from lmc.cli import main

    sys.argv = ["lmc", *arguments]
    main()


def dies(rank: int, step: int, arguments: list[str]) -> None:
    """``lmc ARGUMENTS`` on ranks of which one ends without a word in a step, counted from 1."""
    from lmc.engine import Run

    accumulate, calls = Run.accumulate, []

    def counted(self: Run, batch: Any) -> Any:
        calls.append(batch)
        if len(calls) == step and int(os.environ["RANK"]) == rank:
            os._exit(9)
        return accumulate(self, batch)

    Run.accumulate = counted  # type: ignore[method-assign]
    command(arguments)


def differs(rank: int, more: list[str], arguments: list[str]) -> None:
    """``lmc ARGUMENTS`` on ranks of which one has further options."""
    command([*arguments, *more] if int(os.environ["RANK"]) == rank else arguments)
