"""Bytes counted by hand on small matrices and one small network, and the study that compares them with a copy."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from experiments import traffic
from experiments.bandwidth import BandwidthRecord
from helpers import hand_graph, sparse
from lmc.graph import Aggregation
from lmc.methods import GAS, FullBatch, LMC4Rec
from lmc.models import GCN, RecGCN

CPU = torch.device("cpu")


def test_a_product_reads_entries_and_rows_and_writes_rows() -> None:
    A = sparse(torch.tensor([[1.0, 0, 2], [0, 0, 3]]))  # 2 x 3 with 3 entries
    assert traffic.product_bytes(A, width=5, item=4) == 3 * 8 + 4 * 3 + 4 * 5 * (3 + 2)
    assert traffic.product_bytes(A, width=5, item=8) == 3 * 12 + 4 * 3 + 8 * 5 * (3 + 2)
    assert traffic.product_bytes(A, width=5, item=4, gathered=True) == 3 * 8 + 4 * 3 + 4 * 5 * (3 + 2)
    dense = sparse(torch.ones(2, 3))
    assert traffic.product_bytes(dense, 5, 4, gathered=True) == 6 * 8 + 4 * 3 + 4 * 5 * (6 + 2)


def test_a_step_of_two_layers_by_hand() -> None:
    graph = hand_graph()
    n, d, h, c, i = graph.num_nodes, graph.num_features, 7, graph.num_classes, 8
    model = GCN(d, h, c, num_layers=2).double()
    run = FullBatch().bind(graph, model)
    (batch,) = run.batches()
    P = run.problem.P
    first = 2 * i * (n * d + n * h + d * h) + 5 * i * n * h  # P X was done once: a map forward, its weights backward
    assert c < h  # so the second layer multiplies with W before it aggregates, at width c
    second = 3 * i * (n * h + n * c + h * c) + 2 * (P.nnz * 12 + 4 * (n + 1) + i * c * 2 * n)
    loss, adam = 2 * i * n * c, 7 * i * sum(p.numel() for p in model.parameters())
    assert traffic.step_bytes(run, batch) == first + second + loss + adam


def test_tables_are_read_for_the_halo_and_written_for_the_core() -> None:
    graph = hand_graph()
    parts = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    model = GCN(graph.num_features, 7, graph.num_classes, num_layers=2).double()
    run = GAS(2, 1).bind(graph, model, parts=parts)
    batch = next(run.batches())
    counted = traffic.step_bytes(run, batch)
    widths = [table.data().shape[1] for table in run.named_tables().values()]
    run.tables = {}
    assert counted - traffic.step_bytes(run, batch) == 8 * sum(widths) * (batch.num_core + batch.num_halo) > 0


def test_an_iteration_is_a_product_a_map_and_a_pass() -> None:
    graph = hand_graph()
    model = RecGCN(graph.num_features, 6, graph.num_classes).double()
    run = LMC4Rec(2, 1).bind(graph, model, parts=torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
    batch = next(run.batches())
    block = traffic.solved_block(batch)
    assert block.shape == (batch.num_core, batch.num_core)
    each = traffic.product_bytes(block, 6, 8) + 8 * (2 * 4 * 6 + 36) + 2 * 8 * 4 * 6
    assert traffic.step_bytes(run, batch, 10) - traffic.step_bytes(run, batch, 7) == 3 * each


def test_kernels_are_timed_on_every_batch() -> None:
    graph = hand_graph()
    model = RecGCN(graph.num_features, 6, graph.num_classes).double()
    run = LMC4Rec(2, 1).bind(graph, model, parts=torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
    matrices = traffic.matrices_of(run, list(run.batches()))
    assert len(matrices) == 2
    for kernel in (traffic.product_ms, traffic.dense_ms):
        assert kernel(matrices, 6) > 0
    assert traffic.iteration_ms(run, matrices) > 0


def test_matrices_are_those_of_the_last_layer() -> None:
    graph = hand_graph()
    run = FullBatch().bind(graph, GCN(graph.num_features, 7, graph.num_classes, num_layers=2).double())
    batches = list(run.batches())
    operator = batches[0].operators[-1]
    assert isinstance(operator, Aggregation)
    assert traffic.matrices_of(run, batches) == [operator.forward]


def test_a_copy_reads_and_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "COPIED", {"cpu": 2**16})
    ms, moved = traffic.copy_ms(CPU)
    assert ms > 0
    assert moved == 2**17


def test_the_fastest_call_counts_for_a_kernel() -> None:
    naps = iter([0.0, 0.03, 0.001, 0.03])
    assert traffic.fastest_ms(lambda: time.sleep(next(naps)), CPU, repeat=3) < 20


def test_an_iteration_is_measured_against_a_product_and_a_map() -> None:
    times = {"iterations": 40, "iteration_ms": 0.3, "product_ms": 0.15, "dense_ms": 0.05}
    record = BandwidthRecord("recgcn", "-", "full", ms=10.0, copied=1e9, moved=1e6, **times)
    assert record.vs_bound == pytest.approx(1.5)


def test_the_study_counts_and_times_every_kind_of_model(
    invoke: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "COPIED", {"cpu": 2**16})
    code, said = invoke(
        "bandwidth", "tiny-like@0.2", "--models", "gcn,recgcn", "--methods", "lmc", "--configs", "4/2", "--hidden", "8",
        "--repeat", "1", "--warmup", "0", "--run-dir", "r",
    )  # fmt: skip
    assert code == 0, said
    lines = [json.loads(line) for line in (tmp_path / "r/bandwidth.jsonl").read_text().splitlines()]
    assert [(r["model"], r["method"]) for r in lines] == [
        ("gcn", "full"), ("gcn", "lmc"), ("recgcn", "full"), ("recgcn", "lmc4rec"),
    ]  # fmt: skip
    for r in lines:
        assert min(r[name] for name in ("ms", "copied", "moved", "product_ms", "product_moved", "dense_ms")) > 0
        assert (r["iterations"] is not None) == (r["iteration_ms"] is not None) == (r["model"] == "recgcn")
    header, _, first, *_ = (tmp_path / "r/bandwidth.md").read_text().splitlines()
    row = dict(zip(header.split(" | "), first.split(" | "), strict=True))
    assert float(row["epoch GB"]) == pytest.approx(lines[0]["moved"] / 1e9, abs=5e-4)


@pytest.mark.gpu
def test_a_copy_on_a_gpu_is_fast() -> None:
    ms, moved = traffic.copy_ms(torch.device("cuda"))
    assert moved / ms * 1e3 > 1e10
