"""Faults of the system: full and read-only disks, lost folders, two processes in one folder, forks.

A fault ends a run in one line, or the run ends right. Once the fault is gone, the run is continued and ends bit for
bit as undisturbed: the last checkpoint is whole.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import lmc
from campaigns.harness import Tally, Wrong, folder, forked, one_line
from campaigns.runs import MOVED, SETTINGS, Setting, at_event, check_same, events, finished, graph, train, undisturbed
from lmc.errors import LmcError

TITLE = "faults of the system"
CASES, PER_BLOCK = 120, 30
NOBODY = 65534


def run(number: int, tally: Tally) -> None:
    """One run with one fault, which is continued without it."""
    chance = random.Random(number)
    setting = SETTINGS[(number + number // len(FAULTS)) % len(SETTINGS)]
    name, fault = FAULTS[number % len(FAULTS)]

    def check() -> None:
        undisturbed(setting)
        with folder() as path:
            path.chmod(0o755)
            fault(setting, path, chance)

    tally.attempt(f"{number}: {setting.name}: {name}", check)


def under_fault(setting: Setting, run_dir: Path, prepare: Callable[[], object]) -> None:
    """Train with a fault in a process of its own, then without it; the outcome is that of the first."""
    want = undisturbed(setting)

    def work() -> None:
        prepare()
        check_same(train(setting, run_dir), want)

    code, message = forked(work)
    if run_dir.parent.exists():
        run_dir.parent.chmod(0o755)
    finished(setting, run_dir)
    verdict(code, message)


def verdict(code: int, message: str) -> None:
    """The outcome of a process: right, refused in one line, or wrong."""
    if code == 2:
        one_line(message)
        raise LmcError(message)
    if code != 0:
        raise Wrong(f"ended with exit code {code}: {' '.join(message.split())[-300:]}")


def limited_size(setting: Setting, path: Path, chance: random.Random) -> None:
    """No file may become larger than so many bytes, as with a quota."""
    largest = chance.choice((0, 10, 500, 2_000, 5_000, 10_000, 20_000))
    under_fault(setting, path / "run", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest)))


def failing_write(setting: Setting, path: Path, chance: random.Random) -> None:
    """One call of the operating system fails."""
    number = chance.choice((errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT))
    when = chance.randint(1, events(setting, True))

    def fail() -> None:
        raise OSError(number, os.strerror(number))

    under_fault(setting, path / "run", lambda: at_event(when, True, fail))


def full_disk(setting: Setting, path: Path, chance: random.Random) -> None:
    """The run folder is on a file system of a few pages; without the right to mount one, files are limited instead."""
    size = chance.choice((4, 8, 16, 32, 64))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(path)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        limited_size(setting, path, chance)
        return
    try:
        want = undisturbed(setting)
        outcome = forked(lambda: check_same(train(setting, path / "run"), want))
        subprocess.run(["mount", "-o", "remount,size=64m", str(path)], capture_output=True, check=True)
        finished(setting, path / "run")
    finally:
        subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)
    verdict(*outcome)


def read_only(setting: Setting, path: Path, chance: random.Random) -> None:
    """The folder around the run folder cannot be written."""

    def lose_rights() -> None:
        path.chmod(0o555)
        if os.getuid() == 0:
            os.setuid(NOBODY)

    under_fault(setting, path / "run", lose_rights)


def read_only_later(setting: Setting, path: Path, chance: random.Random) -> None:
    """The run folder cannot be written any more from some call on."""
    inside, when = path / "run", chance.randint(1, events(setting, True))
    if os.getuid() == 0:
        os.chown(path, NOBODY, NOBODY)

    def prepare() -> None:
        if os.getuid() == 0:
            os.setuid(NOBODY)
        at_event(when, True, lambda: inside.chmod(0o555) if inside.exists() else None)

    want = undisturbed(setting)

    def work() -> None:
        prepare()
        check_same(train(setting, inside), want)

    code, message = forked(work)
    if inside.exists():
        inside.chmod(0o755)
    finished(setting, inside)
    verdict(code, message)


def lost_folder(setting: Setting, path: Path, chance: random.Random) -> None:
    """The run folder is moved away while the run trains."""
    when, inside = chance.randint(1, events(setting, False)), path / "run"
    move = lambda: inside.rename(inside.with_name(MOVED)) if inside.exists() else None  # noqa: E731
    under_fault(setting, inside, lambda: at_event(when, False, move))


def two_processes(setting: Setting, path: Path, chance: random.Random) -> None:
    """Two processes train in one folder at the same time; one has to end right, and the other may be refused."""
    want, delay = undisturbed(setting), chance.uniform(0, 0.2)
    second: list[tuple[int, str]] = []

    def start_second(_: int) -> None:
        time.sleep(delay)
        second.append(forked(lambda: check_same(train(setting, path / "run"), want)))

    first = forked(lambda: check_same(train(setting, path / "run"), want), start_second)
    outcomes = [first, *second]
    finished(setting, path / "run")
    if all(code != 0 for code, _ in outcomes):
        raise Wrong(f"both processes failed: {outcomes}")
    for code, message in outcomes:
        verdict(code, message)


def fork_with_tables(setting: Setting, path: Path, chance: random.Random) -> None:
    """A process that is forked off a run trains on; the tables of this process must not change."""
    torch_model = setting.model(graph())
    run = setting.method.bind(graph(), torch_model, placement=lmc.Placement("cpu", history="disk"), seed=3)
    run.refresh()
    tables = {name: table.data().clone() for name, table in run.named_tables().items()}

    def train_on() -> None:
        for batch in run.batches():
            run.accumulate(batch)

    outcome = forked(train_on)
    for name, table in run.named_tables().items():
        if not table.data().equal(tables[name]):
            raise Wrong(f"the child changed table {name}")
    train_on()
    verdict(*outcome)


FAULTS: tuple[tuple[str, Callable[[Setting, Path, random.Random], None]], ...] = (
    ("no file above a size", limited_size),
    ("a call of the system fails", failing_write),
    ("a full disk", full_disk),
    ("a read-only folder", read_only),
    ("read-only from some moment on", read_only_later),
    ("the run folder is moved away", lost_folder),
    ("two processes in one folder", two_processes),
    ("a fork with tables on disk", fork_with_tables),
    ("a call of the system fails", failing_write),
    ("the run folder is moved away", lost_folder),
)
