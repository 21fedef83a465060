"""Batches of fixed capacity, redrawn or fixed: padding changes neither the estimate nor the tables."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from helpers import parts_of, random_graph, scrambled, weighted_graph
from lmc.engine import Run
from lmc.engine.fixed_cuts import tensors_of
from lmc.engine.padding import Padding, room_of
from lmc.engine.shared_copy import SharedCopy, shared_room
from lmc.graph import Aggregation, Batch, Graph, PaddedExtractor, Precomputed, live_tensors
from lmc.methods import CMC, GAS, IMC, ClusterGCN, LMC4Conv, Method
from lmc.methods.protocol import Layout, ProblemView, Traits, operators
from lmc.models import GCN, GCNII, SAGE, Model
from lmc.models.activation import BatchNorm
from lmc.stores import Placement

METHODS = [
    ClusterGCN(clusters_per_batch=2, redraw=True),
    GAS(clusters_per_batch=2, redraw=True),
    LMC4Conv(clusters_per_batch=2, redraw=True, alpha=0.4),
    LMC4Conv(clusters_per_batch=2, redraw=True, alpha=0.0),
    CMC(clusters_per_batch=2, redraw=True),
    IMC(clusters_per_batch=2, redraw=True),
]
MODELS = [
    lambda g: GCN(g.num_features, 7, g.num_classes, num_layers=3, norm="layer"),
    lambda g: GCNII(g.num_features, 7, g.num_classes, num_layers=3),
    lambda g: SAGE(g.num_features, 7, g.num_classes, num_layers=2),
]


def bound(method: Method, model: Model, directed: bool = False) -> Run:
    g = weighted_graph(directed=True, weighted=False) if directed else random_graph()
    run = method.bind(g, scrambled(model), parts_of(g, 6))
    run.refresh()
    return run


def estimate(run: Run, batch: Batch, keep: bool) -> list[torch.Tensor]:
    grads, loss = run.problem.kind.estimate(run, batch, keep=keep, dropout=False)
    return [*grads, loss]


@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("model", MODELS, ids=["gcn", "gcnii", "sage"])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.traits.name}-{getattr(m, 'alpha', '')}")
def test_a_step_on_the_copy_is_a_step_on_the_batch(
    method: Method, model: Callable[[Graph], Model], directed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmc.engine.padding.COPIES", 2)  # of three batches
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(record_event=lambda: None))
    plain, padded = (bound(method, model(random_graph()), directed) for _ in range(2))
    padding, copies = Padding(padded.source), 0
    for epoch in range(3):
        for batch in padding.epoch(epoch, 0):
            copy = padding.copy_of(batch)
            copies += copy is not None
            assert int((copy or batch).place) == batch.slot
            got, want = (estimate(run, of, keep=True) for run, of in ((padded, copy or batch), (plain, batch)))
            for a, b in zip(got, want, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
            for name, table in padded.named_tables().items():
                torch.testing.assert_close(table.data(), plain.named_tables()[name].data(), rtol=1e-10, atol=1e-12)
            padding.used(batch)
    assert copies >= 6


SHARING = [
    ClusterGCN(clusters_per_batch=2),
    IMC(clusters_per_batch=2, halo=0.0),
    IMC(clusters_per_batch=2, halo=0.5),  # as many halo rows for every core row
]
SHARING_AT_FIRST = [replace(method, redraw=False) for method in METHODS[1:5]] + [
    CMC(clusters_per_batch=2, adjoints=True),
    LMC4Conv(clusters_per_batch=2, backward=False),
]


def shared_copy(run: Run, monkeypatch: pytest.MonkeyPatch) -> SharedCopy | None:
    monkeypatch.setattr("lmc.engine.shared_copy.ignores_padding", lambda *_: True)
    monkeypatch.setattr("lmc.engine.shared_copy.MANY", 2)
    room = shared_room(run.problem, run.source)
    return None if room is None else SharedCopy(run.source, room)


def assert_equal_steps(shared: Run, copy: Batch, plain: Run, batch: Batch) -> None:
    """A step on the copy gives what a step on the batch does, and leaves the same tables and numbers."""
    for a, b in zip(estimate(shared, copy, keep=True), estimate(plain, batch, keep=True), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    for name, number in shared.numbers.items():
        torch.testing.assert_close(number, plain.numbers[name], rtol=1e-10, atol=1e-12)
    for name, table in shared.named_tables().items():
        torch.testing.assert_close(table.data(), plain.named_tables()[name].data(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("model", MODELS, ids=["gcn", "gcnii", "sage"])
@pytest.mark.parametrize(
    ("method", "directed"),
    [*((method, False) for method in SHARING), *((method, True) for method in SHARING[1:])],
    ids=["cluster", "imc", "imc-halo", "imc-directed", "imc-halo-directed"],
)
def test_a_step_on_the_shared_copy_is_a_step_on_the_fixed_batch(
    method: Method, directed: bool, model: Callable[[Graph], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmc.engine.shared_copy.WASTE", 3)
    plain, shared = (bound(method, model(random_graph()), directed) for _ in range(2))
    copies, seen = shared_copy(shared, monkeypatch), set()
    assert copies is not None
    for epoch in range(3):
        for batch, want_of in zip(copies.epoch(epoch, 0), plain.source.epoch(epoch, 0), strict=True):
            copy = copies.copy_of(batch)
            assert copy is not None
            assert copies.copy_of(batch.unrecorded()) is None
            seen.add(copy)
            assert_equal_steps(shared, copy, plain, want_of)
            assert torch.equal(batch.n_id, want_of.n_id)
    assert len(seen) == (2 if isinstance(method, IMC) else 1)  # every fourth step of IMC measures


@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("model", MODELS, ids=["gcn", "gcnii", "sage"])
@pytest.mark.parametrize("method", SHARING_AT_FIRST, ids=repr)
def test_batches_with_a_halo_share_the_copy_at_first(
    method: Method, model: Callable[[Graph], Model], directed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmc.engine.shared_copy.FIRST_OWN", 1)
    monkeypatch.setattr("lmc.engine.shared_copy.SPREAD", 2)
    plain, shared = (bound(method, model(random_graph()), directed) for _ in range(2))
    copies, alone = shared_copy(shared, monkeypatch), []
    assert copies is not None
    for epoch in range(4):
        alone.append(0)
        for batch, want_of in zip(copies.epoch(epoch, 0), plain.source.epoch(epoch, 0), strict=True):
            copy = copies.copy_of(batch)
            alone[-1] += copy is None
            assert_equal_steps(shared, copy or batch, plain, want_of)
            assert (batch.num_core, batch.num_halo, batch.slot) == (want_of.num_core, want_of.num_halo, want_of.slot)
            assert torch.equal(batch.n_id, want_of.n_id)
            if copy is None:
                assert (batch.rows, batch.fixed) == (want_of.rows, True)
                for got, want in zip(batch.operators, want_of.operators, strict=True):
                    if not isinstance(got, Precomputed):
                        assert torch.equal(got.forward.to_dense(), want.forward.to_dense())
    assert alone == [0, 2, 3, 3]  # slots 0 and 2, then slot 1 of three batches
    resumed = shared_copy(shared, monkeypatch)
    assert resumed is not None
    for batch, want_of in zip(resumed.epoch(4, 0), copies.epoch(4, 0), strict=True):
        assert batch.fixed
        assert resumed.copy_of(batch) is None
        for got, want in zip(tensors_of(batch), tensors_of(want_of), strict=True):
            assert torch.equal(got, want), "a run that is resumed here sums in another order"


def test_fixed_batches_that_need_more_room_have_recordings_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    run = bound(SHARING_AT_FIRST[1], MODELS[0](random_graph()))
    monkeypatch.setattr("lmc.engine.shared_copy.ignores_padding", lambda *_: True)
    monkeypatch.setattr("lmc.engine.shared_copy.MANY", 2)
    room = shared_room(run.problem, run.source)
    assert room is not None
    for small in (replace(room, halo=1), replace(room, entries=dict.fromkeys(room.entries, 5))):
        copies = SharedCopy(run.source, small)
        batches = list(copies.epoch(0, 0))
        assert [copies.copy_of(batch) for batch in batches] == [None] * len(batches)
        assert all(batch.fixed and isinstance(batch.rows, slice) for batch in batches)


@dataclass(frozen=True)
class WithoutTables(ClusterGCN):
    """A method of a user, which computes a whole halo and stores nothing."""

    traits: ClassVar[Traits] = replace(ClusterGCN.traits, name="without-tables", pads_batches="all")

    def layout(self, problem: ProblemView, core: torch.Tensor) -> Layout:
        halo = problem.halo(core)
        ext = torch.cat([core, halo])
        return Layout(halo, operators(problem, ext.numel(), Aggregation.exact(problem.blocks.induced(ext))))


def test_a_halo_is_kept_where_a_method_has_no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmc.engine.shared_copy.WASTE", 3)
    plain, shared = (bound(WithoutTables(clusters_per_batch=2), MODELS[0](random_graph())) for _ in range(2))
    copies = shared_copy(shared, monkeypatch)
    assert copies is not None
    for batch, want_of in zip(copies.epoch(0, 0), plain.source.epoch(0, 0), strict=True):
        assert batch.num_halo == want_of.num_halo > 0
        assert copies.copy_of(batch) is None
        assert_equal_steps(shared, batch, plain, want_of)


def test_a_trial_of_every_kind_of_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmc.engine.shared_copy.WASTE", 3)
    for method, kinds in ((SHARING[0], 1), (SHARING_AT_FIRST[0], 2)):
        run = bound(method, MODELS[0](random_graph()))
        copies = shared_copy(run, monkeypatch)
        assert copies is not None
        trials = copies.trials()
        assert len(trials) == kinds
        assert isinstance(trials[0].rows, slice) == (kinds == 2)
        assert trials[-1] is copies.copy_of(next(copies.epoch(0, 0)))


def test_which_fixed_batches_share_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    g = random_graph()
    parts = torch.arange(g.num_nodes) % 4
    for method, of, shares in [
        (IMC(clusters_per_batch=2, halo=0.0), parts, True),
        (IMC(clusters_per_batch=2, redraw=True), parts, False),
        (GAS(clusters_per_batch=2), parts, True),
        (CMC(clusters_per_batch=2), parts, True),
        (IMC(clusters_per_batch=2, halo=0.5), parts, True),
        (IMC(clusters_per_batch=2, halo=0.0), (torch.arange(g.num_nodes) % 12).clamp(max=3), False),
    ]:
        run = method.bind(g, scrambled(MODELS[0](g)), of)
        assert (shared_copy(run, monkeypatch) is not None) == shares
    for applied_by_itself in (False, True):  # then its statistics would count padding
        model = GCN(g.num_features, 7, g.num_classes, norm="batch")
        model.last = BatchNorm(g.num_classes) if applied_by_itself else None
        run = IMC(clusters_per_batch=2, halo=0.0).bind(g, scrambled(model), parts)
        assert (shared_copy(run, monkeypatch) is None) == applied_by_itself
    run = GAS(clusters_per_batch=2).bind(g, scrambled(MODELS[0](g)), parts)
    room = shared_room(run.problem, run.source)
    assert room is not None
    rows = room.core + room.halo
    for most, shares in ((rows * 18, True), (rows * 18 - 1, False)):  # 18: the widths of all layers
        monkeypatch.setattr("lmc.engine.shared_copy.SHORT", most)
        assert (shared_copy(run, monkeypatch) is not None) == shares
    monkeypatch.setattr("lmc.engine.shared_copy.SHORT", rows * 18)
    for name, value in (("MANY", 3), ("HALO_WASTE", 1)):  # of two batches; the room is larger than the mean
        with monkeypatch.context() as patch:
            patch.setattr(f"lmc.engine.shared_copy.{name}", value)
            assert shared_room(run.problem, run.source) is None


def with_a_closed_part() -> tuple[Graph, torch.Tensor]:
    """Four parts with as many rows and inner edges each; no edge leaves the last one."""
    draw, i = torch.Generator().manual_seed(0), torch.arange(60)
    part, (source, target) = i // 15, torch.randint(60, (2, 150), generator=draw)
    inside = [torch.stack([i, part * 15 + (i + k) % 15]) for k in (1, 2, 3)]
    between = (part[source] != part[target]) & (source < 45) & (target < 45)
    edges = torch.cat([*inside, torch.stack([source, target])[:, between]], 1)
    x, y = torch.randn(60, 5, generator=draw).double(), torch.randint(3, (60,), generator=draw)
    return Graph.from_edges(edges, x, y, train=torch.ones(60, dtype=torch.bool), symmetrise=True), part


@pytest.mark.parametrize("seen", [1, 4])
@pytest.mark.parametrize("method", [GAS(), LMC4Conv(), CMC()], ids=lambda m: m.traits.name)
def test_a_halo_is_kept_where_some_batches_have_none(
    method: Method, seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmc.engine.padding.SEEN", seen)
    g, part = with_a_closed_part()
    for closed in range(4):  # whichever batch is the first of an epoch
        plain, shared = (
            replace(method, clusters_per_batch=1).bind(g, scrambled(MODELS[0](g)), (part + closed) % 4)
            for _ in range(2)
        )
        copies, with_halo = shared_copy(shared, monkeypatch), 0
        for run in (plain, shared):
            run.refresh()
        batches = shared.batches(0) if copies is None else copies.epoch(0, 0)
        for batch, want_of in zip(batches, plain.batches(0), strict=True):
            with_halo += want_of.num_halo > 0
            copy = None if copies is None else copies.copy_of(batch)
            assert_equal_steps(shared, copy or batch, plain, want_of)
        assert with_halo == 3


def test_a_shared_copy_is_freed_with_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    run = bound(SHARING_AT_FIRST[0], MODELS[0](random_graph()))
    copies = shared_copy(run, monkeypatch)
    assert copies is not None
    assert len(list(copies.epoch(0, 0))) == 3
    kept = weakref.ref(copies)
    gc.disable()  # a reference cycle would keep the memory of all batches until the collector runs
    try:
        del copies
        assert kept() is None
    finally:
        gc.enable()


def test_a_trial_of_the_copy_where_the_first_batch_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    run = bound(SHARING_AT_FIRST[0], MODELS[0](random_graph()))
    monkeypatch.setattr("lmc.engine.shared_copy.ignores_padding", lambda *_: True)
    monkeypatch.setattr("lmc.engine.shared_copy.MANY", 2)
    room, halos = shared_room(run.problem, run.source), [batch.num_halo for batch in run.source.fixed()]
    assert room is not None
    smaller = [halo for halo in halos if halo < halos[0]]
    assert smaller
    whole, copy = SharedCopy(run.source, replace(room, halo=max(smaller))).trials()
    assert isinstance(whole.rows, slice)
    assert copy.num_real is not None


def test_a_batch_of_an_epoch_that_was_left_has_no_copy() -> None:
    run = bound(METHODS[2], MODELS[0](random_graph()))
    padding = Padding(run.source)
    first, second = (next(iter(padding.epoch(epoch, 0))) for epoch in range(2))
    assert padding.copy_of(first) is None
    assert padding.copy_of(second) is not None


def test_a_copy_is_taken_again_after_the_step_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(record_event=lambda: None))
    monkeypatch.setattr("lmc.engine.padding.COPIES", 3)
    g = random_graph()
    run = replace(METHODS[2], clusters_per_batch=1).bind(g, scrambled(MODELS[0](g)), parts_of(g, 6))
    padding = Padding(run.source)
    ahead = list(padding.epoch(0, 0))
    assert [padding.copy_of(batch) is not None for batch in ahead] == [True] * 3 + [False] * 3
    copies = []
    for batch in padding.epoch(1, 0):
        copies.append(padding.copy_of(batch))
        padding.used(batch)
        assert padding.copy_of(batch) is None
    assert all(copy is not None for copy in copies)
    assert not any(padding.copy_of(batch) for batch in ahead)


def test_a_batch_that_needs_more_room_is_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    run = bound(METHODS[2], MODELS[0](random_graph()))
    room = room_of(run.source)
    for small in (replace(room, halo=1), replace(room, entries=dict.fromkeys(room.entries, 5))):
        monkeypatch.setattr("lmc.engine.padding.room_of", lambda _, small=small: small)
        padding = Padding(run.source)
        batches = list(padding.epoch(0, 0))
        assert [padding.copy_of(batch) for batch in batches] == [None] * len(batches)


def test_a_drawn_batch_is_that_of_its_parts() -> None:
    run = bound(METHODS[2], MODELS[0](random_graph()))
    for drawn, batch in zip(Padding(run.source).epoch(1, 0), run.source.epoch(1, 0), strict=True):
        assert (drawn.num_core, drawn.num_halo, drawn.slot) == (batch.num_core, batch.num_halo, batch.slot)
        assert (drawn.weight, drawn.graph, drawn.fixed) == (batch.weight, batch.graph, batch.fixed)
        assert (drawn.num_nodes, drawn.num_edges) == (batch.num_nodes, batch.num_edges)
        for name in (
            "core",
            "halo",
            "ext",
            "y",
            "labelled",
            "n_id",
            "coefficients",
            "edge_index",
            "val_mask",
            "test_mask",
        ):
            assert torch.equal(getattr(drawn, name), getattr(batch, name))
        assert repr(drawn).replace("Drawn", "") == repr(batch)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float64", "bfloat16"])
@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.traits.name}-{getattr(m, 'alpha', '')}")
def test_recorded_copies_train_as_the_batches_do(
    method: Method, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    g, losses = random_graph(200), []
    monkeypatch.setattr("lmc.engine.padding.COPIES", 3)  # of 4 batches, two have the same
    for padded in (True, False):
        if not padded:
            monkeypatch.setattr("lmc.engine.pipeline.can_pad", lambda *_: False)
        model = GCN(g.num_features, 32, g.num_classes, num_layers=3, norm="layer")
        model = scrambled(model) if precision == "float64" else model.float()
        placement = {"float64": "float32", "bfloat16": "bfloat16"}[precision]
        run = method.bind(g, model, parts_of(g, 8), Placement("cuda", precision=placement))
        run.refresh()
        assert (run.pipeline._padding is not None) == padded
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        losses.append(torch.stack([run.step(b, optimizer).loss for e in range(4) for b in run.batches(e)]).double())
    torch.testing.assert_close(*losses, rtol=1e-8 if precision == "float64" else 2e-2, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.traits.name}-{getattr(m, 'alpha', '')}")
def test_a_cut_changes_no_other_copy(method: Method) -> None:
    g = random_graph(3_000)
    model = GCN(g.num_features, 32, g.num_classes, num_layers=3, norm="layer")
    padding = method.bind(g, model, parts_of(g, 8), Placement("cuda")).pipeline._padding
    assert padding is not None
    copies = [padding.copy_of(batch) for batch in list(padding.epoch(0, 0))]
    others = live_tensors(copies[1:], apart=(Graph, PaddedExtractor))
    before = [tensor.clone() for tensor in others]
    first = live_tensors(copies[0], apart=(Graph, PaddedExtractor))
    own = [tensor.clone() for tensor in first]
    next(padding.epoch(1, 0))
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(others, before, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, own, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("norm", ["layer", "batch", None])
@pytest.mark.parametrize("method", SHARING, ids=["cluster", "imc", "imc-halo"])
def test_fixed_batches_with_one_recording_train_as_with_one_each(
    method: Method, norm: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    g, losses = random_graph(200), []
    monkeypatch.setattr("lmc.engine.shared_copy.WASTE", 3)
    for shared in (True, False):
        if not shared:
            monkeypatch.setattr("lmc.engine.pipeline.shared_room", lambda *_: None)
        dropout = 0.5 if not getattr(method, "halo", 0) else 0.0  # behind the padding, other elements are dropped
        model = scrambled(GCN(g.num_features, 32, g.num_classes, num_layers=3, norm=norm, dropout=dropout))
        run = replace(method, clusters_per_batch=1).bind(g, model, parts_of(g, 8), Placement("cuda"))
        run.refresh()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        steps = [run.step(b, optimizer).loss for e in range(4) for b in run.batches(e)]
        buffers = [b.flatten() for b in model.buffers()]
        losses.append(torch.cat([torch.stack(steps), *buffers, *(p.flatten() for p in model.parameters())]).double())
        assert run.pipeline.recorder is not None
        own = not shared or (norm == "batch" and dropout == 0)  # statistics would count padding before halo rows
        want = 8 if own else 2 if isinstance(method, IMC) else 1
        assert len(run.pipeline.recorder._recorded) == want
    torch.testing.assert_close(*losses, rtol=1e-8, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("norm", ["layer", "batch", None])
@pytest.mark.parametrize("method", SHARING_AT_FIRST, ids=repr)
def test_batches_that_share_the_copy_at_first_train_as_with_a_recording_each(
    method: Method, norm: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    g, losses = random_graph(200), []
    monkeypatch.setattr("lmc.engine.shared_copy.MANY", 8)
    monkeypatch.setattr("lmc.engine.shared_copy.FIRST_OWN", 1)
    monkeypatch.setattr("lmc.engine.shared_copy.SPREAD", 2)
    for shared in (True, False):
        if not shared:
            monkeypatch.setattr("lmc.engine.pipeline.shared_room", lambda *_: None)
        model = scrambled(GCN(g.num_features, 32, g.num_classes, num_layers=3, norm=norm))
        run = replace(method, clusters_per_batch=1).bind(g, model, parts_of(g, 8), Placement("cuda"))
        run.refresh()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        recorder, steps, recorded = run.pipeline.recorder, [], []
        assert recorder is not None
        for epoch in range(4):
            steps += [run.step(batch, optimizer).loss for batch in run.batches(epoch)]
            recorded.append(len(recorder._recorded))
        buffers = [b.flatten() for b in model.buffers()]
        losses.append(torch.cat([torch.stack(steps), *buffers, *(p.flatten() for p in model.parameters())]).double())
        assert recorded == ([1, 5, 9, 9] if shared else [8, 8, 8, 8])
    torch.testing.assert_close(*losses, rtol=1e-8, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("method", SHARING_AT_FIRST, ids=repr)
def test_a_batch_whose_sizes_are_known_is_cut_without_waiting_for_the_gpu(
    method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = random_graph(200)
    monkeypatch.setattr("lmc.engine.shared_copy.MANY", 8)
    model = GCN(g.num_features, 32, g.num_classes, num_layers=3, norm="layer")
    run = replace(method, clusters_per_batch=1).bind(g, model, parts_of(g, 8), Placement("cuda"))
    copies = run.pipeline._shared
    assert copies is not None
    for _ in range(2):  # at first kernels are compiled
        batches = list(copies.epoch(0, 0))
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            later = list(copies.epoch(1_000, 0))
        finally:
            torch.cuda.set_sync_debug_mode(mode)
        assert {batch.slot for batch in batches} == {batch.slot for batch in later}
        copies._batches.clear()
