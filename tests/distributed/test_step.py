"""``sync="step"``: W ranks are one process that estimates W batches from frozen tables and then writes all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jobs
import pytest
import torch
from jobs import Case
from rank_pool import Ranks, on_2_and_4
from torch import Tensor

from lmc.engine import Run
from lmc.engine.run import regraph, source_on
from lmc.methods import CMC, GAS, IMC, TOP, ClusterGCN, DropEdge, GraphFM, LMC4Conv, LMC4Rec


def one_process(
    case: Case, seen: list[dict[str, Any]], begin: Callable[[Run], dict[tuple[int, ...], int]] | None = None
) -> tuple[list[float], Run]:
    """The losses and the run of one process that sees the batches that the ranks saw.

    Args:
        begin: fills the tables, by default exactly, and returns the slots of batches by their nodes.
    """
    run = case.bind()
    slots = {} if begin is None else begin(run)
    if begin is None:
        run.refresh()
    nodes = run.clusters.order if run.graph.n_id is None else run.graph.n_id
    row = torch.empty(int(nodes.max()) + 1, dtype=torch.int64)
    row[nodes] = torch.arange(nodes.numel())
    optimizer, losses = jobs.optimizer_of(run), []
    one_part = getattr(run.method, "clusters_per_batch", None) == 1
    if run.schedule is not None:  # one process draws edges in another way
        run.adjacency = run.schedule.adjacencies(run.graph, 0, run.clusters.order)
    source = run.source
    for step in range(len(seen[0]["cores"])):
        if run.schedule is not None and step % seen[0]["steps"] == 0:
            source = source_on(run, step // seen[0]["steps"])
            regraph(run, source.problem)
        state = jobs.state_of(run)
        before = {name: value.clone() for name, value in state.items()}
        after = {name: value.clone() for name, value in state.items()}
        optimizer.zero_grad()
        loss = 0.0
        for rank in seen:
            core = rank["cores"][step]
            if not core.numel():
                continue
            first = int(row[core].min())
            slot = slots.setdefault(tuple(core.tolist()), run.clusters.offsets.index(first) if one_part else len(slots))
            loss += float(run.accumulate(source.make(row[core], float(rank["steps"]), slot)).loss)
            for name, value in state.items():
                alike = name in run.method.traits.replicated_numbers
                after[name] = value.clone() if alike else after[name] + value - before[name]
                value.copy_(before[name])
        for name, value in state.items():
            value.copy_(after[name])
        optimizer.step()
        run.problem.model.project()
        losses.append(loss)
    return losses, run


def assert_same_rows(run: Run, seen: list[dict[str, Any]]) -> None:
    """The ranks have the parameters and, of the rows that they own, the tables of a run of one process."""
    tables = {name: table.data()[run.clusters.order.argsort()] for name, table in run.named_tables().items()}
    for rank in seen:
        for name, p in run.parameters.items():
            assert_close(rank["parameters"][name], p.detach())
        for name, table in rank["tables"].items():
            # sums of mirrors are fetched where they are read; IMC reads rows of other ranks as halo rows alone
            known = slice(0, rank["owned"]) if name[0] in "MUQS" else slice(None)
            assert_close(table[known], tables[name][rank["ids"][known]])


def assert_same(case: Case, seen: list[dict[str, Any]]) -> None:
    """The ranks went the way of one process: losses, parameters, and the tables of owned rows."""
    losses, run = one_process(case, seen)
    for rank in seen:
        assert rank["losses"] == pytest.approx(losses, rel=1e-12, abs=1e-13)
    assert_same_rows(run, seen)


def assert_close(a: Tensor, b: Tensor) -> None:
    assert torch.allclose(a, b, rtol=1e-12, atol=1e-12), float((a - b).abs().max())


CASES = {
    "lmc": Case(LMC4Conv(clusters_per_batch=1), scattered=True),
    "lmc-two-parts": Case(LMC4Conv(clusters_per_batch=2, alpha=0.4, score="2x-x^2")),
    "lmc-redraw": Case(LMC4Conv(clusters_per_batch=2, redraw=True)),
    "gas": Case(GAS(clusters_per_batch=1)),
    "cluster-gcn": Case(ClusterGCN(clusters_per_batch=1)),
    "cmc": Case(CMC(clusters_per_batch=1), scattered=True),
    "cmc-adjoints": Case(CMC(clusters_per_batch=1, adjoints=True)),
    "cmc-sage-directed": Case(CMC(clusters_per_batch=1, adjoints=True), "sage", "directed-weighted"),
    "lmc-uneven": Case(LMC4Conv(clusters_per_batch=1), parts=9, steps=6),
    "lmc-batch-norm": Case(LMC4Conv(clusters_per_batch=1), "gcn-batch-norm"),
    "lmc-gat": Case(LMC4Conv(clusters_per_batch=1), "gat"),
    "lmc-sparse": Case(LMC4Conv(clusters_per_batch=1), sparse=True),
    "fm-without-momentum": Case(GraphFM(clusters_per_batch=1, momentum=0.0)),
    "imc": Case(IMC(clusters_per_batch=1, sweep_every=0, halo=0.0)),
    "imc-batch-norm": Case(IMC(clusters_per_batch=1, sweep_every=0, halo=0.0), "gcn-batch-norm"),
    "imc-halo": Case(IMC(clusters_per_batch=1, sweep_every=0, halo=9.0)),  # all halo rows: none is drawn
    "imc-halo-directed": Case(IMC(clusters_per_batch=1, sweep_every=0, halo=9.0), "sage", "directed-weighted"),
    "top": Case(TOP(clusters_per_batch=1)),
    "lmc4rec": Case(LMC4Rec(clusters_per_batch=1), "recgcn", steps=4),
    "gas-recurrent": Case(GAS(clusters_per_batch=1), "recgcn", steps=4),
}

MORE_CASES = {
    "wrapped-gcn": Case(LMC4Conv(clusters_per_batch=1), "wrap-gcn", "weighted"),
    "wrapped-sage": Case(CMC(clusters_per_batch=1, adjoints=True), "wrap-sage", "directed"),
    "wrapped-gin": Case(IMC(clusters_per_batch=1, sweep_every=0, halo=9.0), "wrap-gin"),
    "wrapped-gat": Case(GAS(clusters_per_batch=1), "wrap-gat"),
    "wrapped-edge-features": Case(LMC4Conv(clusters_per_batch=1), "wrap-mixed", "edge-features"),
    "wrapped-cluster-gcn": Case(ClusterGCN(clusters_per_batch=1), "wrap-mixed", "edge-features-directed"),
    "no-features": Case(CMC(clusters_per_batch=1), graph="no-features"),
    "embedding": Case(LMC4Rec(clusters_per_batch=1), "recgcn-embedding", "no-features", steps=3),
    "ignn": Case(LMC4Rec(clusters_per_batch=1), "ignn", steps=3),
    "inductive": Case(LMC4Conv(clusters_per_batch=1), "wrap-sage", "inductive"),
    "drop-edge": Case(DropEdge(LMC4Conv(clusters_per_batch=1), p=0.3), "sage", "directed-weighted"),
    "drop-edge-sums": Case(DropEdge(CMC(clusters_per_batch=1, adjoints=True), p=0.3), parts=9, steps=8),
    "drop-edge-wrapped": Case(DropEdge(CMC(clusters_per_batch=1), p=0.3), "wrap-sage"),
}


@pytest.mark.parametrize("name", MORE_CASES)
def test_other_models_and_graphs_go_the_same_way(name: str, two: Ranks) -> None:
    case = MORE_CASES[name]
    assert_same(case, two(jobs.train, case))


@on_2_and_4(CASES, "lmc lmc-two-parts gas cluster-gcn cmc lmc-uneven lmc-batch-norm imc imc-halo lmc4rec")
def test_ranks_go_the_way_of_one_process_that_writes_all_batches_after_them(name: str, ranks: Ranks) -> None:
    case = CASES[name]
    assert_same(case, ranks(jobs.train, case))


def test_a_step_waits_for_rows_at_the_first_layer_with_a_table_and_reuses_its_buffers(two: Ranks) -> None:
    for method in (LMC4Conv(clusters_per_batch=1), CMC(clusters_per_batch=1)):
        for waits, buffers in two(jobs.waits, Case(method)):
            assert waits == [("before", True), ("layer 1", True), ("layer 2", False)]
            assert buffers
