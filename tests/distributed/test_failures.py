"""A rank that is killed, and what is left of its work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jobs
import pytest
import torch
from jobs import Case
from rank_pool import Ranks

from lmc.errors import ConfigError, DistributedError
from lmc.methods import GAS, LMC4Conv

CASE = Case(LMC4Conv(clusters_per_batch=1))
OPTIONS: dict[str, Any] = {"epochs": 3, "lr": 0.05, "checkpoint_every": "3steps"}


@pytest.mark.parametrize(
    ("case", "more", "message"),
    [
        (CASE, {"lr": 0.3}, r"the same lr on every rank \(got 0.05 on rank 0, and 0.3 on rank 1\): start all"),
        (Case(GAS(clusters_per_batch=1)), {}, r"the same method on every rank \(got LMC4Conv\(.* on rank 1"),
        (replace(CASE, model="sage"), {}, r"the same model on every rank \(got \('GCN'"),
        (replace(CASE, options={"wire": "bfloat16"}), {}, "the same options of ranks on every rank"),
        (replace(CASE, graph="large"), {}, r"the same checksum of the graph on every rank \(got \w{12} on rank 0, and"),
        (replace(CASE, scattered=True), {}, "the same checksum of the division into parts on every rank"),
    ],
    ids=["lr", "method", "model", "wire", "graph", "parts"],
)
def test_a_rank_with_other_settings_is_refused_on_all_ranks(
    case: Case, more: dict[str, Any], message: str, two: Ranks
) -> None:
    found = two(jobs.fit_differing, [CASE, case], [OPTIONS, OPTIONS | more])
    assert str(found[0]) == str(found[1])
    with pytest.raises(ConfigError, match=message):
        raise found[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_others_and_loses_the_steps_since_the_checkpoint(
    rank: int, two: Ranks, tmp_path: Path
) -> None:
    whole = two(jobs.fit, CASE, OPTIONS, None)
    (tmp_path / "ranks").mkdir()
    doomed = Ranks(2, tmp_path / "ranks")
    try:
        with pytest.raises((DistributedError, EOFError, ConnectionResetError)) as found:
            doomed(jobs.killed, CASE, OPTIONS, str(tmp_path / "run"), rank, 8)
    finally:
        doomed.close()
    if isinstance(found.value, DistributedError):
        assert f"at rank {1 - rank} in epoch 2, step 4" in str(found.value) or "in epoch 3, step 1" in str(found.value)
    manifest = json.loads((tmp_path / "run" / "checkpoint.json").read_text())
    assert (manifest["epoch"], manifest["step"]) == (1, 2)
    rest = two(jobs.fit, CASE, {**OPTIONS, "resume": True}, str(tmp_path / "run"))
    for (records, parameters, _), (others, same, _) in zip(whole, rest, strict=True):
        assert records == others
        assert all(torch.equal(parameters[name], value) for name, value in same.items())
