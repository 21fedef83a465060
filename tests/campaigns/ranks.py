"""Faults of the ranks of a distributed run: kills, hangs, signals, full disks and ranks that differ.

One rank has a fault while it trains, and the run is then continued. The same number of ranks ends bit for bit as an
undisturbed run; another number of ranks, or one process, keeps the epochs that were saved and trains the others. Of all
ranks, one prints one line about the fault, and every rank has the right exit code.
"""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import lmc
from campaigns.harness import Tally, Wrong, folder
from campaigns.runs import at_event, watch
from lmc.errors import LmcError

sys.path.append(str(Path(__file__).resolve().parents[1] / "distributed"))
from agent import Agent, command, differs
from test_restarts import outcome

TITLE = "faults of ranks"
CASES, PER_BLOCK = 36, 12
EPOCHS = 6
BASE = ["train", "tiny-like", "--model", "gcn:hidden=8:dropout=0.2", "--device", "cpu", "--timeout", "60"]
BASE += ["--checkpoint-every", "3steps", "--epochs", str(EPOCHS)]
PARTS = ["--parts", "8", "--clusters", "1"]
SETTINGS: tuple[list[str], ...] = (
    ["--method", "cmc", *PARTS],
    ["--method", "imc", *PARTS, "--optimizer", "adamw:weight_decay=0.01", "--scheduler", "cosine"],
    ["--method", "lmc", *PARTS, "--wire", "bfloat16", "--sync-every", "2"],
    ["--method", "full", "--sync", "layer"],
    ["--method", "backward-sgd", *PARTS, "--sync", "layer"],
    ["--method", "gas", *PARTS, "--patience", "3"],
)
EXPECTED = {0, 2, 130, 128 + signal.SIGTERM, -signal.SIGKILL}
"""Exit codes that ranks may have."""


def run(number: int, tally: Tally) -> None:
    """One run with one fault of one rank, which is continued without it."""
    chance = random.Random(number)
    name, fault = FAULTS[number % len(FAULTS)]
    setting = SETTINGS[(number + number // len(FAULTS)) % len(SETTINGS)]
    ranks, then = chance.choice(((2, 2), (2, 2), (2, 4), (2, 1), (3, 3), (4, 2)))
    victim = chance.randrange(ranks)

    def check() -> None:
        whole = undisturbed(tuple(setting), ranks)
        with folder() as path:
            refused = fault(path, ranks, victim, setting, chance)
            finished(path, ranks, then, setting, whole)
        if refused:
            raise LmcError(refused)

    tally.attempt(f"{number}: {setting[1]} on {ranks} ranks: {name} of rank {victim}, then {then} ranks", check)


@cache
def undisturbed(setting: tuple[str, ...], ranks: int) -> tuple[Any, ...]:
    """What a run ends with when nothing happens to it."""
    with folder() as path:
        codes, outputs = trained(path, ranks, list(setting))
        if any(codes):
            raise Wrong(f"an undisturbed run ended with exit codes {codes}: {' '.join(outputs)[-300:]}")
        return outcome(path / "run")


def trained(
    path: Path, ranks: int, setting: list[str], function: Callable[..., None] = command, *arguments: Any,
    disturb: Callable[[Agent], None] | None = None,
) -> tuple[list[int], list[str]]:  # fmt: skip
    """Start or continue a run on ranks; exit codes and outputs."""
    agent = Agent(path)
    agent.start(ranks, function, *arguments, [*BASE, *setting, "--run-dir", "run", "--resume"])
    if disturb is not None:
        disturb(agent)
    return agent.wait()


def judge(codes: list[int], outputs: list[str], victims: set[int]) -> str:
    """Check exit codes and outputs; the line of the error, if there is one. Ranks that are killed print nothing."""
    said = " ".join(outputs)
    if any(code not in EXPECTED or (code == -signal.SIGKILL and k not in victims) for k, code in enumerate(codes)):
        raise Wrong(f"ended with exit codes {codes}: {said[-300:]}")
    if "Traceback" in said or said.count("error:") > 1 or said.count("continue with:") > 1:
        raise Wrong(f"more than one line: {said[-600:]}")
    if 2 in codes and "error:" not in said:
        raise Wrong(f"exit codes {codes} without a line: {said[-300:]}")
    return " ".join(said.partition("error:")[2].split())


def finished(path: Path, ranks: int, then: int, setting: list[str], whole: tuple[Any, ...]) -> None:
    """Continue a run; raises :class:`Wrong` unless it ends as it should."""
    run_dir, manifest = path / "run", path / "run" / "checkpoint.json"
    before = lmc.results.read_run(run_dir).epochs if manifest.exists() else ()
    # later epochs may be recorded, but their steps are done again
    before = before[: json.loads(manifest.read_text())["epoch"]] if before else ()
    if then == 1:
        setting = [word for word in setting if word not in ("--sync", "layer", "--wire", "bfloat16", "--sync-every")]
        setting = setting[: setting.index("2")] if "2" in setting else setting
    codes, outputs = trained(path, then, setting) if then > 1 else alone(path, setting)
    judge(codes, outputs, set())
    if any(codes):
        raise Wrong(f"continued with exit codes {codes}: {' '.join(outputs)[-300:]}")
    if then == ranks:
        if outcome(run_dir) != whole:
            raise Wrong("differs from the undisturbed run")
        return
    record = lmc.results.read_run(run_dir)
    saved = [(epoch.loss, epoch.scores) for epoch in before]
    if "--patience" not in setting and len(record.epochs) != EPOCHS:
        raise Wrong(f"ended after {len(record.epochs)} epochs")
    if [(e.loss, e.scores) for e in record.epochs][: len(saved)] != saved:
        raise Wrong("lost epochs that were saved")


def alone(path: Path, setting: list[str]) -> tuple[list[int], list[str]]:
    """Continue a run on one process, without torchrun."""
    from rank_pool import START

    words = [*BASE[:6], *BASE[8:], *setting, "--run-dir", "run", "--resume"]
    process = START.Process(target=_alone, args=(str(path), words))
    process.start()
    process.join()
    return [process.exitcode or 0], [(path / "alone").read_text()]


def _alone(path: str, words: list[str]) -> None:
    os.chdir(path)
    sys.stdout = sys.stderr = open("alone", "w", buffering=1)  # noqa: SIM115 - open to the end of the process
    command(words)


def _here(victim: int) -> bool:
    return int(os.environ["RANK"]) == victim


def at_write(victim: int, number: int, writes: bool, action: Callable[[], None], words: list[str]) -> None:
    """A command that does something on one rank before its ``number``-th event; see :func:`campaigns.runs.at_event`."""
    if _here(victim):
        at_event(number, writes, action)
    command(words)


def counted(victim: int, writes: bool, words: list[str]) -> None:
    """A command that counts the events on one rank."""
    seen = 0

    def count() -> None:
        nonlocal seen
        seen += 1

    if _here(victim):
        watch(count, writes)
    try:
        command(words)
    finally:
        sys.setprofile(None)
        if _here(victim):
            Path("events").write_text(str(seen))


@cache
def events(setting: tuple[str, ...], ranks: int, victim: int, writes: bool) -> int:
    """How many events a rank of an undisturbed run has."""
    with folder() as path:
        trained(path, ranks, list(setting), counted, victim, writes)
        return int((path / "events").read_text())


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at(writes: bool, path: Path, ranks: int, victim: int, setting: list[str], chance: random.Random) -> str:
    """SIGKILL at a call in the training loop, or at a write of a checkpoint."""
    number = chance.randint(1, events(tuple(setting), ranks, victim, writes))
    judge(*trained(path, ranks, setting, at_write, victim, number, writes, _kill), {victim})
    return ""


def _begun(path: Path, agent: Agent) -> None:
    """Wait until the run folder has a checkpoint, or the ranks have ended."""
    while not (path / "run" / "checkpoint.json").exists() and all(p.is_alive() for p in agent.processes):
        time.sleep(0.01)


def _send(number: int, whom: list[int], agent: Agent) -> None:
    for rank in whom:
        if agent.processes[rank].is_alive():
            os.kill(agent.processes[rank].pid or 0, number)


def killed(path: Path, ranks: int, victim: int, setting: list[str], chance: random.Random) -> str:
    """SIGKILL at any time after the first checkpoint; torchrun sends SIGTERM to the others."""
    wait = chance.uniform(0, 0.4)

    def disturb(agent: Agent) -> None:
        _begun(path, agent)
        time.sleep(wait)
        _send(signal.SIGKILL, [victim], agent)
        time.sleep(wait / 4)
        _send(signal.SIGTERM, [rank for rank in range(ranks) if rank != victim], agent)

    judge(*trained(path, ranks, setting, disturb=disturb), {victim})
    return ""


def hangs(path: Path, ranks: int, victim: int, setting: list[str], chance: random.Random) -> str:
    """SIGSTOP: the others end after the timeout, and name the rank and the step."""
    wait = chance.uniform(0, 0.2)

    def disturb(agent: Agent) -> None:
        _begun(path, agent)
        time.sleep(wait)
        _send(signal.SIGSTOP, [victim], agent)
        for rank, process in enumerate(agent.processes):
            if rank != victim:
                process.join()
        _send(signal.SIGKILL, [victim], agent)

    codes, outputs = trained(path, ranks, [*setting, "--timeout", "5"], disturb=disturb)
    line = judge(codes, outputs, {victim})
    if 2 in codes and ("s (got none at rank " not in line or "another rank failed or is too slow" not in line):
        raise Wrong(f"the line does not name the rank: {line}")
    return ""


def signalled(number: int, path: Path, ranks: int, victim: int, setting: list[str], chance: random.Random) -> str:
    """Ctrl-C or SIGTERM, which torchrun sends to all ranks, or a scheduler to one: the run is saved and stops."""
    wait, whom = chance.uniform(0, 0.2), chance.choice(([victim], list(range(ranks))))

    def disturb(agent: Agent) -> None:
        _begun(path, agent)
        time.sleep(wait)
        _send(number, whom, agent)

    codes, outputs = trained(path, ranks, setting, disturb=disturb)
    judge(codes, outputs, set())
    if any(codes) and (2 in codes or not any("saved in" in output for output in outputs)):
        raise Wrong(f"not saved, exit codes {codes}: {' '.join(outputs)[-300:]}")
    return ""


def _fails(number: int) -> None:
    raise OSError(number, os.strerror(number))


def full_disk(path: Path, ranks: int, victim: int, setting: list[str], chance: random.Random) -> str:
    """One call of the operating system fails on one rank."""
    number, fails = (
        chance.randint(1, events(tuple(setting), ranks, victim, True)),
        chance.choice((errno.ENOSPC, errno.EIO)),
    )
    codes, outputs = trained(path, ranks, setting, at_write, victim, number, True, partial(_fails, fails))
    return judge(codes, outputs, set())


def another(path: Path, ranks: int, victim: int, setting: list[str], chance: random.Random) -> str:
    """One rank has another graph, seed, model, method or setting of training."""
    words = chance.choice(OTHERS)
    codes, outputs = trained(path, ranks, setting, differs, victim, words)
    line = judge(codes, outputs, set())
    if codes != [2] * ranks:
        raise Wrong(f"rank {victim} with {' '.join(words)} ended with exit codes {codes}: {' '.join(outputs)[-300:]}")
    return line


OTHERS = (["--seed", "1"], ["--lr", "0.3"], ["--model", "gcn:hidden=8"], ["--scale", "0.5"], ["--epochs", "9"])
Fault = Callable[[Path, int, int, list[str], random.Random], str]
FAULTS: tuple[tuple[str, Fault], ...] = (
    ("a kill at a write", partial(killed_at, True)),
    ("a kill at any call", partial(killed_at, False)),
    ("a kill at any time", killed),
    ("Ctrl-C", partial(signalled, signal.SIGINT)),
    ("a kill at a write", partial(killed_at, True)),
    ("a full disk", full_disk),
    ("a hang", hangs),
    ("SIGTERM", partial(signalled, signal.SIGTERM)),
    ("a kill at any time", killed),
    ("other settings", another),
    ("a full disk", full_disk),
    ("a kill at a write", partial(killed_at, True)),
)
