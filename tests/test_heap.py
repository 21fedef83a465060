"""``keep_memory``: freed memory stays with the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import resource, lmc, torch
enabled = lmc.keep_memory() if {keep} else None
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for step in range(16):
    if step == 8:  # the first steps fill the heap
        before = faults()
    torch.ones(2**24) + 1
print(enabled, faults() - before)
"""


def child(keep: bool) -> tuple[str, int]:
    done = subprocess.run([sys.executable, "-c", CHILD.format(keep=keep)], capture_output=True, text=True, check=True)
    enabled, faults = done.stdout.split()
    return enabled, int(faults)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_a_step_does_not_fault_its_pages_in_again() -> None:
    enabled, kept = child(keep=True)
    _, fresh = child(keep=False)
    assert enabled == "True"
    assert kept * 4 < fresh


HUGE = """
import re, lmc
{call}
import torch
kept = torch.ones(2**25)
print(re.search(r"AnonHugePages: *([0-9]+)", open("/proc/self/smaps_rollup").read())[1])
"""


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage/enabled").is_file()
    or "[madvise]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(),
    reason="a kernel that gives huge pages to those that ask",
)
def test_large_tensors_lie_in_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)

    def kilobytes(call: str) -> int:
        code = HUGE.format(call=call)
        return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)

    assert kilobytes("lmc.keep_memory()") > 2**16 > kilobytes("")
