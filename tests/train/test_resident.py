"""What a whole run, from loading to evaluation, keeps in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import resource, sys
from lmc.cli.app import app
app(sys.argv[1:], standalone_mode=False)
print("PEAK", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
COMMON = (
    "train", "products-like", "--scale", "0.05", "--method", "cmc:partition=random",
    "--model", "gcn:hidden=256:layers=4", "--epochs", "1", "--parts", "600", "--clusters", "1",
    "--rebuild-batches", "--device", "cpu",
)  # fmt: skip


def peak(folder: Path, *options: str) -> int:
    environment = os.environ | {"TMPDIR": str(folder)}
    command = [sys.executable, "-c", RUN, *COMMON, *options, "--run-dir", str(folder / "run")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split("PEAK")[1])


@pytest.mark.slow
def test_tables_on_disk_are_not_in_memory(tmp_path: Path) -> None:
    n, width, tables = 122_451, 256, 6
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    here = peak(tmp_path / "a")
    away = peak(tmp_path / "b", "--history", "disk", "--features", "disk")
    # 64 MiB of every table may stay mapped
    assert away < here - tables * (n * width * 4 - 2**26) * 0.5
