"""``python -m experiments plan``: bytes of ranks are those of the library, and what does not fit goes elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lmc
from experiments.rank_plan import GraphSize, Machine, Ratios, measured_ratios, placed, plan_rank, sizes_of, stand_in
from lmc.bench.rank_model import Network
from lmc.diagnostics.plan import Division, plan
from lmc.methods import CMC, IMC, LMC4Conv
from lmc.models import GCN
from lmc.stores import Placement

Invoke = Callable[..., tuple[int, str]]
SIZE = GraphSize(nodes=1000, edges=5000, features=16, classes=3)
RATIOS = Ratios(mirrors=0.5, fetched=0.4, halo=1.5, core_edges=0.6, cross_edges=0.4, halo_edges=0.8)
LARGE = Machine(1e12, 1e12, Network(bandwidth=1e6, latency=1e-3), 1e6, 1e5, rows_per_second=1e4)
MODEL = GCN(16, 8, 3, num_layers=3)
COMMAND = (
    "plan", "--nodes", "20000", "--edges", "90000", "--features", "16", "--classes", "4", "--like", "tiny-like@0.3",
    "--like-parts", "8/2", "--ranks", "2,4", "--core", "2000", "--model", "gcn:hidden=8:layers=2",
)  # fmt: skip


@pytest.mark.parametrize("method", [CMC(4, 1), IMC(4, 1)])
def test_one_rank_has_the_plan_of_one_process(method: CMC | IMC) -> None:
    graph = lmc.load("tiny-like@0.3")
    parts = torch.arange(graph.num_nodes) * 4 // graph.num_nodes
    model = GCN(graph.num_features, 8, graph.num_classes, num_layers=3)
    expected = sizes_of(plan(Division(graph, parts, 0), model, method, Placement(device="cpu")))
    ratios = replace(measured_ratios(graph, parts, method, 1), mirrors=0.0, fetched=0.0)
    size = GraphSize(graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes)
    found = plan_rank(size, model, method, 1, -(-graph.num_nodes // 4), ratios, LARGE)
    assert (found.owned, found.mirrors, found.sent, found.exchange) == (graph.num_nodes, 0, 0, 0)
    for name in ("histories", "features", "structure", "features as given"):
        assert found.places[name][0] == expected[name], name
    for name in ("batches", "step and parameters"):  # the plan takes its largest batch, the ratios are means
        assert found.places[name][0] == pytest.approx(expected[name], rel=0.1), name


def test_rows_of_mirrors_count_and_steps_exchange_what_the_ratios_say() -> None:
    found = plan_rank(SIZE, MODEL, CMC(), 4, 50, RATIOS, LARGE)
    assert (found.owned, found.mirrors, found.steps) == (250, 125, 5)
    tables = 2 * 2 * 8 * 4  # T and M of two layers of 8 columns
    assert found.places["histories"] == (375 * tables, "GPU")
    assert found.sent == 50 * (0.5 + 0.4) * tables / 2
    gradient = 2 * 3 / 4 * sum(p.nbytes for p in MODEL.parameters())
    messages = 4 + 3 * 2  # of the sum of gradients, and two exchanges with three peers
    assert found.exchange == pytest.approx((found.sent + gradient) / 1e6 + messages * 1e-3)
    assert found.epoch == pytest.approx(5 * (50 / 1e4 + found.exchange))
    whole, half = (
        plan_rank(SIZE, MODEL, LMC4Conv(), 4, 50, RATIOS, LARGE, precision=precision)
        for precision in ("float32", "bfloat16")
    )
    assert half.places["histories"][0] == whole.places["histories"][0] / 2
    assert half.sent == whole.sent / 2
    swept = plan_rank(SIZE, MODEL, IMC(basis="T", halo=0.0), 4, 50, RATIOS, LARGE)
    assert swept.sent == 50 * 0.5 * (8 + 8) * 4, "Q of two layers, once an epoch"


def test_what_does_not_fit_leaves_the_gpu_in_order() -> None:
    sizes = {"histories": 40.0, "batches": 30.0, "features": 20.0, "structure": 10.0, "features as given": 5.0}
    sizes["step and parameters"] = 1.0

    def tiers(gpu: float, host: float) -> dict[str, str]:
        places = placed(sizes, 3, 0.01, replace(LARGE, gpu=gpu / 0.9, host=host / 0.9))
        return {name: tier for name, (_, tier) in places.items() if tier != "GPU" and name != "features as given"}

    assert tiers(101, 100) == {}
    assert tiers(100, 100) == {"histories": "host"}
    assert tiers(100, 44) == {"histories": "disk"}
    assert tiers(60, 100) == {"histories": "host"}  # batches are made again
    assert placed(sizes, 3, 0.01, replace(LARGE, gpu=60 / 0.9))["batches"] == (3.0, "GPU")
    assert tiers(34, 100) == {"histories": "host", "features": "host"}
    assert tiers(10, 100) == {"histories": "host", "features": "host", "structure": "host"}
    assert placed(sizes, 3, 0.01, replace(LARGE, gpu=60 / 0.9))["rows in transfer"] == (0.8, "GPU")


def test_rows_elsewhere_take_the_time_of_their_tier() -> None:
    host = plan_rank(SIZE, MODEL, CMC(), 4, 50, RATIOS, replace(LARGE, gpu=1.0))
    disk = plan_rank(SIZE, MODEL, CMC(), 4, 50, RATIOS, replace(LARGE, gpu=1.0, host=1.0))
    assert host.tier("disk") == 0 < disk.tier("disk")
    assert host.moved == disk.moved > 0
    assert (host.transfer, disk.transfer) == pytest.approx((host.moved / 1e6, host.moved / 1e5))
    assert disk.bound == "transfers"
    tables, features, batch = host.places["histories"][0], host.places["features"][0], host.places["batches"][0]
    assert host.moved == pytest.approx(((125 + 50) * tables + 125 * features) / 375 + batch)
    core = plan_rank(SIZE, MODEL, IMC(basis="T", halo=0.0), 4, 50, RATIOS, replace(LARGE, gpu=1.0))
    tables, features, batch = core.places["histories"][0], core.places["features"][0], core.places["batches"][0]
    assert core.moved == pytest.approx((100 * tables + 50 * features) / 375 + batch), "IMC reads no halo"


def test_a_stand_in_holds_no_memory() -> None:
    graph = stand_in(SIZE, 10**9, 10**11)
    assert (graph.num_nodes, graph.adj.nnz, graph.num_features, graph.num_classes) == (10**9, 10**11, 16, 3)
    assert graph.x.device.type == "meta"


def test_the_command_prints_and_writes_the_table(invoke: Invoke, tmp_path: Path) -> None:
    code, said = invoke(*COMMAND, "--out", str(tmp_path / "plan.md"))
    assert code == 0, said
    assert "mirrors and halo measured on tiny-like@0.3 in 8/2 parts" in said
    assert "| one rank | 2 ranks | 4 ranks |" in (tmp_path / "plan.md").read_text()
    code, said = invoke(*COMMAND, "--mirrors", "0.25", "--halo", "1", "--gpu-memory", "1MB", "--host-memory", "1MB")
    assert code == 0, said
    assert "mirrors 0.25 (assumed); halo 1 (assumed)" in said
    assert "mirrors per owned row 0.25 0.25" in said
    assert "disk" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan",), "expected --nodes, --edges, --features, --classes (got none)"),
        (("plan", "arxiv"), "expected one of papers100M (got 'arxiv')"),
        ((*COMMAND, "--method", "full"), 'method of parts that has sync="step" (got full)'),
        ((*COMMAND, "--halo", "-1"), "expected positive numbers for --halo"),
    ],
)
def test_options_that_do_not_fit_are_refused(invoke: Invoke, arguments: tuple[str, ...], message: str) -> None:
    code, said = invoke(*arguments)
    assert code == 2
    assert message in said
