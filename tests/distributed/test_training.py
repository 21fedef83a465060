"""Whole training runs on several ranks, what they send, and what is refused."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest
import torch
from jobs import Case
from rank_pool import Ranks

import lmc
from lmc.errors import ConfigError, DistributedError
from lmc.methods import CMC, GAS, IMC, ClusterGCN, GraphSAGE, LMC4Conv


@pytest.mark.parametrize("graph", ["random", "inductive"])
def test_fit_gives_every_rank_the_same_model_and_rank_0_the_folder(graph: str, ranks: Ranks, tmp_path: Path) -> None:
    case = Case(LMC4Conv(clusters_per_batch=1), "gcn-layer-norm", graph)
    found = ranks(jobs.fit, case, {"epochs": 4, "lr": 0.05}, str(tmp_path / "run"))
    records, parameters, alone = found[0]
    for others, same, _ in found[1:]:
        assert others == records
        assert all(torch.equal(same[name], value) for name, value in parameters.items())
    best = max((scores for _, scores in records), key=lambda scores: scores["val"])
    assert alone == best  # one rank evaluates by itself
    written = lmc.load_run(tmp_path / "run")[2]
    assert [(e.loss, e.scores) for e in written.epochs] == records


def test_bytes_that_are_sent_follow_from_the_lists_and_the_batches(ranks: Ranks) -> None:
    for method in (LMC4Conv(clusters_per_batch=1), GAS(clusters_per_batch=2), CMC(clusters_per_batch=1)):
        found = ranks(jobs.traffic, Case(method, steps=6))
        assert sum(rank["sent"] for rank in found) == sum(rank["counted"] for rank in found) > 0
        assert {rank["messages"] for rank in found} == {12 if isinstance(method, CMC) else 6}


@pytest.mark.parametrize(
    "method", [ClusterGCN(clusters_per_batch=1), IMC(clusters_per_batch=1)], ids=["cluster", "imc"]
)
def test_methods_without_a_halo_send_no_rows_in_steps(method: lmc.methods.Method, two: Ranks) -> None:
    for rank in two(jobs.traffic, Case(method, steps=3)):
        assert rank["sent"] == rank["messages"] == 0


@pytest.mark.parametrize(
    "method",
    [LMC4Conv(clusters_per_batch=2), CMC(clusters_per_batch=2, redraw=True), IMC(clusters_per_batch=2)],
    ids=["lmc", "cmc", "imc"],
)
def test_one_rank_draws_the_batches_and_dropout_masks_of_one_process(method: lmc.methods.Method, one: Ranks) -> None:
    case = Case(method, "gcn-dropout", steps=6)
    (rank,) = one(jobs.train, case)
    run = case.bind()
    run.refresh()
    optimizer = jobs.optimizer_of(run)
    losses = [float(run.step(batch, optimizer).loss) for batch in jobs.batches_of(run, case.steps)]
    assert rank["losses"] == pytest.approx(losses, rel=1e-12)


def test_every_rank_draws_its_own_batches_and_dropout_masks(two: Ranks) -> None:
    first, second = two(jobs.train, Case(LMC4Conv(clusters_per_batch=1), steps=1))
    assert first["masks"] != second["masks"]
    assert first["order"] != second["order"]


def test_sweeps_of_imc_come_at_the_same_steps_on_all_ranks(ranks: Ranks) -> None:
    case = Case(IMC(clusters_per_batch=1), "gcn-dropout", parts=9)
    found = ranks(jobs.fit, case, {"epochs": 6, "lr": 0.1}, None)
    assert all(records == found[0][0] for records, _, _ in found)


@pytest.mark.parametrize("halo", [0.0, 1.0])
@pytest.mark.parametrize("model", ["gcn", "wrap-sage"])
def test_sweeps_of_imc_send_the_rows_of_its_basis_and_sums_of_halo_rows(model: str, halo: float, two: Ranks) -> None:
    for sent, counted in two(jobs.swept, Case(IMC(clusters_per_batch=1, halo=halo), model)):
        assert sent == counted > 0


def test_parameters_that_differ_between_ranks_are_found_at_the_next_epoch(
    two: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two, "expected", DistributedError)
    for rank, error in enumerate(two(jobs.diverged, Case(LMC4Conv(clusters_per_batch=1)))):
        with pytest.raises(
            DistributedError, match=f"same parameters on every rank .got others on rank {rank} in epoch 2"
        ):
            raise error


def test_exchange_every_few_steps_sends_rows_once(two: Ranks) -> None:
    often, seldom = (
        two(jobs.traffic, Case(LMC4Conv(clusters_per_batch=1), steps=8, options={"sync_every": every}))
        for every in (1, 2)
    )
    for each, half in zip(often, seldom, strict=True):
        assert (each["messages"], half["messages"]) == (8, 4)
        assert half["sent"] == each["sent"]  # 4 different batches in an epoch of 4 steps
    across = Case(LMC4Conv(clusters_per_batch=1), steps=9, options={"sync_every": 3})
    assert [rank["messages"] for rank in two(jobs.traffic, across)] == [3, 3]  # the second one in the second epoch


def test_bfloat16_on_the_wire_sends_a_quarter_of_float64_and_stays_close(two: Ranks) -> None:
    case, narrow = (Case(CMC(clusters_per_batch=1), options={"wire": wire}) for wire in ("exact", "bfloat16"))
    for exact, rounded in zip(two(jobs.traffic, case), two(jobs.traffic, narrow), strict=True):
        assert 4 * rounded["sent"] == exact["sent"]
    for exact, rounded in zip(two(jobs.train, case), two(jobs.train, narrow), strict=True):
        assert rounded["losses"] == pytest.approx(exact["losses"], rel=1e-2)
        assert rounded["losses"] != exact["losses"]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            Case(GraphSAGE()),
            'expected a method that can be run with sync="step" \\(got GraphSAGE on GCN\\): use one of',
        ),
        (Case(CMC(), options={"sync_every": 3}), "expected sync_every=1 for CMC \\(got 3\\)"),
        (
            Case(LMC4Conv(clusters_per_batch=1), "wrap-number-of-edges"),
            "expected convolutions whose weights of an edge follow from the edges into its two ends",
        ),
        (Case(LMC4Conv(), parts=1), "expected at least one part per rank, 2 \\(got 1 parts\\)"),
    ],
    ids=["sampling", "sums", "number-of-edges", "parts"],
)
def test_what_cannot_be_distributed_is_refused_on_every_rank(case: Case, message: str, two: Ranks) -> None:
    errors = two(jobs.refused, case)
    assert len({str(error) for error in errors}) == 1
    with pytest.raises(ConfigError, match=message):
        raise errors[0]


def test_options_that_make_no_sense_are_refused() -> None:
    for options in ({"sync_every": 0}, {"sync": "layer", "sync_every": 2}, {"timeout": 0.0}, {"wire": "int8"}):
        with pytest.raises(ConfigError, match="expected"):
            lmc.Distributed(**options)


def test_a_process_without_torchrun_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a process of torchrun for a distributed run"):
        Case(LMC4Conv()).bind(distributed=True)
