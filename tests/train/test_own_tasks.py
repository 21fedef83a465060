"""Training with losses, weights and tasks of one's own: what they change, and what a resumed run refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torchmetrics.classification import BinaryRecall

import lmc
from helpers import chance, hand_graph, random_graph
from lmc.errors import CheckpointError
from lmc.losses import cross_entropy, huber
from lmc.methods import CMC, FullBatch, LMC4Conv, Method


def imbalanced_graph(n: int = 400) -> lmc.Graph:
    """Two classes, one of them a tenth of the nodes, that overlap in their features; most edges are within a class."""
    g = chance(3)
    y = (torch.arange(n) < n // 10).long()
    ends = torch.randint(n, (2, 4 * n), generator=g)
    keep = (y[ends[0]] == y[ends[1]]) | (torch.rand(4 * n, generator=g) < 0.3)
    x = torch.randn(n, 4, generator=g) + 0.5 * y[:, None]
    u = torch.rand(n, generator=g)
    return lmc.Graph.from_edges(ends[:, keep], x, y, train=u < 0.5, test=u >= 0.5, symmetrise=True)


@pytest.mark.parametrize("method", [FullBatch(), LMC4Conv(4, 1)], ids=lambda m: m.traits.name)
def test_class_weights_improve_the_rare_class(method: Method) -> None:
    g = imbalanced_graph()
    recall = {}
    for name, loss in {"plain": None, "weighted": cross_entropy(weight=[1.0, 9.0])}.items():
        model = lmc.models.GCN(4, 8, 2, num_layers=2, seed=0)
        lmc.fit(g, model, method, epochs=15, lr=0.05, loss=loss, eval_every=0, device="cpu")
        recall[name] = lmc.evaluate(model, g, metrics=BinaryRecall())["test"]
    assert recall["weighted"] > recall["plain"] + 0.2, recall


def test_node_weights_count_nodes_several_times() -> None:
    """A weight of 2 is the gradient of a node that is there twice; a weight of 0 that of a node without a label."""
    g = hand_graph()
    nodes = g.train.nonzero().squeeze(1)
    weight = torch.zeros(8)
    weight[nodes[:3]] = torch.tensor([1.0, 2.0, 1.0])
    model = lmc.models.GCN(5, 4, 3).double()
    run = FullBatch().bind(lmc.Graph(g.adj, g.x, g.y, g.train, g.val, g.test, 3, weight=weight), model)
    got = run.gradient(next(iter(run.batches())))
    outputs = model(g.x, torch.stack([g.adj.row_index(), g.adj.indices.long()]))
    twice = nodes[[0, 1, 1, 2]]
    want = torch.autograd.grad(F.cross_entropy(outputs[twice], g.y[twice]), list(model.parameters()))
    for value, wanted in zip(got.values(), want, strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.data
def test_a_regression_on_a_real_graph_reaches_the_r2_of_full_batch(data_dir: Path) -> None:
    """One column of the features of a co-purchase graph from sixty others."""
    base = lmc.load(data_dir / "amazon_photo.npz")
    x = base.x.to_dense()  # type: ignore[union-attr, operator]
    x = (x - x.mean(0)) / x.std(0).clamp_min(1e-6)
    u = torch.rand(base.num_nodes, generator=chance())
    splits: dict[str, Any] = {"train": u < 0.6, "val": (u >= 0.6) & (u < 0.8), "test": u >= 0.8}
    edges = torch.stack([base.adj.row_index(), base.adj.indices.long()])
    g = lmc.Graph.from_edges(edges, x[:, :60], x[:, 90], **splits, task="regression")
    r2 = {}
    for method, epochs in ((FullBatch(), 60), (LMC4Conv(8, 2), 18), (CMC(8, 2), 18)):
        model = lmc.models.GCN(60, 8, 1, num_layers=2, seed=0)
        r2[method.traits.name] = lmc.fit(g, model, method, epochs=epochs, lr=0.03, eval_every=6, device="cpu").test
    assert r2["full"] is not None
    assert r2["full"] > 0.35
    assert all(value is not None and value > r2["full"] - 0.02 for value in r2.values()), r2


def small_fit(run_dir: Path, loss: Any, resume: bool = False, epochs: int = 2) -> lmc.RunRecord:
    g, model = random_graph(), lmc.models.GCN(6, 4, 4, seed=0)
    return lmc.fit(g, model, LMC4Conv(4, 1), epochs=epochs, loss=loss, run_dir=run_dir, resume=resume, device="cpu")


def test_a_run_is_resumed_with_its_own_loss_alone(tmp_path: Path) -> None:
    weighted = cross_entropy(weight=[1, 2, 3, 4])
    record = small_fit(tmp_path / "a", weighted)
    assert record.config["loss"] == "cross_entropy(weight=(1.0, 2.0, 3.0, 4.0), smoothing=0.0)"
    assert len(small_fit(tmp_path / "a", weighted, resume=True, epochs=3).epochs) == 3
    for other in (None, cross_entropy(weight=[1, 2, 3, 5])):
        with pytest.raises(CheckpointError, match="loss: cross_entropy") as refusal:
            small_fit(tmp_path / "a", other, resume=True, epochs=4)
        assert "\n" not in str(refusal.value)


def test_bfloat16_rows_have_losses_in_float32() -> None:
    base = random_graph()
    x, y = base.x.float(), torch.randn(base.num_nodes, generator=chance(2))  # type: ignore[union-attr]
    g = lmc.Graph(base.adj, x, y, base.train, base.val, base.test, 1, task="regression")
    seen = set()

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.update((outputs.dtype, targets.dtype))
        return huber()(outputs, targets)

    model, placement = lmc.models.GCN(6, 4, 1), lmc.Placement("cpu", precision="bfloat16")
    run = CMC(4, 1).bind(g, model, placement=placement, loss=loss)
    run.refresh()
    losses = [float(run.accumulate(batch).loss) for batch in run.batches()]
    assert seen == {torch.float32}
    assert all(value == value for value in losses)


def test_training_without_validation_and_test_nodes(tmp_path: Path) -> None:
    base = random_graph()
    nobody = torch.zeros_like(base.val)
    y = torch.randn(base.num_nodes, 2, generator=chance(2)).where(base.train[:, None], float("nan"))
    g = lmc.Graph(base.adj, base.x, y, base.train, nobody, nobody, 2, task="regression")
    record = lmc.fit(g, lmc.models.GCN(6, 4, 2), CMC(4, 1), epochs=2, run_dir=tmp_path / "run", device="cpu")
    assert (record.test, record.best_val) == (None, None)
    assert list(record.epochs[-1].scores or {}) == ["train"]


def test_unknown_labels_leave_no_trace_in_the_gradient() -> None:
    base = random_graph(multi_label=True)
    unknown = dataclasses.replace(base, y=base.y.where(base.train[:, None], float("nan")))
    grads = []
    for g in (base, unknown):
        run = LMC4Conv(4, 1).bind(g, lmc.models.GCN(6, 4, 4, seed=0).double(), parts=torch.arange(40) % 4, device="cpu")
        run.refresh()
        grads.append(run.gradient(next(iter(run.batches()))))
    assert all(torch.equal(grads[0][name], grads[1][name]) for name in grads[0])
