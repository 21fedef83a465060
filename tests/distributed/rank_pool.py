"""Ranks that are started once and run many small jobs."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
import torch

from lmc.errors import ConfigError

START = multiprocessing.get_context("forkserver")
# imported once for all ranks; the first step of an optimiser imports torch._dynamo
START.set_forkserver_preload(
    [
        "torch.distributed",
        "torch._dynamo",
        "torchmetrics",
        "torch_geometric.nn",
        "lmc.train",
        "lmc.diagnostics",
        "lmc.pyg",
        "lmc.cli.app",
        "lmc.cli.train",
        "typer.testing",
        "pytest",
    ]
)
TIMEOUT = 100.0


def on_2_and_4(cases: Iterable[str], fast: str) -> Any:
    """Run a test of (ranks, name) with 2 and with 4 ranks: the cases that ``fast`` names with both in the default run,
    and the others with 2 there and with 4 among the slow tests."""
    names = fast.split()
    assert set(names) <= set(cases)
    given = [
        pytest.param(ranks, name, marks=[pytest.mark.slow] if ranks == 4 and name not in names else [])
        for ranks in (2, 4)
        for name in cases
    ]
    return pytest.mark.parametrize(("ranks", "name"), given, indirect=["ranks"])


def _serve(rank: int, ranks: int, folder: str, jobs: Connection) -> None:
    """Run jobs until the other end closes: (function, arguments) in, (result, error) out."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ |= {"XDG_CACHE_HOME": folder, "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    while True:
        try:
            function, arguments = pickle.loads(jobs.recv_bytes())  # noqa: S301 - of the test itself
        except EOFError:
            return
        try:
            answer = function(*arguments), None
        except Exception as error:
            answer = None, error
        jobs.send_bytes(pickle.dumps(answer))  # the pipe's own pickling would share tensors by open files


class Ranks:
    """Processes with one thread each that are connected by gloo."""

    def __init__(self, ranks: int, folder: Path) -> None:
        self.ranks, self.closed, self.expected = ranks, False, ConfigError
        self._ends: list[Connection] = []
        self._processes = []
        for rank in range(ranks):
            here, there = START.Pipe()
            process = START.Process(target=_serve, args=(rank, ranks, str(folder), there), daemon=True)
            process.start()
            there.close()
            self._ends.append(here)
            self._processes.append(process)

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """The results of a function of the module ``jobs`` on every rank; an error is raised here, unless it is one
        that every rank is expected to raise."""
        for end in self._ends:
            end.send_bytes(pickle.dumps((function, arguments)))
        answers: dict[Connection, Any] = {}
        while len(answers) < self.ranks:
            ready = wait([end for end in self._ends if end not in answers], TIMEOUT)
            assert ready, "ranks gave no answer"
            for end in ready:
                answers[end], error = pickle.loads(end.recv_bytes())  # noqa: S301 - of a rank of the test
                if error is not None and not isinstance(error, self.expected):
                    self.close()  # the others may wait for this one
                    raise error
                answers[end] = error or answers[end]
        return [answers[end] for end in self._ends]

    def close(self) -> None:
        self.closed = True
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.kill()
            process.join()
