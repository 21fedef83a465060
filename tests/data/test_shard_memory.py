"""The memory of one rank, measured in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lmc
from lmc.data import kept, read_shard, write_shards
from lmc.partition import coarse_pieces, parts_in_pieces

MEASURE = """
import re, sys
from pathlib import Path
import lmc
from lmc.data import kept, read_shard
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
before = peak()
graph = kept.read(Path(sys.argv[1]), "whole") if sys.argv[2] == "whole" else read_shard(sys.argv[1], int(sys.argv[2]))
print(peak() - before)
"""


def peak(*args: str) -> int:
    """Bytes by which reading raises the peak of a process."""
    return int(
        subprocess.run([sys.executable, "-c", MEASURE, *args], check=True, capture_output=True, text=True).stdout
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
def test_a_rank_of_four_needs_a_third_of_one_process_beside_its_mirrors(tmp_path: Path) -> None:
    graph = lmc.load("arxiv-like")
    kept.write(graph, tmp_path / "graph")
    parts, owners = parts_in_pieces(graph, coarse_pieces(graph, 4), 80)
    write_shards(graph, parts, owners, 4, tmp_path / "shards")
    whole = peak(str(tmp_path / "graph"), "whole")
    for rank in range(4):
        shard = read_shard(tmp_path / "shards", rank)
        mirrors = shard.graph.x[shard.num_owned :].nbytes
        assert peak(str(tmp_path / "shards"), str(rank)) - mirrors <= 0.35 * whole


SHARD = """
import re, sys
from pathlib import Path
from lmc.cli.app import app, prepare_process
prepare_process()
import lmc, lmc.cli.shard, pymetis
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
before = peak()
if len(sys.argv) > 2:
    app(["shard", sys.argv[1], "--ranks", "4", "--parts", "120", "--out", sys.argv[2]], standalone_mode=False)
else:
    graph = lmc.load(sys.argv[1])
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from /proc")
def test_writing_shards_needs_half_the_memory_of_loading(tmp_path: Path) -> None:
    file = lmc.save(lmc.load("products-like@0.1"), tmp_path / "graph.npz")

    def measured(*args: str) -> int:
        command = [sys.executable, "-c", SHARD, str(file), *args]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])

    assert measured(str(tmp_path / "shards")) <= 0.5 * measured()
