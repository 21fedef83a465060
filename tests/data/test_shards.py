"""Folders of shards: what is read from them is the cut of the graph in memory, and damage is refused."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import lmc
from helpers import SPECIAL_GRAPHS, parts_of, random_graph
from lmc.data import is_sharded, read_shard, stream, write_shards
from lmc.errors import DataError
from lmc.graph import CSR, Graph, Shard, csr
from lmc.partition import group_parts

GRAPHS = {"random": random_graph, "sparse": lambda: random_graph(sparse_features=True), **SPECIAL_GRAPHS}


def assert_same(a: object, b: object) -> None:
    """Equal tensors, matrices, graphs and numbers, field by field."""
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor)
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    elif isinstance(a, Shard | Graph | CSR):
        for field in fields(a):
            if field.name not in ("_cache", "files"):
                assert_same(getattr(a, field.name), getattr(b, field.name))
    else:
        assert a == b
        assert type(a) is type(b)


def written(folder: Path, graph: Graph, ranks: int = 3) -> list[Shard]:
    """The folder of a graph, and its cut in memory."""
    parts = parts_of(graph, 6)
    owners = group_parts(graph, parts, ranks)
    write_shards(graph, parts, owners, ranks, folder)
    return [Shard.cut(graph, parts, owners, rank, ranks) for rank in range(ranks)]


@pytest.mark.parametrize("name", GRAPHS)
def test_a_shard_from_a_mapped_graph_is_the_cut_in_memory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = GRAPHS[name]()
    want = written(tmp_path / "loaded", lmc.load(lmc.save(graph, tmp_path / f"{graph.name}.npz")))
    monkeypatch.setattr(stream, "CHUNK", 17)
    monkeypatch.setattr(csr, "CHUNK", 23)
    mapped = lmc.load(tmp_path / f"{graph.name}.npz", mapped=True)
    written(tmp_path / "mapped", mapped)
    for folder in ("loaded", "mapped"):
        for rank, cut in enumerate(want):
            assert_same(cut, read_shard(tmp_path / folder, rank, ranks=3))


def test_a_folder_without_its_manifest_is_refused(tmp_path: Path) -> None:
    written(tmp_path, random_graph())
    assert is_sharded(tmp_path)
    (tmp_path / "manifest.json").unlink()
    assert is_sharded(tmp_path)
    with pytest.raises(DataError, match=r"that lmc shard has completed \(got .* without manifest.json\): write"):
        read_shard(tmp_path, 0)
    assert not is_sharded(tmp_path / "nothing")


def test_an_interrupted_second_writing_leaves_no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, random_graph())
    real = Shard.cut

    def cut(graph: Graph, parts: torch.Tensor, owners: torch.Tensor, rank: int, ranks: int) -> Shard:
        if rank == 1:
            raise KeyboardInterrupt
        return real(graph, parts, owners, rank, ranks)

    monkeypatch.setattr(Shard, "cut", cut)
    with pytest.raises(KeyboardInterrupt):
        written(tmp_path, random_graph(seed=1))
    with pytest.raises(DataError, match=r"without manifest\.json"):
        read_shard(tmp_path, 0)


@pytest.mark.parametrize("damage", ["byte", "length", "missing"])
def test_a_damaged_file_is_refused_by_its_rank_alone(damage: str, tmp_path: Path) -> None:
    written(tmp_path, random_graph())
    path = tmp_path / "rank-1" / "shard.npz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content[:-1] if damage == "length" else content)
    if damage == "missing":
        path.unlink()
    read_shard(tmp_path, 0)
    with pytest.raises(
        DataError, match=r"rank-1/shard.npz as manifest.json describes it \(got (a file|no such)"
    ) as found:
        read_shard(tmp_path, 1)
    assert "\n" not in str(found.value)


def test_other_numbers_of_ranks_and_other_manifests_are_refused(tmp_path: Path) -> None:
    written(tmp_path, random_graph())
    for rank, ranks in ((3, None), (0, 2), (-1, 3)):
        with pytest.raises(DataError, match=r"made for 3 ranks\): start 3 ranks"):
            read_shard(tmp_path, rank, ranks)
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 99}))
    with pytest.raises(DataError, match=r"expected format 1 .* \(got 99\)"):
        read_shard(tmp_path, 0)
    manifest.write_text("{")
    with pytest.raises(DataError, match=r"expected a whole .*manifest.json \(got a damaged file\)"):
        read_shard(tmp_path, 0)
