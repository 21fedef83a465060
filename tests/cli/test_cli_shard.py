"""``lmc shard`` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import lmc
from lmc.cli.app import app
from lmc.data import read_shard


def test_shard_writes_a_folder_per_rank(tmp_path: Path) -> None:
    lmc.save(lmc.load("tiny-like"), tmp_path / "graph.npz")
    args = ["shard", str(tmp_path / "graph.npz"), "--ranks", "2", "--parts", "6", "--out", str(tmp_path / "shards")]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    assert "mirrors" in result.output
    shards = [read_shard(tmp_path / "shards", rank, ranks=2) for rank in range(2)]
    owned = torch.cat([shard.ids[: shard.num_owned] for shard in shards])
    assert torch.equal(owned.sort().values, torch.arange(shards[0].num_nodes))
    assert [shard.parts[: shard.num_owned].unique().numel() for shard in shards] == [3, 3]


def test_the_same_graph_is_written_again_and_another_one_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "shards"

    def shard(graph: str, ranks: int) -> str:
        args = ["shard", graph, "--ranks", str(ranks), "--parts", "6", "--out", str(folder)]
        return " ".join(CliRunner().invoke(app, args).output.split())

    for ranks in (3, 2):
        assert "written" in shard("tiny-like@0.3", ranks)
        assert {path.name for path in folder.glob("rank-*")} == {f"rank-{rank}" for rank in range(ranks)}
    assert "expected no folder, or one of this graph (got " in shard("tiny-like@0.4", 2)
    assert read_shard(folder, 1, ranks=2).num_nodes == 450


def test_files_that_are_no_shards_stay(tmp_path: Path) -> None:
    own = tmp_path / "rank-3" / "notes.txt"
    own.parent.mkdir()
    own.write_text("mine")
    for ranks in ("4", "2"):
        args = ["shard", "tiny-like@0.3", "--ranks", ranks, "--parts", "6", "--out", str(tmp_path)]
        result = CliRunner().invoke(app, args)
        assert result.exit_code == 0, result.output
    assert own.read_text() == "mine"
    assert sorted(path.parent.name for path in tmp_path.glob("rank-*/shard.npz")) == ["rank-0", "rank-1"]
    assert not (tmp_path / "rank-2").exists()


@pytest.mark.parametrize(("ranks", "parts"), [("0", "4"), ("4", "3"), ("2", "99999999")])
def test_numbers_that_do_not_fit_are_refused(ranks: str, parts: str, tmp_path: Path) -> None:
    args = ["shard", "tiny-like", "--ranks", ranks, "--parts", parts, "--out", str(tmp_path / "shards")]
    result = CliRunner().invoke(app, args)
    assert result.exit_code != 0
    assert "expected --" in result.output
    assert not (tmp_path / "shards").exists()


def test_training_with_edges_on_disk_gives_the_run_in_memory(tmp_path: Path) -> None:
    lmc.save(lmc.load("tiny-like"), tmp_path / "graph.npz")
    found = []
    for structure in ("host", "disk"):
        args = ["train", str(tmp_path / "graph.npz"), "--parts", "6", "--clusters", "2", "--epochs", "1", "--device"]
        args += ["cpu", "--partition", "stream", "--structure", structure, "--run-dir", str(tmp_path / structure)]
        result = CliRunner().invoke(app, args)
        assert result.exit_code == 0, result.output
        model, _, record = lmc.load_run(tmp_path / structure)
        found.append((record.test, [p.detach() for p in model.parameters()]))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))
