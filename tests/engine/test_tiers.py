"""Where rows live changes nothing: every tier gives the gradients and tables of the device, bit for bit on a CPU."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import lmc
from helpers import make, model_for, parts_of, random_graph
from lmc.engine import Run
from lmc.errors import ConfigError
from lmc.graph import Graph, csr
from lmc.methods import CMC, GAS, CMC4Rec, DropEdge, GraphFM, HistoryMethod, LMC4Conv, LMC4Rec
from lmc.models import GCN, SAGE, Model, RecGCN
from lmc.stores import Disk, FileRows, Placement, StagedTable, Store, Table, host_zeros, store
from lmc.train.evaluate import evaluate_problem


@dataclass(frozen=True)
class Behind:
    """A tier that stages on a CPU too, as host memory and disk do for a GPU."""

    name: str = "host"

    def table(self, num_rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Table:
        rows = host_zeros if self.name == "host" else FileRows
        return StagedTable(rows(num_rows, [width], dtype, device), staged=True, tier=self.name)


TIERS: list[str | Store] = ["host", "disk", "auto", Behind("host"), Behind("disk")]
TIER_IDS = ["host", "disk", "auto", "host-behind", "disk-behind"]
METHODS = {
    "gas": (GAS, {}, "gcn"),
    "fm": (GraphFM, {}, "gcn"),
    "lmc": (LMC4Conv, {"alpha": 0.5}, "gcn-residual"),
    "lmc-gat": (LMC4Conv, {}, "gat"),
    "cmc": (CMC, {}, "gcn"),
    "cmc-adjoints": (CMC, {"adjoints": True}, "gcnii"),
}


def steps(run: Run, model: Model, epochs: int = 3) -> list[Tensor]:
    """Everything that a few epochs leave behind."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run.refresh()
    for _ in range(epochs):
        for batch in run.batches():
            optimizer.zero_grad()
            run.accumulate(batch)
            optimizer.step()
    return [
        *(p.detach().cpu() for p in model.parameters()),
        *(t.data().cpu().clone() for t in run.named_tables().values()),
    ]


def trained(
    kind: str, tier: str | Store, g: Graph, redraw: bool, device: str = "cpu", features: str | Store = "device"
) -> tuple[list[Tensor], Run]:
    cls, options, name = METHODS[kind]
    model = make(name, g)
    method = cls(clusters_per_batch=2, redraw=redraw, **options)
    run = method.bind(g, model, parts_of(g, 6), placement=Placement(device, tier, features))
    return steps(run, model), run


@pytest.mark.parametrize("redraw", [False, True], ids=["fixed", "redrawn"])
@pytest.mark.parametrize("tier", TIERS, ids=TIER_IDS)
@pytest.mark.parametrize("kind", METHODS)
def test_histories_on_any_tier_train_bit_for_bit_alike(kind: str, tier: str | Store, redraw: bool) -> None:
    g = random_graph()
    want, _ = trained(kind, "device", g, redraw)
    got, run = trained(kind, tier, g, redraw)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    wanted = {"auto": "device"}.get(store(tier).name, store(tier).name)
    assert {t for name, t in run.tiers.items() if name != "features"} == {wanted}


@pytest.mark.gpu
@pytest.mark.parametrize("features", ["device", "host", "disk"])
@pytest.mark.parametrize("redraw", [False, True], ids=["fixed", "redrawn"])
@pytest.mark.parametrize("tier", ["device", "host", "disk"])
@pytest.mark.parametrize("kind", METHODS)
def test_every_tier_trains_alike_on_a_gpu(kind: str, tier: str, redraw: bool, features: str) -> None:
    g = random_graph()
    want, _ = trained(kind, "device", g, redraw, "cuda")
    got, _ = trained(kind, tier, g, redraw, "cuda", features)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("tier", TIERS, ids=TIER_IDS)
@pytest.mark.parametrize("cls", [LMC4Rec, CMC4Rec, GAS])
def test_recurrent_models_too(cls: type[HistoryMethod], tier: str | Store) -> None:
    g = random_graph()
    found = []
    for history in ("device", tier):
        model = RecGCN(g.num_features, 5, g.num_classes).double()
        run = cls(clusters_per_batch=2).bind(g, model, parts_of(g, 6), Placement(history=history))
        found.append(steps(run, model, epochs=2))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


MODELS = {
    "precomputed": lambda g: GCN(g.num_features, 5, g.num_classes, num_layers=3),
    "beside": lambda g: SAGE(g.num_features, 5, g.num_classes, num_layers=2),
    "as they are": lambda g: GCN(g.num_features, 5, g.num_classes, num_layers=2, linear_in=True),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize("features", TIERS, ids=TIER_IDS)
@pytest.mark.parametrize("kind", MODELS)
def test_features_on_any_tier_train_alike(kind: str, features: str | Store, dtype: torch.dtype) -> None:
    g = random_graph()
    found = []
    for where in ("device", features):
        model = MODELS[kind](g).to(dtype)
        run = LMC4Conv(clusters_per_batch=2).bind(g, model, parts_of(g, 6), placement=Placement(features=where))
        found.append(steps(run, model, epochs=2))
        assert torch.equal(run.graph.x, g.x[run.clusters.order])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4 if dtype == torch.float32 else 1e-12, atol=1e-6)
    wanted = "device" if features == "auto" else store(features).name
    assert run.tiers["features"] == wanted
    assert (run.problem.stored is None) == (wanted == "device")


def test_sparse_features_may_stay_on_the_host_and_not_on_disk() -> None:
    g = random_graph(sparse_features=True)
    found = []
    for where in ("device", "host"):
        model = make("gcn", g)
        run = GAS(clusters_per_batch=2).bind(g, model, parts_of(g), placement=Placement(features=where))
        found.append(steps(run, model))
        assert (next(run.batches()).inputs is None) == (where == "host")
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
    with pytest.raises(ConfigError, match='features "device" or "host" for sparse features'):
        GAS().bind(g, make("gcn", g), parts_of(g), placement=Placement(features="disk"))


def test_rows_of_the_next_batch_are_on_their_way_before_its_step() -> None:
    g = random_graph()
    run = LMC4Conv(clusters_per_batch=1).bind(
        g, make("gcn", g), parts_of(g, 6), Placement(history=Behind(), features=Behind())
    )
    asked: list[object] = []
    for table in [*run.named_tables().values(), run.problem.stored]:
        assert table is not None
        original = table.prefetch
        table.prefetch = lambda *rows, original=original: (asked.append(rows), original(*rows))  # type: ignore[method-assign]
    batches = run.batches()
    first = next(batches)
    run.accumulate(first)
    # once for the first step itself, once for the second while the first is under way
    tables = len(run.named_tables().values()) + 1
    assert len(asked) == 2 * tables
    second = next(batches)
    assert asked[tables][0] is second.halo
    run.accumulate(second)
    assert len(asked) == 3 * tables
    last = [run.accumulate(batch) and batch for batch in batches][-1]
    following = next(run.batches())  # of the next epoch
    assert following is not last
    assert asked[-tables][0] is following.halo


def test_dropped_edges_change_nothing_about_the_rows_that_are_prefetched() -> None:
    """A step on a thinned graph pulls the rows that were fetched for it: it never has to wait for others."""
    g = random_graph()
    found = []
    for history in ("device", Behind()):
        model = make("gcn", g)
        run = DropEdge(CMC(clusters_per_batch=2), 0.3).bind(g, model, parts_of(g, 6), Placement("cpu", history))
        found.append(steps(run, model, epochs=3))
        assert run.pipeline.staging.recordable
    assert run.pipeline.staging.active
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_an_epoch_is_drawn_once_though_it_is_looked_into_before() -> None:
    g = random_graph()
    run = LMC4Conv(clusters_per_batch=2, redraw=True).bind(
        g, make("gcn", g), parts_of(g, 6), Placement(history=Behind())
    )
    seen = []
    for _ in range(3):
        for batch in run.batches():
            seen.append(batch)
            run.accumulate(batch)
    other = LMC4Conv(clusters_per_batch=2, redraw=True).bind(g, make("gcn", g), parts_of(g, 6))
    want = [batch for _ in range(3) for batch in other.batches()]
    assert len({id(b) for b in seen}) == len(want)
    assert all(torch.equal(a.core, b.core) for a, b in zip(seen, want, strict=True))


@pytest.mark.parametrize("keep", [True, False])
def test_batches_need_not_be_kept(keep: bool) -> None:
    g = random_graph()
    model = make("gcn", g)
    run = CMC(clusters_per_batch=2).bind(g, model, parts_of(g, 6), placement=Placement(keep_batches=keep))
    seen = {id(b): b for _ in range(2) for b in run.batches(0)}
    assert len(seen) == (3 if keep else 6)
    run.epoch = 0
    other = make("gcn", g)
    want = steps(CMC(clusters_per_batch=2).bind(g, other, parts_of(g, 6)), other)
    assert all(torch.equal(a, b) for a, b in zip(steps(run, model), want, strict=True))


@pytest.mark.parametrize("kind", METHODS)
def test_a_batch_that_is_not_kept_is_freed_after_its_step(kind: str) -> None:
    g = random_graph()
    cls, options, name = METHODS[kind]
    run = cls(clusters_per_batch=2, redraw=True, **options).bind(g, make(name, g), parts_of(g, 6))
    gc.collect()
    gc.disable()  # a cycle of references would keep its arrays until the collector comes by
    try:
        batches = run.batches()
        batch = next(batches)
        run.accumulate(batch)
        gone = weakref.ref(batch), weakref.ref(batch.operators[-1])
        del batch
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()


def test_a_state_is_taken_up_on_another_tier() -> None:
    g = random_graph()
    model = make("gcn", g)
    a = LMC4Conv(clusters_per_batch=2).bind(g, model, parts_of(g))
    steps(a, model)
    b = LMC4Conv(clusters_per_batch=2).bind(g, model, parts_of(g), Placement(history=Disk()))
    b.load_state_dict(a.state_dict())
    for mine, theirs in zip(a.named_tables().values(), b.named_tables().values(), strict=True):
        assert torch.equal(mine.data(), theirs.data())


@pytest.mark.parametrize("name", ["graphsage", "vrgcn", "fastgcn", "ladies", "graphsaint", "shadow", "sign"])
def test_sampling_methods_read_features_from_anywhere(name: str) -> None:
    g = random_graph()
    found = []
    for features in ("device", "host", "disk"):
        run = lmc.methods.METHODS[name]().bind(g, make(model_for(name), g), placement=Placement(features=features))
        for batch in run.batches():
            run.accumulate(batch)
        found.append([p.grad.clone() for p in run.parameters.values() if p.grad is not None])
    for other in found[1:]:
        assert all(torch.allclose(a, b, rtol=1e-12, atol=0) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("name", ["gas", "fm", "lmc", "cmc", "imc", "top", "cluster", "backward-sgd"])
@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_edges_may_stay_on_the_host_or_on_disk(name: str, model: str) -> None:
    g = random_graph()
    found = []
    for structure in ("device", "host", "disk"):
        mine = make(model, g)
        run = lmc.methods.METHODS[name](clusters_per_batch=2).bind(
            g, mine, parts_of(g, 6), placement=Placement(structure=structure)
        )
        found.append([*steps(run, mine), *evaluate_problem(run.problem).values()])
        assert run.tiers.get("structure", "device") == structure
    for a, b in zip(*found[:2], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
    assert_identical(*found[1:])


def assert_identical(first: list[Tensor | float], second: list[Tensor | float]) -> None:
    for a, b in zip(first, second, strict=True):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def bent(g: Graph, directed: bool, weighted: bool) -> Graph:
    """The graph with half of its edges in one direction only, with weights, or both."""
    src, dst = g.adj.indices.long(), g.adj.row_index()
    keep = (src < dst) | ((src + dst) % 2 == 0) if directed else src >= 0
    weight = 0.5 + ((src * dst) % 7)[keep] / 7
    return Graph.from_edges(
        torch.stack([src, dst])[:, keep], g.x, g.y, train=g.train, val=g.val, test=g.test, directed=directed,
        edge_weight=weight.double() if weighted else None,
    )  # fmt: skip


@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("weighted", [False, True], ids=["bare", "weighted"])
@pytest.mark.parametrize("model", ["gcn", "sage", "gin"])
def test_edges_on_disk_are_read_in_chunks(
    model: str, weighted: bool, directed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = bent(random_graph(), directed, weighted)
    monkeypatch.setattr(csr, "CHUNK", 30)
    found = []
    for structure in ("host", "disk"):
        mine = make(model, g)
        placement = Placement(features="disk", structure=structure, keep_batches=False)
        run = CMC(clusters_per_batch=2).bind(g, mine, parts_of(g, 6), placement=placement)
        found.append([*steps(run, mine), *evaluate_problem(run.problem).values()])
    assert_identical(*found)


def test_edges_on_disk_can_be_bfloat16_and_lie_in_a_folder(tmp_path: Path) -> None:
    g = replace(random_graph(), x=random_graph().x.float())
    found = []
    for structure in ("host", f"disk:{tmp_path}"):
        mine = make("sage", g).float()
        placement = Placement(structure=structure, precision="bfloat16")
        run = LMC4Conv(clusters_per_batch=2).bind(g, mine, parts_of(g, 6), placement=placement)
        found.append(steps(run, mine))
    assert run.problem.P.files is not None
    assert run.problem.P.files.folder == str(tmp_path)
    assert_identical(*found)


@pytest.mark.gpu
@pytest.mark.parametrize("redraw", [False, True], ids=["fixed", "redrawn"])
@pytest.mark.parametrize("kind", METHODS)
def test_edges_on_the_host_train_alike_on_a_gpu(kind: str, redraw: bool) -> None:
    g = random_graph()
    cls, options, name = METHODS[kind]
    found = []
    for structure in ("device", "host"):
        model = make(name, g)
        method = cls(clusters_per_batch=2, redraw=redraw, **options)
        run = method.bind(g, model, parts_of(g, 6), placement=Placement("cuda", "host", "host", structure))
        found.append(steps(run, model))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_edges_stay_where_more_is_read_of_them_than_batches() -> None:
    g = random_graph()
    with pytest.raises(ConfigError, match='structure="device" for GraphSAGE'):
        lmc.methods.METHODS["graphsage"]().bind(g, make("sage", g), placement=Placement(structure="host"))
    for wrong in ("tape", "host:/tmp"):
        with pytest.raises(ConfigError, match=rf"structure in .* \(got '{wrong}'\)"):
            Placement(structure=wrong)
    for method, model in ((lmc.methods.GraphSAGE(), "sage"), (lmc.methods.FullBatch(), "gcn")):
        with pytest.raises(ConfigError, match=r'structure="device" for .* \(got "disk"\)'):
            method.bind(g, make(model, g), placement=Placement(structure="disk"))
    with pytest.raises(ConfigError, match=r"expected a folder with .* GB of room"):
        GAS().bind(g, make("gcn", g), parts_of(g, 6), placement=Placement(structure="disk:/proc/nowhere"))


def test_features_that_are_summed_anew_stay_on_the_device() -> None:
    g = random_graph()
    with pytest.raises(ConfigError, match=r'features="device" for DropEdge \(got \'host\'\)'):
        DropEdge(GAS(), 0.2).bind(g, make("gcn", g), placement=Placement(features="host"))
