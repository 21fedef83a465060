"""Thousands of epochs in one process: memory, open files and threads stay as they were."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import lmc
from campaigns.harness import Tally, Wrong, folder
from campaigns.runs import Setting, graph, plain
from lmc import methods

TITLE = "soak"
CASES, PER_BLOCK = 3, 1
EPOCHS = 3000
RUNS = (
    Setting("CMC, device", methods.CMC(2, 1), plain),
    Setting("LMC4Conv, host", methods.LMC4Conv(2, 1), plain, history="host"),
    Setting("GAS, disk", methods.GAS(2, 1), plain, history="disk"),
)
FLAT = 6 * 2**20
"""Bytes that the memory of the process may grow by between the first third of the epochs and the last."""


def run(number: int, tally: Tally) -> None:
    """Train for 3,000 epochs with records, evaluations and checkpoints."""
    soak(RUNS[number], EPOCHS, tally)


def soak(setting: Setting, epochs: int, tally: Tally) -> None:
    """Train, and compare the process after a third of the epochs with the process at the end."""
    seen: dict[int, tuple[int, int, int]] = {}

    def measure(training: object) -> None:
        done = len(seen_epochs)
        seen_epochs.append(done)
        if done + 1 in (epochs // 3, epochs):
            gc.collect()
            seen[done + 1] = resident(), len(os.listdir("/proc/self/fd")), threading.active_count()

    seen_epochs: list[int] = []

    def check() -> None:
        with folder() as path:
            placement = lmc.Placement("cpu", history=setting.history)
            model = setting.model(graph())
            record = lmc.fit(
                graph(), model, setting.method, epochs, placement=placement, run_dir=path / "run", eval_every=50,
                checkpoint_every="1s", callbacks=[measure],
            )  # fmt: skip
        if len(record.epochs) != epochs:
            raise Wrong(f"{len(record.epochs)} records of {epochs} epochs")
        (before, files, threads), (after, files_after, threads_after) = seen[epochs // 3], seen[epochs]
        if after - before > FLAT or files_after > files or threads_after > threads:
            raise Wrong(
                f"between epoch {epochs // 3} and {epochs}: memory {before / 2**20:.1f} to {after / 2**20:.1f} MiB, "
                f"files {files} to {files_after}, threads {threads} to {threads_after}"
            )

    tally.attempt(f"{setting.name}: {epochs} epochs", check, "right")


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
