"""Errors of a distributed run are those of the sum over its ranks."""

from __future__ import annotations

import jobs
import pytest
import torch
from jobs import Case
from rank_pool import Ranks

from lmc.methods import CMC, BackwardSGD, FullBatch, LMC4Conv, LMC4Rec


@pytest.mark.parametrize("method", [LMC4Conv(clusters_per_batch=1), CMC(clusters_per_batch=1)], ids=["lmc", "cmc"])
def test_gradient_error_is_that_of_the_union_of_batches(method: LMC4Conv | CMC, ranks: Ranks) -> None:
    case = Case(method)
    found = ranks(jobs.diagnose, case)
    whole = Case(BackwardSGD(clusters_per_batch=1)).bind()
    whole.problem.model.load_state_dict(found[0]["state"])
    row = whole.clusters.order.argsort()
    union = row[torch.cat([rank["core"] for rank in found])]
    exact = whole.gradient(whole.source.make(union, float(found[0]["steps"])))
    full = Case(FullBatch()).bind()
    full.problem.model.load_state_dict(found[0]["state"])
    truth = full.gradient(next(full.batches()))
    for rank in found:
        for name, g in rank["gradient"].items():
            assert rank["backward_sgd"][name] == pytest.approx(float((g - exact[name]).norm() / exact[name].norm()))
            assert rank["full_batch"][name] == pytest.approx(float((g - truth[name]).norm() / truth[name].norm()))
        assert (rank["H"], rank["V"], rank["bias"]) == (found[0]["H"], found[0]["V"], found[0]["bias"])
        assert all(value > 0 for value in rank["H"].values())
    assert set(found[0]["H"]) == (set() if isinstance(method, CMC) else {2, 3})


def test_a_gradient_leaves_what_all_ranks_have_alike(two: Ranks) -> None:
    for before, after in two(jobs.gradient_beside_questions, Case(LMC4Rec(clusters_per_batch=1), "recgcn", steps=2)):
        for name, value in before.items():
            assert torch.equal(after[name], value), name
