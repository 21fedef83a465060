"""Training loops of a user's own, with the habits of PyG and PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import lmc
from helpers import parts_of, random_graph
from lmc.engine import Run
from lmc.errors import ConfigError
from lmc.methods import GAS, METHODS, DropEdge, FullBatch, LMC4Conv, LMC4Rec, Method
from lmc.models import GCN, Model, RecGCN


def bound(method: Method | None = None, model: Model | None = None, sparse_features: bool = False) -> Run:
    graph = random_graph(sparse_features=sparse_features)
    method = method or LMC4Conv(clusters_per_batch=2)
    model = model or GCN(graph.num_features, 7, graph.num_classes, num_layers=2).double()
    run = method.bind(graph, model, parts_of(graph), device="cpu")
    run.refresh()
    return run


def values(run: Run) -> Tensor:
    return torch.cat([p.detach().flatten() for p in run.problem.model.parameters()])


def test_a_run_has_a_length_and_iterates_over_the_batches_of_the_next_epoch() -> None:
    run = bound()
    first, second = list(run), list(run)
    assert len(run) == len(first) == len(second) == 2
    assert run.epoch == 2
    assert [b.slot for b in second] == [b.slot for b in run.batches(epoch=1)]


@pytest.mark.parametrize("sparse_features", [False, True], ids=["dense", "sparse"])
def test_a_batch_has_features_edges_and_targets_in_its_own_numbering(sparse_features: bool) -> None:
    run = bound(sparse_features=sparse_features)
    whole = random_graph()
    graph = random_graph(sparse_features=sparse_features)
    x = graph.x if isinstance(graph.x, Tensor) else graph.x.to_dense()
    pairs = set(zip(*torch.stack([whole.adj.row_index(), whole.adj.indices]).tolist(), strict=True))
    for batch in run:
        assert batch.num_halo > 0
        assert torch.equal(batch.x, x[batch.n_id])
        assert torch.equal(batch.y, graph.y[batch.n_id])
        seen = {(int(batch.n_id[i]), int(batch.n_id[j])) for i, j in batch.edge_index.t()}
        inside = set(batch.n_id.tolist())
        assert seen == {(i, j) for i, j in pairs if i in inside and j in inside}


def test_a_network_of_pyg_takes_a_batch() -> None:
    network = pyg.GCN(6, 8, 2, 4)
    batch = next(iter(bound()))
    assert network(batch.x.float(), batch.edge_index).shape == (batch.num_core + batch.num_halo, 4)


@pytest.mark.parametrize("clip", [None, 1e-3])
def test_a_step_is_accumulate_between_zero_grad_and_step(clip: float | None) -> None:
    one, other = bound(), bound()
    adams = [torch.optim.Adam(run.problem.model.parameters(), lr=0.01) for run in (one, other)]
    for a, b in zip(one, other, strict=True):
        loss = one.step(a, adams[0], clip).loss
        adams[1].zero_grad()
        stats = other.accumulate(b)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(other.problem.model.parameters(), clip)
        adams[1].step()
        assert torch.equal(loss, stats.loss)
    assert torch.equal(values(one), values(other))


def test_a_step_projects_a_recurrent_model() -> None:
    graph = random_graph()
    model = RecGCN(graph.num_features, 5, graph.num_classes).double()
    run = bound(LMC4Rec(clusters_per_batch=2), model)
    for batch in run:
        run.step(batch, torch.optim.SGD(model.parameters(), lr=10.0))
    assert float(model.W.detach().abs().sum(1).max()) <= model.kappa / float(model.lambda_pf) + 1e-9


def test_hooks_of_the_optimiser_see_the_gradients_of_the_step() -> None:
    run, seen = bound(), list[bool]()
    optimizer = torch.optim.SGD(run.problem.model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(
        lambda *_: seen.append(all(p.grad is not None for p in run.problem.model.parameters()))
    )
    run.step(next(iter(run)), optimizer)
    assert seen == [True]


def test_what_is_no_optimiser_is_refused() -> None:
    run = bound()
    with pytest.raises(ConfigError, match=r"expected an optimiser of torch \(got str\)"):
        run.step(next(iter(run)), "adam")  # type: ignore[arg-type]


def test_lbfgs_minimises_with_the_closure_of_a_step() -> None:
    run = bound(FullBatch())
    optimizer = torch.optim.LBFGS(run.problem.model.parameters(), lr=0.5, max_iter=10)
    losses = [float(run.step(batch, optimizer).loss) for _ in range(4) for batch in run]
    assert losses[-1] < 0.5 * losses[0]


def test_lbfgs_with_a_closure_of_the_user() -> None:
    run = bound(FullBatch())
    (batch,) = run
    optimizer = torch.optim.LBFGS(run.problem.model.parameters(), lr=0.5, max_iter=10)

    def closure() -> float:
        optimizer.zero_grad()
        return float(run.accumulate(batch).loss)

    first = closure()
    optimizer.step(closure)
    assert closure() < 0.8 * first


def test_an_exponential_moving_average_follows_the_parameters() -> None:
    run = bound()
    model = run.problem.model
    average, expected = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)), values(run)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step, batch in enumerate(batch for _ in range(3) for batch in run):
        run.step(batch, optimizer)
        average.update_parameters(model)
        expected = values(run) if step == 0 else 0.9 * expected + 0.1 * values(run)
    assert torch.allclose(torch.cat([p.flatten() for p in average.module.parameters()]), expected)
    scores = lmc.evaluate(average.module, random_graph())
    assert set(scores) == {"train", "val", "test"}


REPRS: dict[str, tuple[str, ...]] = {
    "run": ("LMC4Conv", "'random' (40 nodes)", "2 batches", "cpu"),
    "batch": ("core", "halo rows", "2 layers", "weight 2"),
    "graph": ("40 nodes", "6 dense features", "4 classes"),
    "method": ("LMC4Conv(", "clusters_per_batch=2"),
    "model": ("GCN(6 to 4", "7 > 4", "81 parameters"),
}


@pytest.mark.parametrize("thing", REPRS)
def test_the_repr_is_one_line_with_sizes(thing: str) -> None:
    run = bound()
    things = {
        "run": run,
        "batch": next(iter(run)),
        "graph": run.graph,
        "method": run.method,
        "model": run.problem.model,
    }
    text = repr(things[thing])
    assert "\n" not in text
    assert len(text) < 250
    assert [part for part in REPRS[thing] if part not in text] == []


def test_wrapped_networks_and_schedules_have_one_line_too() -> None:
    graph = random_graph()
    model = lmc.wrap(pyg.GraphSAGE(graph.num_features, 8, 2, graph.num_classes)).double()
    assert repr(model).startswith("wrap(GraphSAGE)(6 to 4, ")
    run = bound(DropEdge(GAS(clusters_per_batch=2), 0.1))
    assert "DropEdge" in repr(run)
    assert [name for name, cls in METHODS.items() if "\n" in repr(cls())] == []
