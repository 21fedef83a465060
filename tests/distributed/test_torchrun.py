"""Processes as torchrun starts them: the command line and its refusals."""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
from agent import TRAIN, command, dies, launch

import lmc
from lmc.data import write_shards
from lmc.partition import group_parts


def sleeps() -> None:
    """Training in which rank 1 makes the others wait for longer than the timeout."""
    g = lmc.load("tiny-like")
    model = lmc.models.GCN(g.num_features, 8, g.num_classes)
    method = lmc.methods.GAS(num_parts=4, clusters_per_batch=1)
    run = method.bind(g, model, device="cpu", distributed=lmc.Distributed(timeout=2.0))
    batch = next(run.batches())
    if int(os.environ["RANK"]) == 1:
        time.sleep(2.5)
        os._exit(0)
    try:
        run.accumulate(batch)
    except lmc.errors.DistributedError as error:
        sys.stdout.write(str(error))
        sys.stdout.flush()
        os._exit(5)


def test_lmc_train_trains_on_all_ranks_and_rank_0_speaks(tmp_path: Path) -> None:
    codes, outputs = launch(2, tmp_path, command, [*TRAIN, "--method", "cmc", "--run-dir", "run"])
    assert codes == [0, 0], outputs
    assert "ranks        2; rank 0 owns" in outputs[0]
    assert "epoch  2/2" in outputs[0]
    assert outputs[1] == ""
    assert len(lmc.load_run(tmp_path / "run")[2].epochs) == 2


def test_a_damaged_shard_of_one_rank_is_printed_once_and_every_rank_exits(tmp_path: Path) -> None:
    g = lmc.load("tiny-like")
    parts = lmc.partition.partition(g, 4)
    write_shards(g, parts, group_parts(g, parts, 2), 2, tmp_path / "shards")
    (tmp_path / "shards" / "rank-1" / "shard.npz").write_bytes(b"")
    codes, outputs = launch(2, tmp_path, command, ["train", "shards", *TRAIN[6:], "--method", "lmc"])
    assert codes == [2, 2], outputs
    assert [output.count("error:") for output in outputs] == [1, 0]
    assert "rank-1/shard.npz as manifest.json describes it" in " ".join(outputs[0].split())


def test_a_refusal_is_printed_once_and_every_rank_exits_with_its_code(tmp_path: Path) -> None:
    codes, outputs = launch(2, tmp_path, command, [*TRAIN[:4], *TRAIN[8:], "--method", "full"])
    assert codes == [2, 2], outputs
    assert [output.count("error:") for output in outputs] == [1, 0]
    assert 'it can be run with sync="layer"' in " ".join(outputs[0].split())


def test_a_rank_that_dies_ends_the_others_with_one_line_that_names_the_step(tmp_path: Path) -> None:
    codes, outputs = launch(2, tmp_path, dies, 0, 2, [*TRAIN, "--method", "lmc", "--run-dir", "run"])
    assert codes == [9, 2], outputs
    line = " ".join(outputs[1].split())
    assert line.count("error:") == 1
    assert "got none at rank 1 in epoch 1, step 2" in line


def test_a_rank_that_waits_too_long_ends_with_one_line_that_names_the_step(tmp_path: Path) -> None:
    codes, outputs = launch(2, tmp_path, sleeps)
    assert codes == [5, 0], outputs
    assert "within 2 s (got none at rank 0 in epoch 1, step 1): another rank failed or is too slow" in outputs[0]


@pytest.mark.parametrize("code", [1, 2, 130, 143])
def test_a_rank_that_fails_or_is_stopped_ends_without_destroying_its_process_group(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads of gloo may still wait for a rank that has ended."""
    ended: list[int] = []

    def stopped(prog_name: str) -> None:
        raise SystemExit(code)

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("lmc.engine.distributed.end", ended.append)
    command = import_module("lmc.cli.app")
    monkeypatch.setattr(command, "app", stopped)
    with pytest.raises(SystemExit):
        command.main()
    assert ended == [code]


def test_options_of_ranks_need_torchrun(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["lmc", *TRAIN, "--sync", "layer"])
    from lmc.cli import main

    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "expected a process of torchrun for --sync" in " ".join(capsys.readouterr().err.split())
