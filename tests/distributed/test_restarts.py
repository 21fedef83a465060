"""Ranks that torchrun starts again after a failure (``--max-restarts``)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import shard_jobs
from agent import TRAIN, Agent, command, dies
from rank_pool import Ranks

import lmc
from lmc.train import manifest

LONGER = [*TRAIN[:3], "3", *TRAIN[4:], "--checkpoint-every", "3steps", "--method"]


def outcome(folder: Path) -> tuple[list[object], bytes, list[object]]:
    """What a run of ranks ended with: its records, its best parameters and the digests of all ranks' rows."""
    record, saved = lmc.results.read_run(folder), json.loads((folder / manifest.FILE).read_text())
    scores = [(epoch.loss, epoch.scores) for epoch in record.epochs]
    return scores, (folder / "best.safetensors").read_bytes(), saved["ranks"]


@pytest.mark.parametrize(
    ("method", "rank", "counted", "named"),
    [("cmc", 0, (1, 0), ()), ("imc", 1, (0, 1), ("--run-dir", "runs/named"))],
)
def test_ranks_that_start_again_end_as_undisturbed_ones(
    method: str, rank: int, counted: tuple[int, int], named: tuple[str, ...], two: Ranks, tmp_path: Path
) -> None:
    """Machines count their own failures, so ranks have different counts; the run folder is chosen by rank 0."""
    answers = two(shard_jobs.command, [*LONGER, method, "--run-dir", str(tmp_path / "whole")])
    assert [code for code, _ in answers] == [0, 0], answers
    agent = Agent(tmp_path)
    agent.start(2, dies, rank, 5, [*LONGER, method, *named])
    codes, outputs = agent.wait()
    assert codes == [9 if each == rank else 2 for each in range(2)], outputs
    (folder,) = (tmp_path / "runs").iterdir()
    saved = json.loads((folder / manifest.FILE).read_text())
    assert (saved["epoch"], saved["step"]) == (1, 1)  # after 3 of 4 steps; an epoch has 2
    agent.start(2, command, [*LONGER, method, *named], failures=counted)
    codes, outputs = agent.wait()
    assert codes == [0, 0], outputs
    assert list((tmp_path / "runs").iterdir()) == [folder]
    assert outcome(folder) == outcome(tmp_path / "whole")


def twice() -> None:
    """Two runs in one folder, of which the second one is refused in the start that began the first."""
    g = lmc.load("tiny-like")
    for _ in range(2):
        model = lmc.models.GCN(g.num_features, 8, g.num_classes)
        try:
            lmc.fit(g, model, lmc.methods.GAS(num_parts=4, clusters_per_batch=1), 1, device="cpu", run_dir="run")
            sys.stdout.write("trained;")
        except lmc.errors.LmcError as error:
            sys.stdout.write(str(error))


def test_a_folder_is_continued_by_a_later_start_alone(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    for start in range(2):
        agent.start(2, twice)
        codes, outputs = agent.wait()
        assert codes == [0, 0], outputs
        assert outputs[0].count("trained;") == 1 + start
        assert outputs[0].count("expected a new run folder") == 1 - start
