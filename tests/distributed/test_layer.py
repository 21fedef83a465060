"""``sync="layer"``: W ranks are one process on the union of their batches."""

from __future__ import annotations

from typing import Any

import jobs
import pytest
import torch
from jobs import Case
from rank_pool import Ranks, on_2_and_4

from lmc.engine.run import Run, source_on
from lmc.errors import ConfigError
from lmc.methods import GAS, BackwardSGD, DropEdge, FullBatch, LMC4Conv

LAYER = {"sync": "layer"}
CASES = {
    "full": Case(FullBatch(), options=LAYER),
    "full-batch-norm": Case(FullBatch(), "gcn-batch-norm", options=LAYER),
    "full-sage": Case(FullBatch(), "sage", options=LAYER),
    "full-gin-directed": Case(FullBatch(), "gin", "directed-weighted", options=LAYER),
    "full-gcnii-two-matrices": Case(FullBatch(), "gcnii-two-matrices", options=LAYER),
    "full-appnp": Case(FullBatch(), "appnp", options=LAYER),
    "full-linear-in-out": Case(FullBatch(), "gcn-linear-in-out", options=LAYER),
    "full-gat-directed": Case(FullBatch(), "gat", "directed", steps=3, options=LAYER),
    "full-pna": Case(FullBatch(), "pna", steps=2, options=LAYER),
    "full-recgcn": Case(FullBatch(), "recgcn", steps=2, options=LAYER),
    "full-ignn-anderson": Case(FullBatch(), "ignn-anderson", steps=2, options=LAYER),
    "full-wrapped": Case(FullBatch(), "wrap-gin", options=LAYER),
    "backward-sgd-wrapped": Case(BackwardSGD(clusters_per_batch=1), "wrap-sage", "directed", options=LAYER),
    "full-drop-edge": Case(DropEdge(FullBatch(), p=0.3), options=LAYER),
    "lmc": Case(LMC4Conv(clusters_per_batch=1, alpha=0.6, score="x^2"), scattered=True, options=LAYER),
    "lmc-uneven": Case(LMC4Conv(clusters_per_batch=1, cut="after"), "gcnii", parts=9, options=LAYER),
    "lmc-sage-sparse": Case(LMC4Conv(clusters_per_batch=1, first_layer="pruned"), "sage", "chain", 20, options=LAYER),
    "lmc-drop-edge": Case(DropEdge(LMC4Conv(clusters_per_batch=1), p=0.3), steps=3, options=LAYER),
    "backward-sgd": Case(BackwardSGD(clusters_per_batch=1), options=LAYER),
    "backward-sgd-uneven": Case(BackwardSGD(clusters_per_batch=1), "gcn-layer-norm", parts=9, options=LAYER),
    "backward-sgd-gat": Case(BackwardSGD(clusters_per_batch=1), "gat", parts=9, steps=4, options=LAYER),
    "backward-sgd-pna": Case(BackwardSGD(clusters_per_batch=1), "pna", "directed", steps=2, options=LAYER),
    "backward-sgd-recgcn": Case(BackwardSGD(clusters_per_batch=1), "recgcn", "directed", 9, 2, options=LAYER),
    "backward-sgd-batch-norm": Case(BackwardSGD(clusters_per_batch=1), "gcn-batch-norm", options=LAYER),
}


def on_union(case: Case, seen: list[dict[str, Any]]) -> tuple[list[float], Run]:
    """The losses and the run of one process on the union of the ranks' batches."""
    run = case.bind()
    run.refresh()
    row = run.clusters.order.argsort()
    optimizer, losses, source = jobs.optimizer_of(run), [], run.source
    for step in range(case.steps):
        if run.schedule is not None:
            run.adjacency = run.schedule.adjacencies(run.graph, 0, run.clusters.order)
            source = source_on(run, step // seen[0]["steps"])
        core = row[torch.cat([rank["cores"][step] for rank in seen])]
        whole = core.numel() == row.numel()
        batch = source.make(slice(0, core.numel()) if whole else core, float(seen[0]["steps"]))
        losses.append(float(run.step(batch, optimizer).loss))
    return losses, run


@on_2_and_4(
    CASES, "full full-batch-norm full-gat-directed full-recgcn lmc lmc-uneven backward-sgd backward-sgd-batch-norm"
)
def test_ranks_go_the_way_of_one_process_on_the_union_of_their_batches(name: str, ranks: Ranks) -> None:
    case = CASES[name]
    seen = ranks(jobs.train, case)
    losses, run = on_union(case, seen)
    row = run.clusters.order.argsort()
    for rank in seen:
        assert rank["losses"] == pytest.approx(losses, rel=1e-12, abs=1e-13)
        for key, value in run.problem.model.state_dict().items():
            torch.testing.assert_close(rank["state"][key], value, rtol=1e-11, atol=1e-12)
        for key, table in run.named_tables().items():
            owned = table.data()[row[rank["ids"][: rank["owned"]]]]
            torch.testing.assert_close(rank["tables"][key][: rank["owned"]], owned, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case(GAS(), options=LAYER), 'expected a method that can be run with sync="layer" \\(got GAS on GCN'),
        (Case(LMC4Conv(), "gcn-batch-norm", options=LAYER), "without batch norm, for LMC4Conv"),
        (Case(LMC4Conv(), graph="directed", options=LAYER), "expected an undirected graph, and"),
        (Case(FullBatch()), 'use one of .*; it can be run with sync="layer"'),
        (
            Case(FullBatch(), "recgcn", options=LAYER | {"wire": "bfloat16"}),
            'expected wire="exact" for RecGCN with sync="layer"',
        ),
        (
            Case(FullBatch(), "wrap-gat", options=LAYER),
            'expected a wrapped network of weighted sums for sync="layer"',
        ),
        (
            Case(FullBatch(), "wrap-gcn", options=LAYER),
            'expected a wrapped network without batch norm for sync="layer"',
        ),
    ],
    ids=["method", "lmc-batch-norm", "lmc-directed", "step", "wire", "wrapped", "wrapped-batch-norm"],
)
def test_what_cannot_be_exchanged_by_layers_is_refused(case: Case, message: str, two: Ranks) -> None:
    with pytest.raises(ConfigError, match=message):
        raise two(jobs.refused, case)[0]
