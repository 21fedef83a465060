"""Signals at random and at injected moments; a run that is continued afterwards ends bit for bit as undisturbed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from campaigns.harness import Tally, Wrong, folder, forked
from campaigns.runs import SETTINGS, Setting, at_event, events, finished, kill_self, train, undisturbed

TITLE = "kills"
CASES, PER_BLOCK = 180, 30
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
MOMENTS = ("any call", "a write", "any time")


def run(number: int, tally: Tally) -> None:
    """One run that is stopped once or twice by a signal and then continued."""
    chance = random.Random(number)
    setting = SETTINGS[number % len(SETTINGS)]
    moments = [chance.choice(MOMENTS) for _ in range(chance.choice((1, 1, 2)))]
    stops = [chance.choice(SIGNALS) for _ in moments]
    name = f"{number}: {setting.name}: " + ", then ".join(
        f"{how.name} at {moment}" for how, moment in zip(stops, moments, strict=True)
    )

    def check() -> None:
        undisturbed(setting)  # computed before the first fork, so that it is computed once
        with folder() as path:
            for how, moment in zip(stops, moments, strict=True):
                stop(setting, path / "run", how, moment, chance)
            finished(setting, path / "run")

    tally.attempt(name, check, "right")


def stop(setting: Setting, run_dir: Path, how: signal.Signals, moment: str, chance: random.Random) -> None:
    """Start or continue a run and send it a signal at some moment."""
    if moment == "any time":
        _at_any_time(lambda: train(setting, run_dir), how, chance)
        return
    writes = moment == "a write"
    number = chance.randint(1, events(setting, writes))

    def work() -> None:
        at_event(number, writes, kill_self(how))
        train(setting, run_dir)

    _check_end(*forked(work), how)


def _at_any_time(work: Callable[[], object], how: signal.Signals, chance: random.Random) -> None:
    """Send the signal after a random time; a run that was faster is continued for as long, which changes nothing."""
    wait = chance.uniform(0.0, 0.4)

    def send(child: int) -> None:
        time.sleep(wait)
        os.kill(child, how)

    _check_end(*forked(work, send), how)


def _check_end(code: int, message: str, how: signal.Signals) -> None:
    """A signal ends a process as the system does, or it stops training with a message; nothing else may happen."""
    stopped = code in (0, 130, 128 + how, -how) or (code == 2 and "stopped" in message)
    if not stopped:
        raise Wrong(f"ended with exit code {code}: {' '.join(message.split())[-300:]}")
