"""Evaluation in chunks is the full forward pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch_geometric.nn
from safetensors.torch import load_file

import lmc
from helpers import hand_graph
from lmc.engine import Problem
from lmc.engine.exact import chunks_of, exact_logits, exact_states
from lmc.errors import ConfigError
from lmc.graph import Aggregation, gcn_norm
from lmc.stores import Placement
from lmc.train.evaluate import evaluate_problem


def models(g: lmc.Graph) -> list[lmc.models.Model]:
    return [
        lmc.models.GCN(g.num_features, 8, g.num_classes, num_layers=3, dropout=0.5, norm="batch"),
        lmc.models.GCN(g.num_features, 8, g.num_classes, residual=True, linear_in=True, linear_out=True, norm="layer"),
        lmc.models.GCNII(g.num_features, 8, g.num_classes, num_layers=3, dropout=0.5),
    ]


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("size", [1, 3, 8])
def test_logits_in_chunks_equal_the_full_forward_pass(which: int, size: int) -> None:
    g = hand_graph()
    model = models(g)[which].double()
    problem = Problem.of(g, model, Placement(device="cpu"))
    chunks = [slice(a, min(a + size, g.num_nodes)) for a in range(0, g.num_nodes, size)]
    store = lmc.stores.Device()
    states = dict(exact_states(problem, chunks, lambda _, w: store.table(8, w, torch.float64, problem.device)))
    logits = torch.cat([part for _, part in exact_logits(problem, chunks, [states[model.num_layers]])])
    model.eval()
    whole = model(g.x.to(dtype=torch.float64), Aggregation.exact(gcn_norm(g.adj, torch.float64)))
    assert torch.allclose(logits, whole, rtol=0, atol=1e-12)


def test_accuracy_counts_each_split_by_itself() -> None:
    g = lmc.load("tiny-like", scale=0.5)
    model = lmc.models.GCN(g.num_features, 8, g.num_classes)
    model.eval()
    right = model(g.x, Aggregation.exact(gcn_norm(g.adj))).argmax(1) == g.y
    scores = lmc.evaluate(model, g)
    for split in ("train", "val", "test"):
        assert scores[split] == pytest.approx(float(right[getattr(g, split)].double().mean()), abs=1e-6)


def test_multi_label_score_is_micro_f1() -> None:
    g = hand_graph(multi_label=True)
    model = lmc.models.GCN(g.num_features, 8, g.num_classes)
    model.eval()
    predicted = model(g.x.to(dtype=torch.float32), Aggregation.exact(gcn_norm(g.adj))) > 0
    truth = g.y[g.train].bool()
    hits = (predicted[g.train] & truth).sum()
    f1 = 2 * hits / (predicted[g.train].sum() + truth.sum())
    assert lmc.evaluate(model, g)["train"] == pytest.approx(float(f1), abs=1e-6)


def test_chunks_and_tier_do_not_change_the_scores() -> None:
    g = lmc.load("tiny-like", scale=0.5)
    model = lmc.models.GCN(g.num_features, 16, g.num_classes, num_layers=3, norm="layer")
    whole = evaluate_problem(Problem.of(g, model, Placement(device="cpu")))
    on_host = Problem.of(g, model, Placement("cpu", history="host"))
    assert evaluate_problem(on_host, max_elements=32 * 100) == whole


def test_evaluation_leaves_the_model_as_it_was() -> None:
    g = lmc.load("tiny-like", scale=0.25)
    model = lmc.models.GCN(g.num_features, 8, g.num_classes, norm="batch", dropout=0.5)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    assert model.training
    lmc.evaluate(model, g)
    assert model.training
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


@pytest.mark.parametrize("mode", ["train", "eval", "mixed"])
def test_evaluation_keeps_the_mode_of_every_submodule(mode: str) -> None:
    g = lmc.load("tiny-like", scale=0.25)
    native = lmc.models.GCN(g.num_features, 8, g.num_classes, norm="batch", dropout=0.5)
    network = torch_geometric.nn.GCN(g.num_features, 8, 2, g.num_classes, norm="batch", dropout=0.5)
    for model, module in ((native, native), (lmc.wrap(network), network)):
        module.train(mode == "train")
        if mode == "mixed":
            next(module.children()).train()
        before = {name: m.training for name, m in model.named_modules()}
        lmc.evaluate(model, g)
        run = lmc.methods.LMC4Conv(4, 1).bind(g, model)
        run.refresh()
        lmc.diagnostics.gradient_error(run, next(run.batches()))
        assert {name: m.training for name, m in model.named_modules()} == before


def test_fit_learns_and_reports_the_best_validation_epoch(tmp_path: Path) -> None:
    g = lmc.load("tiny-like")
    model = lmc.models.GCN(g.num_features, 32, g.num_classes, dropout=0.3, seed=1)
    seen: list[lmc.EpochRecord] = []
    method = lmc.methods.LMC4Conv(10, 2)
    record = lmc.fit(
        g, model, method, epochs=15, lr=0.01, device="cpu", eval_every=4, run_dir=tmp_path / "r",
        callbacks=[lambda training: seen.append(training.record)],
    )  # fmt: skip
    assert [e.epoch for e in record.epochs if e.scores] == [4, 8, 12, 15]
    assert record.epochs == tuple(seen)
    vals = [e.scores["val"] for e in record.epochs if e.scores]
    assert record.best_val == max(vals)
    assert record.test is not None
    assert record.test > 0.7  # an MLP on these features ends near 0.56
    assert record.epochs[-1].loss < record.epochs[0].loss
    best = lmc.models.GCN(g.num_features, 32, g.num_classes)
    best.load_state_dict(load_file(tmp_path / "r" / "best.safetensors"))
    assert lmc.evaluate(best, g)["val"] == pytest.approx(record.best_val, abs=1e-6)


def test_progress_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    g = lmc.load("tiny-like", scale=0.25)
    model = lmc.models.GCN(g.num_features, 8, g.num_classes)
    lmc.fit(g, model, lmc.methods.GAS(4, 1), epochs=2, device="cpu", progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "2/2" in err


def test_loss_is_the_mean_of_the_batches_estimates() -> None:
    g = lmc.load("tiny-like", scale=0.5)
    model = lmc.models.GCN(g.num_features, 8, g.num_classes)
    run = lmc.methods.GAS(4, 1).bind(g, model)
    run.refresh()
    estimates = [float(run.accumulate(batch).loss) for batch in run.batches()]
    full = lmc.methods.FullBatch().bind(g, model)
    exact = float(full.accumulate(next(full.batches())).loss)
    assert sum(estimates) / 4 == pytest.approx(exact, rel=1e-5)


def test_global_generators_are_not_touched() -> None:
    g = lmc.load("tiny-like", scale=0.25)
    before = torch.random.get_rng_state()
    model = lmc.models.GCN(g.num_features, 8, g.num_classes, dropout=0.5)
    lmc.fit(g, model, lmc.methods.GAS(4, 1), epochs=1, device="cpu")
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("size", [2, 2**28])
def test_micro_f1_of_logits_between_zero_and_one(size: int) -> None:
    g = hand_graph(multi_label=True)
    model = lmc.models.GCN(g.num_features, 8, g.num_classes, num_layers=1).double()
    with torch.no_grad():  # every logit in (0, 0.5): every label is predicted
        model.layers[0].lin.weight.mul_(1e-3)
        model.layers[0].lin.bias.fill_(0.3)
    scores = lmc.evaluate(model, g, max_elements=size)
    for split, score in scores.items():
        truth = g.y[getattr(g, split)]
        assert score == pytest.approx(float(2 * truth.sum() / (truth.sum() + truth.numel())), abs=1e-6)


def test_what_a_chunk_reads_does_not_grow_with_the_graph() -> None:
    def rows_read(scale: float) -> int:
        g = lmc.load("tiny-like", scale=scale)
        problem = Problem.of(g, lmc.models.GCN(g.num_features, 32, g.num_classes), Placement(device="cpu"))
        chunks = chunks_of(problem, max_elements=32 * 400)
        assert [c.start for c in chunks[1:]] == [c.stop for c in chunks[:-1]]
        assert (chunks[0].start, chunks[-1].stop) == (0, g.num_nodes)
        rows = [torch.arange(c.start, c.stop) for c in chunks]
        return max(r.numel() + problem.blocks.halo(r).numel() for r in rows)

    assert rows_read(1.0) <= 400
    assert rows_read(4.0) <= 400


def test_rows_of_sparse_features_count_what_they_store() -> None:
    g = lmc.load("amazon-like", scale=0.004)  # no features: the rows of the identity
    problem = Problem.of(g, lmc.models.RecGCN(g.num_features, 8, g.num_classes), Placement(device="cpu"))
    widest = max(8, g.num_classes)
    assert g.num_features == g.num_nodes > 2 * widest
    assert chunks_of(problem, max_elements=g.num_nodes * widest) == [slice(0, g.num_nodes)]
    assert len(chunks_of(problem, max_elements=g.num_nodes * widest // 8)) > 1


def test_evaluate_refuses_a_model_of_another_width() -> None:
    g = hand_graph()
    with pytest.raises(ConfigError, match="outputs"):
        lmc.evaluate(lmc.models.GCN(g.num_features, 8, g.num_classes + 1), g)


@pytest.mark.parametrize(
    "wrong", [{"clip": -1.0}, {"weight_decay": -1.0}, {"lr": float("nan")}, {"epochs": 1.5}, {"device": "gpu"}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    g = hand_graph()
    model = lmc.models.GCN(g.num_features, 8, g.num_classes).double()
    with pytest.raises(ConfigError, match="expected"):
        lmc.fit(g, model, lmc.methods.FullBatch(), **{"epochs": 1, **wrong})  # type: ignore[arg-type]
