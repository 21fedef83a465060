"""Checkpoints of several ranks: the same number of ranks continues bit for bit, another number by slices."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import jobs
import pytest
import torch
from jobs import Case
from rank_pool import Ranks
from test_step import assert_same_rows, one_process

import lmc
from lmc.engine import Run
from lmc.errors import CheckpointError, DistributedError
from lmc.methods import CMC, IMC, LMC4Conv
from lmc.train import manifest

SETTINGS: dict[str, Any] = {"epochs": 3, "lr": 0.05, "checkpoint_every": "1epochs"}
PLAIN: dict[str, Any] = {"epochs": 2, "lr": 0.5, "optimizer": "sgd", "checkpoint_every": "1epochs"}
METHODS: dict[str, Case] = {
    "lmc-dropout": Case(LMC4Conv(clusters_per_batch=1), "gcn-dropout", options={"wire": "bfloat16"}),
    "lmc-sync-every": Case(LMC4Conv(clusters_per_batch=1), options={"sync_every": 3}),
    "cmc": Case(CMC(clusters_per_batch=1)),
    "imc": Case(IMC(clusters_per_batch=1), graph="large"),
}


def same(a: Any, b: Any) -> bool:
    """Whether two results are equal to the last bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.parametrize("name", METHODS)
def test_the_same_ranks_continue_bit_for_bit(name: str, two: Ranks, tmp_path: Path) -> None:
    case = METHODS[name]
    whole = two(jobs.resumable, case, SETTINGS, None)
    first = two(jobs.resumable, case, SETTINGS, str(tmp_path / "run"), 5)
    assert all("stopped after epoch 1, step 1; saved in" in rank["stopped"] for rank in first)  # 4 steps an epoch
    rest = two(jobs.resumable, case, SETTINGS, str(tmp_path / "run"))
    for a, b in zip(whole, rest, strict=True):
        for what in ("records", "parameters", "tables", "numbers", "generator", "position"):
            assert same(a[what], b[what]), what
        assert same(a["cores"][5:], b["cores"])


def state_by_node(case: Case, saved: list[dict[str, Any]]) -> Callable[[Run], dict[tuple[int, ...], int]]:
    """A function that gives a run of one process what the ranks had: parameters, rows, and columns of numbers."""

    def begin(run: Run) -> dict[tuple[int, ...], int]:
        run.problem.model.load_state_dict(saved[0]["parameters"])
        row, slots = run.clusters.order.argsort(), {}
        for rank in saved:
            nodes, offsets = rank["ids"][: rank["owned"]], rank["offsets"]
            for name, table in run.named_tables().items():
                table.push(row[nodes], rank["tables"][name][: len(nodes)])
            for k, (a, b) in enumerate(pairwise(offsets)):
                slot = slots[tuple(nodes[a:b].tolist())] = run.clusters.offsets.index(int(row[nodes[a]]))
                for name, numbers in run.numbers.items():
                    numbers[:, slot] = rank["numbers"][name][:, k]
        return slots

    return begin


@pytest.mark.parametrize(
    ("method", "before", "after"),
    [
        *[(LMC4Conv(clusters_per_batch=1), *numbers) for numbers in ((2, 1), (2, 4), (4, 2), (1, 2))],
        *[(CMC(clusters_per_batch=1), *numbers) for numbers in ((2, 1), (2, 4))],
    ],
    ids=["lmc-2-1", "lmc-2-4", "lmc-4-2", "lmc-1-2", "cmc-2-1", "cmc-2-4"],
)
def test_another_number_of_ranks_continues_from_the_same_rows(
    method: LMC4Conv | CMC, before: int, after: int, two: Ranks, four: Ranks, tmp_path: Path
) -> None:
    case, folder, ranks = Case(method), str(tmp_path), {1: alone, 2: two, 4: four}
    saved = ranks[before](jobs.resumable, case, PLAIN, folder, 8 // before)
    assert all("stopped after epoch 1, step 0" in rank["stopped"] for rank in saved)
    rest = ranks[after](jobs.resumable, case, PLAIN, folder)
    assert all(len(rank["cores"]) == 8 // after for rank in rest)
    _, run = one_process(case, rest, state_by_node(case, saved))
    assert_same_rows(run, rest)
    assert (tmp_path / "checkpoint.safetensors").exists() == (after == 1)
    assert (tmp_path / manifest.FILE).exists() == (after > 1)


def alone(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The result of a job on one process without others."""
    return [function(*arguments)]


def test_a_method_with_sweeps_computes_its_rows_anew_on_another_number_of_ranks(two: Ranks, tmp_path: Path) -> None:
    case = Case(IMC(clusters_per_batch=1), graph="large")
    saved = two(jobs.resumable, case, PLAIN, str(tmp_path), 4)
    (rest,) = alone(jobs.resumable, case, PLAIN, str(tmp_path))
    run = case.bind()
    run.problem.model.load_state_dict(saved[0]["parameters"])
    run.refresh()
    optimizer = jobs.optimizer_of(run)
    for batch in run.batches(epoch=1):
        run.step(batch, optimizer)
    assert_same_rows(run, [rest])


def test_an_interrupted_epoch_begins_again_on_another_number_of_ranks(two: Ranks, tmp_path: Path) -> None:
    case = Case(LMC4Conv(clusters_per_batch=1))
    two(jobs.resumable, case, PLAIN, str(tmp_path), 6)
    (rest,) = alone(jobs.resumable, case, PLAIN, str(tmp_path))
    assert len(rest["cores"]) == 8
    assert len(rest["records"]) == 2


@pytest.fixture
def saved(two: Ranks, tmp_path: Path) -> Path:
    """A run of two ranks with two checkpoints, of epochs 1 and 2, and a third epoch to train."""
    two(jobs.resumable, Case(LMC4Conv(clusters_per_batch=1)), SETTINGS | {"epochs": 2}, str(tmp_path / "run"))
    return tmp_path / "run"


def files_of(folder: Path, name: str = manifest.FILE) -> Path:
    return folder / f"checkpoint-{json.loads((folder / name).read_text())['number']}"


def test_two_checkpoints_are_kept_and_damage_of_any_file_falls_back_to_the_older(
    saved: Path, two: Ranks, tmp_path: Path
) -> None:
    case = Case(LMC4Conv(clusters_per_batch=1))
    kept = {files_of(saved), files_of(saved, manifest.PREVIOUS)}
    assert {path for path in saved.iterdir() if path.is_dir()} == kept
    names = {f"{name}.safetensors" for name in ("shared", "rank-0", "rank-1")}
    assert all({file.name for file in folder.iterdir()} == names for folder in kept)
    newest = files_of(saved)
    shutil.copytree(saved, tmp_path / "undisturbed")
    whole = two(jobs.resumable, case, SETTINGS, str(tmp_path / "undisturbed"))
    for name in ("rank-1.safetensors", "shared.safetensors", "manifest", "missing"):
        copy = tmp_path / name
        shutil.copytree(saved, copy)
        file = copy / manifest.FILE if name in ("manifest", "missing") else copy / newest.name / name
        content = file.read_bytes()
        file.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
        if name == "missing":
            file.unlink()
        found = two(jobs.resumable, case, SETTINGS, str(copy))
        assert [len(rank["cores"]) for rank in found] == [8, 8], name  # epochs 2 and 3
        assert all(same(a["parameters"], b["parameters"]) for a, b in zip(whole, found, strict=True))


def test_a_file_of_another_checkpoint_is_not_the_one_of_the_manifest(saved: Path, two: Ranks) -> None:
    newest, previous = files_of(saved), files_of(saved, manifest.PREVIOUS)
    shutil.copy(previous / "rank-1.safetensors", newest / "rank-1.safetensors")
    found = two(jobs.resumable, Case(LMC4Conv(clusters_per_batch=1)), SETTINGS, str(saved))
    assert all(len(rank["cores"]) == 8 for rank in found)


def test_what_one_rank_refuses_is_refused_by_all(saved: Path, two: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two, "expected", (CheckpointError, DistributedError))
    other = two(jobs.resumable, Case(LMC4Conv(clusters_per_batch=1, alpha=0.1)), SETTINGS, str(saved))
    assert "expected the settings of the run in" in str(other[0])
    assert str(other[1]) == f"rank 0 failed: {other[0]}"
    parts = two(jobs.resumable, Case(LMC4Conv(clusters_per_batch=1), parts=4), SETTINGS | {"epochs": 4}, str(saved))
    assert all("num_parts: 8 there, 4 here" in str(error) for error in parts)


def test_the_model_of_a_run_of_ranks_can_be_loaded(saved: Path, two: Ranks) -> None:
    _, config, record = lmc.load_run(saved)
    assert (config["ranks"], config["num_parts"], config["nodes"], len(record.epochs)) == (2, 8, 40, 2)
