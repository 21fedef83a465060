"""A plan that is made before a run, compared with what the run then needs."""

from __future__ import annotations

import dataclasses
import functools
import gc
from dataclasses import dataclass

import pytest
import torch

import lmc
from helpers import weighted_graph
from lmc.diagnostics import divide, largest_clusters, memory, peak_bytes, plan, remedy
from lmc.diagnostics.plan import USABLE, Division, Plan, _structure, changes
from lmc.diagnostics.probe import BatchSize, batch_bytes, batch_sizes, graph_with_batch, halo_ratio
from lmc.engine import Run
from lmc.errors import ConfigError
from lmc.graph import Batch
from lmc.methods import CMC, GAS, IMC, BackwardSGD, FullBatch, GraphSAGE, HistoryMethod, LMC4Conv, LMC4Rec
from lmc.models import GCN, SAGE, Model, RecGCN
from lmc.stores import Placement, StagedTable, host_zeros


@pytest.fixture(scope="module")
def graph() -> lmc.Graph:
    return lmc.load("arxiv-like@0.1")


@pytest.fixture(scope="module")
def division(graph: lmc.Graph) -> Division:
    return divide(graph, GAS(20, 4))


def model_for(g: lmc.Graph, width: int = 128) -> Model:
    return GCN(g.num_features, width, g.num_classes, num_layers=3, dropout=0.5, norm="batch")


SETTINGS = {"device": Placement(), "disk": Placement(history="disk", features="disk", keep_batches=False)}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("cls", [LMC4Conv, CMC, GAS])
def test_a_plan_is_within_15_percent_of_what_is_measured(
    division: Division, cls: type[HistoryMethod], setting: str
) -> None:
    placement = SETTINGS[setting]
    g, method = division.graph, cls(20, 4)
    model = model_for(g)
    found = plan(division, model, method, placement)
    run = method.bind(g, model, division.parts, placement)
    batches = list(run.batches())
    for batch in batches:
        run.accumulate(batch)
    model.zero_grad(set_to_none=True)
    largest = max(batches, key=lambda b: b.num_core + b.num_halo)
    assert (found.batch.core, found.batch.halo) == (largest.num_core, largest.num_halo)

    def step() -> None:
        run.accumulate(largest if placement.keep_batches else run.source.make(largest.rows, largest.weight))

    assert found.step == pytest.approx(peak_bytes(step, run.problem.device), rel=0.15)
    sizes = {item.name: item.size for item in found.items}
    measured = memory(run, largest)
    tables = sum(size for name, size in sizes.items() if name.startswith("history"))
    stored = sizes["P X"] if setting == "disk" else 0
    assert measured.tiers == {setting: tables + stored}
    kept_here = sizes["structure"] + (0 if setting == "disk" else sizes["P X"])
    assert kept_here == pytest.approx(measured.graph, rel=0.15)
    assert sizes["parameters and optimiser"] == pytest.approx(3 * measured.parameters, rel=0.01)
    assert ("batches" in sizes) == placement.keep_batches
    if placement.keep_batches:
        assert sizes["batches"] == pytest.approx(sum(batch_bytes(b) for b in batches), rel=0.15)


def assert_measured(found: Plan, run: Run) -> tuple[Batch, dict[str, int]]:
    """Compare a plan with the peak of a step and the batches of a run. Gives the largest batch and the plan's sizes."""
    batches = list(run.batches())
    for batch in batches:
        run.accumulate(batch)
    run.problem.model.zero_grad(set_to_none=True)
    largest = max(batches, key=lambda b: b.num_core + b.num_halo)
    assert found.step == pytest.approx(peak_bytes(lambda: run.accumulate(largest), run.problem.device), rel=0.15)
    sizes = {item.name: item.size for item in found.items}
    assert sizes["batches"] == pytest.approx(sum(batch_bytes(b) for b in batches), rel=0.15)
    return largest, sizes


@pytest.mark.parametrize("cls", [LMC4Conv, CMC])
def test_a_plan_of_bfloat16_rows_is_as_accurate(division: Division, cls: type[HistoryMethod]) -> None:
    g, method = division.graph, cls(20, 4)
    model = model_for(g)
    found = plan(division, model, method, placement=Placement(precision="bfloat16"))
    run = method.bind(g, model, division.parts, placement=Placement(precision="bfloat16"))
    largest, sizes = assert_measured(found, run)
    tables = sum(size for name, size in sizes.items() if name.startswith("history"))
    assert memory(run, largest).tiers == {"device": tables}
    assert found.device < 0.8 * plan(division, model, method).device


@pytest.mark.parametrize(("precision", "layers"), [("float32", 3), ("bfloat16", 3), ("float32", 2)])
def test_a_plan_counts_what_sweeps_keep(division: Division, precision: str, layers: int) -> None:
    g, method, placement = division.graph, IMC(20, 4), Placement(precision=precision)
    model = GCN(g.num_features, 32, g.num_classes, num_layers=layers)
    sizes = {item.name: item.size for item in plan(division, model, method, placement).items}
    run = method.bind(g, model, division.parts, placement)
    run.refresh()
    assert sizes["maps of batches"] == sum(value.nbytes for value in run.numbers.values())
    assert run.source.entries is not None
    assert len(run.source.entries) == layers - 1  # between batches, and within them where a third layer follows
    measured = 0
    for kept in run.source.entries.values():
        values = [kept.values, kept.as_torch(torch.float32).values()]
        distinct = {value.data_ptr(): value.nbytes for value in values if value is not None}
        measured += kept.indptr.nbytes + kept.indices.nbytes + sum(distinct.values())
    assert sizes["edges within and between batches"] == pytest.approx(measured, rel=0.15)
    wide = GCN(g.num_features, 256, g.num_classes, num_layers=layers)  # few rows for each column
    with_halo = plan(division, wide, IMC(20, 1, halo=1.0), placement)
    assert "edges within and between batches" not in {item.name for item in with_halo.items}


def test_a_plan_counts_the_transpose_where_it_is_another_matrix(division: Division) -> None:
    g = division.graph
    model = SAGE(g.num_features, 16, g.num_classes, num_layers=2)
    method = LMC4Conv(20, 4)
    found = plan(division, model, method)
    run = method.bind(g, model, division.parts)
    sizes = {item.name: item.size for item in found.items}
    assert sizes["P X"] == run.problem.X.numel() * 4
    gcn = plan(division, model_for(g), method)
    assert sizes["structure"] > 1.5 * {item.name: item.size for item in gcn.items}["structure"]


@pytest.mark.parametrize("method", [FullBatch(), IMC(5, 1), LMC4Conv(5, 2)], ids=repr)
def test_a_plan_of_learned_embeddings(method: HistoryMethod) -> None:
    """The probe looks up a row for each node, of a graph with no more nodes than there are rows."""
    g = lmc.load("amazon-like@0.004")
    model = GCN(g.num_features, 16, g.num_classes, num_layers=2, input="embedding")
    found = plan(divide(g, method), model, method, Placement(device="cpu"))
    run = method.bind(g, model, device="cpu")
    batches = list(run.batches())
    for batch in batches:
        run.accumulate(batch)
    model.zero_grad(set_to_none=True)
    largest = max(batches, key=lambda b: b.num_core + b.num_halo)
    assert found.step == pytest.approx(peak_bytes(lambda: run.accumulate(largest), run.problem.device), rel=0.15)


def test_nothing_is_collected_while_a_peak_is_measured() -> None:
    collected: list[str] = []

    def step() -> None:
        gc.callbacks.append(lambda phase, _: collected.append(phase))
        objects = [[] for _ in range(100_000)]  # many more than a collection waits for
        gc.callbacks.pop()
        assert len(objects) == 100_000

    assert gc.isenabled()
    assert peak_bytes(step, torch.device("cpu")) == 0
    assert collected == []
    step()
    assert collected


def test_a_plan_counts_edges_that_stay_on_the_host(division: Division) -> None:
    g = division.graph
    placements = (Placement(structure=where) for where in ("device", "host"))
    here, there = (plan(division, model_for(g), LMC4Conv(20, 4), placement=p) for p in placements)
    edges = {item.name: item.size for item in there.items if item.tier == "host"}["structure"]
    assert edges == pytest.approx(12 * (g.adj.nnz + g.num_nodes), rel=0.01)
    assert there.tier("device") == here.tier("device") - edges
    on_disk = plan(division, model_for(g), LMC4Conv(20, 4), placement=Placement(structure="disk"))
    assert on_disk.tier("disk") == edges
    assert on_disk.device == here.device - edges


@dataclass(frozen=True)
class StagedHost:
    """Host memory as a GPU uses it: rows are prefetched before a step."""

    name: str = "host"

    def table(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> StagedTable:
        return StagedTable(host_zeros(num_rows, [width], dtype, device), staged=True)


STAGED = Placement(history=StagedHost())


@pytest.mark.parametrize("cls", [LMC4Conv, CMC, GAS])
def test_a_plan_counts_rows_in_transfer(division: Division, cls: type[HistoryMethod]) -> None:
    g, method = division.graph, cls(20, 4)
    model = model_for(g)
    found = {item.name: item.size for item in plan(division, model, method, STAGED).items}["rows in transfer"]
    run = method.bind(g, model, division.parts, STAGED)
    for batch in run.batches():
        run.accumulate(batch)
    measured = sum(run.pipeline.staging.device_bytes)
    assert found == pytest.approx(measured, rel=0.15)


def test_the_sizes_of_batches_are_those_of_the_run(division: Division) -> None:
    method = LMC4Conv(20, 4)
    run = method.bind(division.graph, model_for(division.graph, 8), division.parts)
    batches = list(run.batches(0))
    ratios = [batch.num_halo / batch.num_core for batch in batches]
    assert halo_ratio(division.graph, division.clusters(method)) == pytest.approx(sum(ratios) / len(ratios))
    for size, batch in zip(batch_sizes(division.graph, division.clusters(method)), batches, strict=True):
        assert (size.core, size.halo) == (batch.num_core, batch.num_halo)
        entries = size.core_edges + 2 * size.cross_edges + size.halo_edges
        assert entries == batch.operators[-1].forward.nnz - size.rows


def test_a_small_graph_has_a_batch_of_the_given_size(graph: lmc.Graph) -> None:
    size = BatchSize(core=400, halo=900, core_edges=2400, cross_edges=2000, halo_edges=5000)
    small, parts = graph_with_batch(graph, size)
    run = LMC4Conv(clusters_per_batch=1).bind(small, model_for(graph, 8), parts)
    batch = next(b for b in run.batches() if b.num_core == 400)
    assert batch.num_halo == 900
    assert batch.operators[-1].forward.nnz == pytest.approx(1300 + 2400 + 4000 + 5000, rel=0.03)


def test_sparse_and_multi_label_graphs_have_a_plan() -> None:
    g = lmc.load("ppi-like@0.1")
    sparse = dataclasses.replace(g, x=_sparse(g.x))
    for h in (g, sparse):
        method = GAS(6, 2)
        model = GCN(h.num_features, 16, h.num_classes)
        found = plan(divide(h, method), model, method)
        run = method.bind(h, model, divide(h, method).parts)
        batch = max(run.batches(), key=lambda b: b.num_core + b.num_halo)
        step = functools.partial(run.accumulate, batch)
        step()
        assert found.step == pytest.approx(peak_bytes(step, run.problem.device), rel=0.25)


def _sparse(x: torch.Tensor) -> lmc.graph.CSR:
    from lmc.graph.csr import from_rows

    rows, cols = (x > 0.5).nonzero(as_tuple=True)
    return from_rows(rows, cols, x[rows, cols], (x.shape[0], x.shape[1]))


def test_the_remedy_is_the_cheapest_option_that_fits(division: Division) -> None:
    method, model = CMC(20, 4), model_for(division.graph, 32)
    whole = plan(division, model, method).device
    tables = plan(division, model, method, placement=Placement(history="disk")).device
    assert tables < whole
    found = remedy(division, model, method, int((whole + tables) / 2 / USABLE))
    assert found is not None
    assert found.options == ("--history disk",)
    assert found.plan.device == tables
    tight = remedy(division, model, method, int(0.6 * tables))
    assert tight is not None
    assert tight.options[:3] == ("--history disk", "--features disk", "--rebuild-batches")
    assert tight.plan.device <= 0.6 * tables
    assert remedy(division, model, method, 10**6) is None


ALL = "--history disk --features disk"
CHANGES = {
    "cpu": [
        "--history disk",
        "--rebuild-batches",
        "--features disk",
        "--structure disk",
        ALL,
        f"{ALL} --rebuild-batches",
        f"{ALL} --rebuild-batches --structure disk",
    ],
    "cuda": [
        "--history host",
        "--history disk",
        "--rebuild-batches",
        "--features host",
        "--features disk",
        "--structure host",
        ALL,
        f"{ALL} --rebuild-batches",
        f"{ALL} --rebuild-batches --structure host",
    ],
}


@pytest.mark.parametrize("device", CHANGES)
def test_the_cheapest_options_are_tried_first(division: Division, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device == "cuda")
    tried = list(changes(division, model_for(division.graph), CMC(20, 4), Placement()))
    joined = [" ".join(options) for _, _, options in tried]
    last = CHANGES[device][-1]
    assert joined == [*CHANGES[device], f"{last} --clusters 2", f"{last} --clusters 1"]
    for _, placement, options in tried:
        chosen = dict(option.removeprefix("--").partition(" ")[::2] for option in options)
        history, features, structure = (chosen.get(name, "device") for name in ("history", "features", "structure"))
        keep = "rebuild-batches" not in chosen
        assert placement == Placement("auto", history, features, structure, keep_batches=keep)


def test_edges_are_not_moved_to_the_host_twice_nor_for_a_method_that_reads_all_of_them(
    division: Division, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    g = division.graph
    there = changes(division, model_for(g), CMC(20, 4), Placement(structure="host"))
    recurrent = changes(division, RecGCN(g.num_features, 8, g.num_classes), LMC4Rec(20, 4), Placement())
    for tried in (there, recurrent):
        assert not any("--structure host" in options for _, _, options in tried)


def test_the_largest_batch_that_fits_is_found(division: Division) -> None:
    method, model = GAS(20, 4), model_for(division.graph, 64)

    def size(c: int) -> int:
        return plan(division, model, dataclasses.replace(method, clusters_per_batch=c)).device

    limit = int((size(7) + size(8)) / 2 / USABLE)
    assert largest_clusters(division, model, method, limit) == 7
    assert largest_clusters(division, model, method, 10**12) == 20
    assert largest_clusters(division, model, method, 10**6) is None


def test_methods_without_parts_have_no_plan(graph: lmc.Graph) -> None:
    for method in (BackwardSGD(), GraphSAGE()):
        with pytest.raises(ConfigError, match=rf"batches are parts of the graph .* \(got {method.traits.title}\)"):
            divide(graph, method)


@pytest.mark.parametrize("cls", [GCN, SAGE])
def test_a_full_batch_has_a_plan(graph: lmc.Graph, cls: type[GCN]) -> None:
    method, model = FullBatch(), cls(graph.num_features, 64, graph.num_classes, num_layers=3, dropout=0.5)
    found = plan(divide(graph, method), model, method)
    run = method.bind(graph, model)
    (batch,) = run.batches()
    run.accumulate(batch)
    model.zero_grad(set_to_none=True)
    assert found.step == pytest.approx(peak_bytes(lambda: run.accumulate(batch), run.problem.device), rel=0.15)
    assert (found.num_batches, found.batch.core, found.batch.halo) == (1, graph.num_nodes, 0)
    sizes = {item.name: item.size for item in found.items}
    assert sizes["batches"] < 0.5 * batch_bytes(batch)  # P is counted with the structure


def test_the_structure_counts_edge_weights_and_the_transpose_of_a_directed_graph() -> None:
    plain = lmc.load("tiny-like", scale=0.2)
    weighted = dataclasses.replace(plain, adj=dataclasses.replace(plain.adj, values=torch.ones(plain.adj.nnz)))
    directed = dataclasses.replace(weighted, adj=dataclasses.replace(weighted.adj, symmetric=False))
    problems = [GAS().bind(g, model_for(g, 8)).problem for g in (plain, weighted, directed)]
    sizes = [sum(item.size for item in _structure(problem.graph, problem)) for problem in problems]
    P, back = problems[1].P, problems[2].P.t()
    assert P.edge_data is not None
    assert sizes[1] - sizes[0] == P.edge_data.nbytes + problems[1].graph.adj.data.nbytes
    assert sizes[2] - sizes[1] == back.indptr.nbytes + back.indices.nbytes + back.data.nbytes


def test_a_small_graph_has_the_edge_data_and_the_direction_of_the_graph() -> None:
    g = weighted_graph(directed=True)
    g = dataclasses.replace(g, adj=dataclasses.replace(g.adj, edge_data=torch.ones(g.adj.nnz, 3)))
    small, _ = graph_with_batch(g, BatchSize(6, 3, 8, 5, 2))
    assert small.directed
    assert small.edge_weight is not None
    assert small.edge_attr is not None
    assert (small.edge_weight.dtype, small.edge_attr.shape) == (torch.float64, (small.adj.nnz, 3))


def test_a_plan_counts_the_halo_rows_of_small_batches(division: Division) -> None:
    g, method = division.graph, IMC(20, 1)
    model = GCN(g.num_features, 256, g.num_classes, num_layers=2)
    found = plan(division, model, method)
    run = method.bind(g, model, division.parts)
    run.refresh()
    largest, _ = assert_measured(found, run)
    assert largest.num_halo
