"""P X row by row: rows are computed when they are first read, and are the same bit for bit."""

from __future__ import annotations

import pytest
import torch

import lmc
from lmc.engine import Run, features
from lmc.engine.features import FirstReads
from lmc.graph import Graph, gcn_norm, spmm
from lmc.methods import CMC, GAS, IMC, LMC4Conv


@pytest.fixture(scope="module")
def graph() -> Graph:
    return lmc.load("tiny-like@0.2")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("chunk", [9, 2**20])
def test_rows_are_those_of_the_whole_product(
    graph: Graph, chunk: int, both: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmc.graph.csr.CHUNK", chunk)  # entries that are read at a time
    P, n = gcn_norm(graph.adj, dtype), graph.num_nodes
    x = torch.randn(n, 5, dtype=dtype, generator=torch.Generator().manual_seed(0))
    wanted = torch.cat([spmm(P, x), x], 1) if both else spmm(P, x)
    reads = FirstReads(P, x, both)
    for rows in (slice(10, 30), torch.tensor([3, 29, 200]), slice(25, 60), slice(28, 62), slice(5, 5)):
        reads.fill(rows)
        assert torch.equal(reads.sums[rows], wanted[rows])
    assert reads.missing is not None
    assert int(reads.missing.sum()) == n - 54
    reads.fill(slice(None))
    reads.fill(torch.arange(n))
    assert reads.missing is None
    assert torch.equal(reads.sums, wanted)


def bound(graph: Graph, method: type, model: type = lmc.models.GCN) -> Run:
    made = model(graph.num_features, 8, graph.num_classes, num_layers=2, seed=1)
    return method(num_parts=6, clusters_per_batch=2, partition="random").bind(graph, made, device="cpu")


@pytest.mark.parametrize("model", [lmc.models.GCN, lmc.models.SAGE], ids=lambda model: model.__name__)
@pytest.mark.parametrize("method", [GAS, LMC4Conv, CMC, IMC], ids=lambda method: method.__name__)
def test_training_is_the_same(graph: Graph, model: type, method: type, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for many in (1, 2**60):
        monkeypatch.setattr(features, "MANY", many)
        run = bound(graph, method, model)
        assert (run.problem.first_reads is not None) == (many == 1)
        for _ in range(2):
            for batch in run.batches():
                run.accumulate(batch)
        grads = [p.grad for p in run.problem.model.parameters()]
        found.append([*grads, run.problem.inputs(slice(0, graph.num_nodes))])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_first_step_waits_for_its_own_rows_alone(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "MANY", 1)
    run = bound(graph, GAS)
    reads = run.problem.first_reads
    assert reads is not None
    assert bool(reads.missing.all())
    run.accumulate(next(iter(run.batches())))
    assert int((~reads.missing).sum()) == graph.num_nodes // 3
    run.refresh()
    assert reads.missing is None
