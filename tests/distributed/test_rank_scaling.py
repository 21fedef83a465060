"""``lmc bench scale --ranks``: what ranks exchange is counted as it is sent, and what the model adds up."""

from __future__ import annotations

import json
import os
import signal
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from rank_pool import Ranks
from typer.testing import CliRunner

import lmc
from helpers import random_graph, weighted_graph
from lmc.bench import Setup
from lmc.bench.launch import on_ranks
from lmc.bench.rank_model import (
    Network,
    RankLists,
    RowBytes,
    SingleRankTimings,
    Split,
    counted_bytes,
    model_epoch,
    rank_lists,
)
from lmc.bench.ranks import RankRecord, RankTimings, Timer, bound, split_of, time_ranks
from lmc.cli import app
from lmc.cli.ranks import RankScale, with_one_process
from lmc.errors import ConfigError, DistributedError
from lmc.graph import Shard
from lmc.methods import CMC, GAS, IMC, ClusterGCN, GraphFM, LMC4Conv
from lmc.partition import group_parts

SETUP = Setup(hidden=8, warmup=0, repeat=1)
METHODS = {
    "lmc": LMC4Conv(12, 2), "cmc": CMC(12, 2), "imc": IMC(12, 2, sweep_every="1step"), "gas": GAS(12, 2, redraw=True),
    "fm": GraphFM(12, 2), "cluster": ClusterGCN(12, 2),
}  # fmt: skip
COMMAND = (
    "bench", "scale", "tiny-like@0.3", "--ranks", "1,2", "--modelled", "4", "--parts", "8", "--clusters", "2",
    "--hidden", "8", "--layers", "2", "--repeat", "1", "--methods", "gas,imc:sweep_every=1", "--run-dir", "r",
)  # fmt: skip
LINE = RankRecord(
    2, "measured", "this machine", "gas", method="gas", steps=2, seconds=3.0, compute=2.0, wait=0.5, transfer=0.5,
    alone=4.0, sent=8.0, counted=8.0, mirrors=0.5,
)  # fmt: skip


def invoke(*arguments: str) -> tuple[int, str]:
    """``lmc ARGUMENTS``: the exit code and the output."""
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, " ".join(result.output.split())


def fails(rank: int, error: Exception) -> int:
    """Fail on one rank."""
    if int(os.environ["RANK"]) == rank:
        raise error
    return int(os.environ["WORLD_SIZE"])


def test_bytes_as_counted_are_bytes_as_sent(ranks: Ranks) -> None:
    graph = lmc.load("tiny-like@0.3")
    parts = METHODS["lmc"].parts_of(graph, SETUP.seed)
    answers = ranks(time_ranks, "tiny-like@0.3", METHODS, SETUP)
    for label, method in METHODS.items():
        seen: list[RankTimings] = [answer[0][label] for answer in answers]
        sweeps = len(seen[0].sweeps)
        lists = rank_lists(graph, parts, method, ranks.ranks, SETUP.seed)
        row = RowBytes.of(bound(graph, method, SETUP, {}))
        sent = sum(each.sent for each in seen)
        assert sent == SETUP.repeat * counted_bytes(lists, row, sweeps / SETUP.repeat), label
        assert (sent > 0) == (label != "cluster")
        assert (sweeps > 0) == (label == "imc")
        assert all(len(each.epochs) == SETUP.repeat for each in (*seen, answers[0][1][label]))
        for epoch in zip(*(each.epochs for each in seen), strict=True):
            split = split_of(epoch)
            assert min(split.compute, split.transfer) > 0 <= split.wait
            assert split.seconds == pytest.approx(sum(seconds for seconds, _ in epoch) / ranks.ranks)


@pytest.mark.parametrize("directed", [False, True])
def test_lists_are_those_of_the_shards(directed: bool) -> None:
    graph = weighted_graph(directed=True) if directed else random_graph()
    parts = torch.arange(graph.num_nodes) % 6
    method, owners = LMC4Conv(6, 1), group_parts(graph, parts, 3)
    lists = rank_lists(graph, parts, method, 3, seed=0)
    shards = [Shard.cut(graph, parts, owners, rank, 3) for rank in range(3)]
    assert lists.mirrored.tolist() == [list(shard.send_counts) for shard in shards]
    assert lists.owned.tolist() == [shard.num_owned for shard in shards]
    assert lists.steps == 2
    halos = 0  # of all batches, in nodes of other ranks
    for rank, shard in enumerate(shards):
        for step in range(lists.steps):
            core = ((lists.owner == rank) & (lists.step == step)).nonzero().squeeze(1)
            A = graph.adj.to_dense()
            read = ((A[core] != 0).any(0) | (A[:, core] != 0).any(1)) & (lists.owner != rank)
            assert int(lists.fetched[step, :, rank].sum()) == int(read.sum())
            halos += int(read.sum())
            reads = [((A[:, lists.owner == to] != 0).any(1) | (A[lists.owner == to] != 0).any(0)) for to in range(3)]
            expected = [int(reads[to][core].sum()) * (to != rank) for to in range(3)]
            assert lists.pushed[step, rank].tolist() == expected
        assert shard.num_local - shard.num_owned == int(lists.mirrored[:, rank].sum())
    assert halos == int(lists.fetched.sum())


def test_the_rank_that_arrives_last_waits_for_none() -> None:
    split = split_of([(5.0, [1.0, 0.25]), (5.0, [0.5, 0.75])])
    assert split == Split(compute=3.75, wait=0.5, transfer=0.75)
    assert split_of([(2.0, [])]) == Split(2.0, 0.0, 0.0)


def test_the_model_adds_up_the_slowest_ranks_their_bytes_and_their_messages() -> None:
    pushed = torch.tensor([[[0, 3], [1, 0]], [[0, 2], [4, 0]]])
    lists = RankLists(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1]), pushed, torch.zeros_like(pushed))
    alone = SingleRankTimings({0: 1.0, 1: 2.0, 2: 3.0, 3: 1.0}, sweep=4.0, sweeps=0.5)
    row = RowBytes((10,), (), (7, 7))
    split, latency = model_epoch(lists, row, alone, 100, Network(bandwidth=10.0, latency=0.5))
    assert alone.seconds == 9
    assert split.compute == (7 + 2) / 2  # steps and half a sweep, on two ranks
    assert split.wait == 5 - 3.5
    # two pushes, gradients after both steps, and the sweep's two messages, half of the time
    assert split.transfer - latency == pytest.approx((30 + 40 + 2 * 100 + 0.5 * 5 * 14) / 10)
    assert latency == 0.5 * (2 + 2 * 2 + 0.5 * 2)


def test_one_process_is_a_line_of_its_own() -> None:
    modelled = RankRecord(
        4, "modelled", "1 GB/s, 1 us", "gas", method="gas", steps=1, seconds=2.0, compute=0.5, wait=0.25, transfer=1.25,
        latency=1.0, alone=4.0,
    )  # fmt: skip
    both = with_one_process([LINE, modelled], steps=4)
    one = both[-1]
    assert (one.ranks, one.steps, one.seconds, one.speed_up, one.efficiency) == (1, 4, 4.0, 1.0, 1.0)
    assert with_one_process(both, 4) == both
    assert [LINE.bound, modelled.bound] == ["compute", "latency"]
    assert (modelled.speed_up, modelled.efficiency) == (2.0, 0.5)


def test_steps_are_timed_by_batch_and_sweeps_apart() -> None:
    graph = random_graph()
    parts = torch.arange(40) // 10
    timer = Timer(bound(graph, IMC(4, 1, sweep_every="2steps"), SETUP, {}, parts=parts), 0.01)
    timer.epoch()
    assert sorted(int(parts[node]) for node in timer.steps[0]) == [0, 1, 2, 3]
    assert len(timer.seen.sweeps) == 1  # of two that are due, the tables were filled before the first
    assert timer.seen.seconds == pytest.approx(sum(timer.steps[0].values()) + timer.seen.sweeps[0][0])


def test_an_error_of_one_rank_is_raised_and_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked, start = [], BaseProcess.start

    def starts(process: BaseProcess) -> None:
        start(process)
        blocked.append(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))

    monkeypatch.setattr(BaseProcess, "start", starts)
    with pytest.raises(ConfigError, match=r"^no$"):
        on_ranks(2, fails, 1, ConfigError("no"))
    assert blocked == [True, True]  # Ctrl-C would end the process that starts the ranks
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with pytest.raises(DistributedError, match=r"rank 0 \(got none\): ValueError: wrong"):
        on_ranks(1, fails, 0, ValueError("wrong"))


def test_the_command_measures_models_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    code, said = invoke(*COMMAND, "--limit", "1e-9")
    assert (code, "4 of 4 cells are left" in said) == (0, True)
    code, said = invoke(*COMMAND)
    assert code == 0, said
    lines = [json.loads(line) for line in (tmp_path / "r" / "ranks.jsonl").read_text().splitlines()]
    assert [(line["ranks"], line["how"], line["network"]) for line in lines[::2]] == [
        (2, "measured", "this machine"), (1, "modelled", "this machine"), (2, "modelled", "this machine"),
        (4, "modelled", "25 GB/s, 20 us"),
    ]  # fmt: skip
    assert all(line["counted"] == line["sent"] > 0 for line in lines[:2])
    assert [line["counted"] for line in lines[4:6]] == [line["counted"] for line in lines[:2]]
    assert lines[4]["bandwidth"] == lines[0]["bandwidth"] > 0
    assert [line["alone"] for line in lines[2:]] == 3 * [line["seconds"] for line in lines[2:4]]
    table = (tmp_path / "r" / "ranks.md").read_text()
    assert table.count("| measured |") == 4
    assert table.count("| modelled |") == 6
    assert (tmp_path / "r" / "ranks.png").read_bytes()[:4] == b"\x89PNG"
    assert "4, of which 4 are done" in invoke(*COMMAND)[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": 3}, "at least one part for each of 4 ranks (got 3)"),
        ({"methods": "full,gas"}, 'methods of parts that have sync="step" (got full)'),
        ({"methods": "full"}, 'methods of parts that have sync="step" (got full)'),
        ({"latency": 0.0}, "positive numbers for --latency"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, object], message: str) -> None:
    given = {"ranks": "1,2", "modelled": "4", "methods": "gas", "bandwidth": "1GB", "latency": 1.0, "parts": 8}
    study = RankScale(**{**given, "clusters": 2, "partition": "metis", **options})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message.replace("(", r"\(").replace(")", r"\)")):
        study.cells()


def test_torchrun_and_several_graphs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = invoke(*COMMAND, "--scales", "0.1,0.2")
    assert (code, "expected one graph for --ranks" in said) == (2, True)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1" if name == "WORLD_SIZE" else "0")
    code, said = invoke(*COMMAND)
    assert (code, "expected one process (got torchrun)" in said) == (2, True)
