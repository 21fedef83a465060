"""What torchrun gives to a process: its rank, and a store that outlives the ranks, through which starts are told apart.

torchrun ends all ranks before it starts them again, and a machine counts its own failures alone
(``TORCHELASTIC_RESTART_COUNT``). So rank 0 chooses a name for every start, and the other ranks ask it for that name.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The environment that torchrun gives to every process."""
_START, _FOLDERS = "lmc/start", "lmc/folders"
_POLL = 0.01
_start = ""


def launched() -> bool:
    """Whether torchrun, or another launcher with its environment, has started this process."""
    return all(name in os.environ for name in LAUNCHED)


def rank_here() -> int:
    """The rank of this process; 0 where it was started alone."""
    return int(os.environ["RANK"]) if launched() else 0


def has_store() -> bool:
    """Whether the launcher keeps a store that outlives the ranks, as torchrun does."""
    return launched() and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def launcher(wait: float = 3.0) -> dist.TCPStore:
    """The store of the launcher; it is on the machine of rank 0."""
    port = int(os.environ["MASTER_PORT"])
    return dist.TCPStore(os.environ["MASTER_ADDR"], port, is_master=False, timeout=timedelta(seconds=wait))


def this_start() -> str:
    """The name of this start of the ranks: the one that all have agreed on, or the count of this machine's failures."""
    return _start or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def meeting(wait: float) -> dict[str, Any]:
    """Where the ranks meet, as arguments of ``init_process_group``: a part of the launcher's store that is of this
    start alone, since the addresses of ranks that have ended stay in the store.

    Rank 0 writes the name of the start and answers every rank. A name without an answer is that of an older start.
    """
    global _start
    if not has_store():
        return {}
    store, rank, ranks = launcher(wait), rank_here(), int(os.environ["WORLD_SIZE"])
    if rank == 0:
        start = uuid.uuid4().hex
        store.set(_START, start)
        for other in range(1, ranks):
            question = store.get(f"{_START}/{start}/question/{other}").decode()
            store.set(f"{_START}/{start}/answer/{other}", question)
    else:
        start = _answered(store, rank, wait)
    _start = start
    return {"store": dist.PrefixStore(f"{_START}/{start}", store), "rank": rank, "world_size": ranks}


def _answered(store: dist.Store, rank: int, wait: float) -> str:
    """The name of the start, as rank 0 has answered."""
    own, deadline = uuid.uuid4().hex, time.monotonic() + wait
    while time.monotonic() < deadline:
        start = store.get(_START).decode()
        answer = f"{_START}/{start}/answer/{rank}"
        store.set(f"{_START}/{start}/question/{rank}", own)
        while store.get(_START).decode() == start and time.monotonic() < deadline:
            if store.check([answer]) and store.get(answer).decode() == own:
                return start
            time.sleep(_POLL)
    raise RuntimeError("rank 0 gave no answer")


def begin_folder(path: Path) -> None:
    """Tell later starts of the ranks (``--max-restarts``) that this folder is one of their runs."""
    if has_store():
        with suppress(RuntimeError):  # the run can be continued with --resume
            store, begun = launcher(), _begun()
            store.set(_FOLDERS, json.dumps([*begun, [this_start(), str(path.absolute())]]))


def begun_folders() -> list[str]:
    """The folders of runs that earlier starts of the ranks have begun, the last one last."""
    return [path for start, path in _begun() if start != this_start()]


def _begun() -> list[list[str]]:
    if has_store():
        with suppress(RuntimeError):
            store = launcher()
            return json.loads(store.get(_FOLDERS)) if store.check([_FOLDERS]) else []
    return []
