"""The cache of partitions on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lmc.graph import Graph
from lmc.partition import dispatch, partition


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record every run of METIS."""
    made: list[int] = []
    metis = dispatch.METHODS["metis"]

    def counted(graph: Graph, num_parts: int, seed: int) -> Tensor:
        made.append(num_parts)
        return metis(graph, num_parts, seed)

    monkeypatch.setitem(dispatch.METHODS, "metis", counted)
    return made


def test_the_second_call_reads_the_file(graph: Graph, cache: Path, calls: list[int]) -> None:
    first = partition(graph, 5)
    assert torch.equal(first, partition(graph, 5))
    assert calls == [5]
    (file,) = cache.iterdir()
    assert file.name == f"{graph.fingerprint}-metis-5-0.npz"


def test_every_argument_has_a_file_of_its_own(graph: Graph, cache: Path, calls: list[int]) -> None:
    partition(graph, 5)
    partition(graph, 6)
    partition(graph, 5, seed=1)
    partition(graph, 5, "label-propagation")
    partition(graph.permute(torch.arange(graph.num_nodes).flip(0)), 5)
    assert len(list(cache.iterdir())) == 5
    assert calls == [5, 6, 5, 5]


def test_nothing_is_stored_without_cache_or_for_random_parts(graph: Graph, cache: Path, calls: list[int]) -> None:
    partition(graph, 5, cache=False)
    partition(graph, 5, "random")
    assert not cache.exists()


@pytest.mark.parametrize("damage", ["empty", "truncated", "text", "other key", "too short", "out of range", "objects"])
def test_a_damaged_file_is_replaced(graph: Graph, cache: Path, calls: list[int], damage: str) -> None:
    good = partition(graph, 5)
    (file,) = cache.iterdir()
    content = file.read_bytes()
    if damage == "empty":
        file.write_bytes(b"")
    elif damage == "truncated":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "text":
        file.write_text("parts")
    else:
        wrong = {
            "other key": {"part": good.numpy()},
            "too short": {"parts": good.numpy()[:-1]},
            "out of range": {"parts": good.numpy() + 1},
            "objects": {"parts": np.array([None] * graph.num_nodes)},
        }[damage]
        np.savez(file, **wrong)
    assert torch.equal(partition(graph, 5), good)
    assert calls == [5, 5]
    assert torch.equal(partition(graph, 5), good)
    assert calls == [5, 5], "the file was repaired"


def test_a_cache_that_cannot_be_written_is_no_error(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert partition(graph, 3).numel() == graph.num_nodes
