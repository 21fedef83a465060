"""Training from a folder of shards is training from the graph in memory; what does not belong together is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import shard_jobs
import torch
from jobs import Case
from rank_pool import Ranks
from typer.testing import CliRunner

import lmc
from lmc.cli.app import app
from lmc.data import write_shards
from lmc.errors import ConfigError, DataError
from lmc.methods import CMC, LMC4Conv
from lmc.partition import group_parts

CASE = Case(CMC(clusters_per_batch=1))


def written(case: Case, folder: Path, ranks: int = 2) -> str:
    """The folder of a case's graph, with the parts of its run in memory."""
    graph = case.make_graph()
    parts = case.make_parts(graph)
    write_shards(graph, parts, group_parts(graph, parts, ranks), ranks, folder)
    return str(folder)


@pytest.mark.parametrize(
    "case",
    [
        CASE,
        Case(LMC4Conv(clusters_per_batch=2), "gcn-layer-norm", "directed-weighted"),
        Case(CMC(), sparse=True),
        Case(LMC4Conv(clusters_per_batch=1), "wrap-mixed", "edge-features"),
        Case(LMC4Conv(clusters_per_batch=1), graph="no-features"),
    ],
    ids=["cmc", "lmc-directed", "cmc-sparse", "edge-features", "no-features"],
)
def test_training_from_the_folder_is_that_from_the_graph_bit_for_bit(case: Case, two: Ranks, tmp_path: Path) -> None:
    folder = written(case, tmp_path)
    want, folders, shards = (two(shard_jobs.from_folder, case, folder, way) for way in ("graph", "folder", "shard"))
    for whole, *others in zip(want, folders, shards, strict=True):
        for other in others:
            assert other["epochs"] == whole["epochs"]
            assert all(torch.equal(other["parameters"][name], value) for name, value in whole["parameters"].items())
            assert other["evaluated"] == whole["alone"]
            torch.testing.assert_close(other["predicted"], whole["exact"], rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(other["some"], whole["some"], rtol=1e-12, atol=1e-12)


def refused_by_all(ranks: Ranks, error: type[Exception], match: str, *arguments: object) -> None:
    """Every rank refuses in the same words."""
    ranks.expected = error
    found = ranks(shard_jobs.bind_folder, *arguments)
    ranks.expected = ConfigError
    assert len({str(each) for each in found}) == 1, found
    with pytest.raises(error, match=match):
        raise found[0]


def test_shards_of_an_inductive_graph_are_refused_by_every_rank(two: Ranks, tmp_path: Path) -> None:
    case = Case(CMC(clusters_per_batch=1), graph="inductive")
    folder = written(case, tmp_path)
    refused_by_all(two, ConfigError, "expected inductive=False for a folder of shards", case, folder)


def test_a_damaged_folder_is_refused_by_every_rank(two: Ranks, tmp_path: Path) -> None:
    folder = written(CASE, tmp_path)
    path = tmp_path / "rank-1" / "shard.npz"
    path.write_bytes(path.read_bytes()[:-1])
    refused_by_all(two, DataError, "rank-1/shard.npz as manifest.json describes it .* copy it again", CASE, folder)
    (tmp_path / "manifest.json").unlink()
    refused_by_all(two, DataError, "without manifest.json", CASE, folder)


def test_another_number_of_ranks_or_parts_is_refused_by_every_rank(two: Ranks, tmp_path: Path) -> None:
    folder = written(CASE, tmp_path / "three", ranks=3)
    refused_by_all(two, DataError, r"made for 3 ranks\): start 3 ranks, or run lmc shard with --ranks 2", CASE, folder)
    folder = written(CASE, tmp_path / "two")
    six = Case(CMC(num_parts=6, clusters_per_batch=1))
    refused_by_all(two, ConfigError, r"num_parts=8, by which the shards were divided \(got 6\)", six, folder)
    refused_by_all(two, ConfigError, "expected no parts for a shard", CASE, folder, True, 0)
    refused_by_all(two, ConfigError, r"shard of rank 1 of 2 \(got that of rank 0 of 2\)", CASE, folder, False, 0)


def test_shards_of_two_graphs_are_refused_by_every_rank(two: Ranks, tmp_path: Path) -> None:
    folder, other = written(CASE, tmp_path / "one"), Path(written(Case(CMC(), graph="large"), tmp_path / "two"))
    manifest, theirs = (json.loads((at / "manifest.json").read_text()) for at in (tmp_path / "one", other))
    manifest["ranks"][1] = theirs["ranks"][1]
    (tmp_path / "one" / "rank-1" / "shard.npz").write_bytes((other / "rank-1" / "shard.npz").read_bytes())
    (tmp_path / "one" / "manifest.json").write_text(json.dumps(manifest))
    refused_by_all(two, ConfigError, "shards of one graph and one partition", CASE, folder)


def test_a_process_without_torchrun_and_other_folders_are_refused(tmp_path: Path) -> None:
    folder, graph = written(CASE, tmp_path / "shards"), CASE.make_graph()
    model = CASE.make_model(graph)
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node 2, or load the whole graph"):
        CASE.method.bind(folder, model, device="cpu")
    with pytest.raises(DataError, match=r"expected a folder of lmc shard \(got .*nothing\)"):
        CASE.method.bind(str(tmp_path / "nothing"), model, device="cpu")


def test_the_commands_train_from_the_folder_as_from_the_file(two: Ranks, tmp_path: Path) -> None:
    file, folder = str(lmc.save(lmc.load("tiny-like"), tmp_path / "graph.npz")), str(tmp_path / "shards")
    args = ["shard", file, "--ranks", "2", "--parts", "6", "--partition", "metis", "--out", folder]
    assert CliRunner().invoke(app, args).exit_code == 0
    found = []
    for name, source in (("file", [file, "--parts", "6"]), ("folder", [folder])):
        options = ["--method", "cmc", "--clusters", "1", "--epochs", "2", "--device", "cpu", "--run-dir"]
        (code, output), (other, silent) = two(shard_jobs.command, ["train", *source, *options, str(tmp_path / name)])
        assert code == other == 0, output + silent
        assert "rank 0 owns" in output
        assert not silent
        found.append(lmc.load_run(tmp_path / name))
    (a, _, records), (b, _, others) = found
    assert [(e.loss, e.scores) for e in records.epochs] == [(e.loss, e.scores) for e in others.epochs]
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_options_of_a_whole_graph_and_a_process_alone_are_refused(tmp_path: Path) -> None:
    folder = written(CASE, tmp_path)
    for options, message in (
        (["--method", "cmc", "--partition", "metis"], "expected no --partition for a folder of shards"),
        (["--method", "cmc", "--dry-run"], "expected no --dry-run for a folder of shards"),
        ([], "expected --method for a folder of shards (got auto"),
        (["--method", "cmc", "--clusters", "auto"], "expected --clusters for a folder of shards (got auto"),
        (["--method", "cmc"], "(got one that was started alone): use torchrun --nproc-per-node 2"),
    ):
        result = CliRunner().invoke(app, ["train", folder, "--device", "cpu", *options])
        assert result.exit_code == 2
        assert message in " ".join(result.output.split())
    with pytest.raises(DataError, match=r"expected a whole graph \(got .*, a folder of lmc shard\): train on it"):
        lmc.load(folder)
