"""Exact passes of several ranks are those of one process: evaluation, predictions, filled tables."""

from __future__ import annotations

import jobs
import pytest
import torch
from jobs import Case
from rank_pool import Ranks, on_2_and_4

import lmc
from lmc.methods import CMC, IMC, LMC4Conv, LMC4Rec

CASES = {
    "gcn": Case(LMC4Conv(clusters_per_batch=2)),
    "gcn-sparse": Case(LMC4Conv(clusters_per_batch=2), sparse=True),
    "gcnii-two-matrices": Case(LMC4Conv(clusters_per_batch=1), "gcnii-two-matrices"),
    "sage": Case(CMC(clusters_per_batch=1, adjoints=True), "sage"),
    "gat": Case(LMC4Conv(clusters_per_batch=1), "gat"),
    "pna": Case(LMC4Conv(clusters_per_batch=1), "pna"),
    "weighted": Case(CMC(clusters_per_batch=1), graph="weighted"),
    "directed": Case(LMC4Conv(clusters_per_batch=1), graph="directed-weighted"),
    "imc": Case(IMC(clusters_per_batch=1), "gcn"),
}

MORE_CASES = {
    "wrapped-gcn": Case(LMC4Conv(clusters_per_batch=1), "wrap-gcn", "weighted"),
    "wrapped-sage": Case(CMC(clusters_per_batch=1, adjoints=True), "wrap-sage"),
    "wrapped-gat": Case(LMC4Conv(clusters_per_batch=1), "wrap-gat"),
    "wrapped-edge-features": Case(LMC4Conv(clusters_per_batch=1), "wrap-mixed", "edge-features-directed"),
    "no-features": Case(LMC4Conv(clusters_per_batch=1), graph="no-features"),
    "embedding": Case(LMC4Rec(clusters_per_batch=1), "recgcn-embedding", "no-features"),
    "ignn": Case(LMC4Rec(clusters_per_batch=1), "ignn"),
}


@pytest.mark.parametrize("name", MORE_CASES)
def test_exact_passes_of_other_models_and_graphs_are_those_of_one_process(name: str, two: Ranks) -> None:
    check(MORE_CASES[name], two)


@on_2_and_4(CASES, "gcn sage gat directed imc")
def test_evaluation_prediction_and_refresh_are_those_of_one_process(name: str, ranks: Ranks) -> None:
    check(CASES[name], ranks)


def check(case: Case, ranks: Ranks) -> None:
    """Scores, predictions, states and filled tables of the ranks are those of one process."""
    found = ranks(jobs.exact, case)
    run = case.bind()
    run.refresh()
    graph, model = case.make_graph(), run.problem.model
    row = run.clusters.order.argsort()
    for rank in found:
        assert rank["scores"] == rank["evaluated"] == lmc.evaluate(model, graph)
        torch.testing.assert_close(rank["predicted"], lmc.predict(model, graph), rtol=1e-12, atol=1e-12)
        assert torch.equal(rank["some"], lmc.predict(model, graph, [3, 17, 3, 30], "classes"))
        states = lmc.predict(model, graph, [3, 17, 3, 30], "states", layer=1)
        torch.testing.assert_close(rank["states"], states, rtol=1e-12, atol=1e-12)
        sums = {f"{name}.{l}" for name in "MUS" for l in run.tables.get(name, {})}
        for table, filled in rank["tables"].items():
            known = slice(0, rank["owned"]) if table in sums else slice(None)
            expected = run.named_tables()[table].data()[row[rank["ids"]]]
            torch.testing.assert_close(filled[known], expected[known], rtol=1e-12, atol=1e-12)


def test_rows_of_mirrors_that_come_in_pieces_are_the_same(four: Ranks) -> None:
    for few, all_rows in four(jobs.in_pieces, CASES["sage"]):
        assert few["messages"] > 2 * all_rows["messages"]
        torch.testing.assert_close(few["predicted"], all_rows["predicted"], rtol=1e-13, atol=1e-15)
        for name, table in few["tables"].items():
            torch.testing.assert_close(table, all_rows["tables"][name], rtol=1e-13, atol=1e-15)
