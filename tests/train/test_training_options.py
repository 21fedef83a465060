"""What ``lmc.fit`` offers around the steps: the best epoch, early stopping, limits, callbacks, divergence."""

from __future__ import annotations

import dataclasses
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from safetensors.torch import load_file
from torch import Tensor

import lmc
from lmc.errors import ConfigError, DivergenceError
from lmc.methods import GAS
from lmc.train import Callback, Training
from lmc.train.best import Best
from lmc.train.metrics import metrics_of

Parameters = dict[str, Tensor]
STEPS = 4
"""Steps in an epoch."""


@pytest.fixture(scope="module")
def graph() -> lmc.Graph:
    return lmc.load("tiny-like", scale=0.25)


def model_of(graph: lmc.Graph, seed: int = 0) -> lmc.models.Model:
    return lmc.models.GCN(graph.num_features, 8, graph.num_classes, dropout=0.5, norm="batch", seed=seed)


def fit(graph: lmc.Graph, run_dir: Path | None = None, **options: Any) -> tuple[Parameters, lmc.RunRecord]:
    """The parameters in hand after training, and the record."""
    model = model_of(graph, seed=9 if options.get("resume") else 0)
    given = {"epochs": 6, "lr": 0.05, "device": "cpu", "run_dir": run_dir} | options
    record = lmc.fit(graph, model, GAS(STEPS, 1), **given)
    return {name: value.clone() for name, value in model.state_dict().items()}, record


def same(a: Parameters, b: Parameters) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def without_times(record: lmc.RunRecord) -> list[lmc.EpochRecord]:
    return [dataclasses.replace(epoch, seconds=0.0) for epoch in record.epochs]


def peak_at_epoch_3(graph: lmc.Graph) -> Callback:
    """Parameters that get worse after the third epoch, so that the best epoch is not the last one."""

    class Spoil(Callback):
        def on_step(self, training: Training) -> None:
            if len(training.records) >= 3:
                for p in training.model.parameters():
                    p.data.mul_(0.5)

    return Spoil()


@pytest.mark.parametrize("resume_at", [None, 4, 5])
def test_fit_leaves_the_parameters_of_the_best_epoch_in_evaluation_mode(
    resume_at: int | None, graph: lmc.Graph, tmp_path: Path
) -> None:
    if resume_at is not None:
        fit(graph, tmp_path / "r", epochs=resume_at, callbacks=[peak_at_epoch_3(graph)])
        fit(graph, tmp_path / "other", epochs=1)  # in the place of an epoch that was trained after the checkpoint
        (tmp_path / "other" / "best.safetensors").replace(tmp_path / "r" / "best.safetensors")
    model = model_of(graph)
    record = lmc.fit(
        graph, model, GAS(STEPS, 1), epochs=6, lr=0.05, device="cpu", run_dir=tmp_path / "r",
        resume=resume_at is not None, callbacks=[peak_at_epoch_3(graph)],
    )  # fmt: skip
    scores = [(epoch.scores or {})["val"] for epoch in record.epochs]
    assert record.best_epoch == scores.index(max(scores)) + 1 < 6
    assert lmc.evaluate(model, graph) == record.epochs[record.best_epoch - 1].scores
    assert lmc.evaluate(model, graph)["test"] == record.test
    assert not any(module.training for module in model.modules())
    assert same(load_file(tmp_path / "r" / "best.safetensors"), model.state_dict())


def test_a_wrapped_network_ends_in_evaluation_mode_and_keeps_its_modes(graph: lmc.Graph) -> None:
    network = pyg.GCN(graph.num_features, 8, 2, graph.num_classes, dropout=0.5)
    model = lmc.wrap(network)
    record = lmc.fit(graph, model, GAS(STEPS, 1), epochs=1, device="cpu")
    assert not any(module.training for module in network.modules())
    assert lmc.evaluate(model, graph)["test"] == record.test
    network.convs[0].train()
    modes = [module.training for module in network.modules()]
    lmc.evaluate(model, graph)
    assert [module.training for module in network.modules()] == modes


def test_without_restore_best_the_model_keeps_the_last_parameters(graph: lmc.Graph, tmp_path: Path) -> None:
    last, record = fit(graph, tmp_path / "r", restore_best=False, callbacks=[peak_at_epoch_3(graph)])
    saved = load_file(tmp_path / "r" / "checkpoint.safetensors")
    assert record.best_epoch is not None
    assert record.best_epoch < 6
    assert all(torch.equal(saved[f"model.{name}"], value) for name, value in last.items())
    assert not (tmp_path / "r" / "best.safetensors").exists()


def test_without_validation_nodes_the_best_epoch_is_the_last(graph: lmc.Graph, tmp_path: Path) -> None:
    unseen = dataclasses.replace(graph, val=torch.zeros_like(graph.val))
    _, record = fit(unseen, tmp_path / "r", epochs=2)
    assert record.best_epoch == 2
    assert record.best_val is None
    assert record.test is not None
    with pytest.raises(ConfigError, match=r"validation scores for patience .* without validation nodes"):
        fit(unseen, patience=2)
    with pytest.raises(ConfigError, match=r"validation scores for patience \(got eval_every=0\)"):
        fit(graph, patience=2, eval_every=0)


def test_patience_counts_evaluations_after_the_best_epoch(graph: lmc.Graph) -> None:
    _, record = fit(graph, epochs=20, patience=2, callbacks=[peak_at_epoch_3(graph)])
    assert record.best_epoch is not None
    assert len(record.epochs) == record.best_epoch + 2
    _, record = fit(graph, epochs=20, patience=2, eval_every=2, callbacks=[peak_at_epoch_3(graph)])
    assert record.best_epoch is not None
    assert len(record.epochs) == record.best_epoch + 4


def test_an_improvement_starts_the_count_anew(graph: lmc.Graph) -> None:
    best = Best(model_of(graph), keep=False, better=metrics_of(None, graph).better)
    found = []
    for epoch, score in enumerate([0.5, 0.4, 0.5, float("nan"), 0.6, 0.6, 0.1], start=1):
        best.update(epoch, score)
        found.append((best.epoch, best.since))
    assert found == [(1, 0), (1, 1), (1, 2), (1, 3), (5, 0), (5, 1), (5, 2)]
    assert best.parameters is None


def test_an_early_stop_survives_a_resume(graph: lmc.Graph, tmp_path: Path) -> None:
    options = {"epochs": 20, "patience": 3}
    whole, expected = fit(graph, tmp_path / "a", **options, callbacks=[peak_at_epoch_3(graph)])
    best = expected.best_epoch or 0
    fit(graph, tmp_path / "b", **options | {"steps": STEPS * (best + 1) + 1}, callbacks=[peak_at_epoch_3(graph)])
    resumed, record = fit(graph, tmp_path / "b", **options, resume=True, callbacks=[peak_at_epoch_3(graph)])
    assert same(whole, resumed)
    assert without_times(record) == without_times(expected)
    _, again = fit(graph, tmp_path / "b", **options, resume=True)  # it is over: nothing is trained
    assert again.epochs == record.epochs


@pytest.mark.parametrize("steps", [1, STEPS, STEPS + 3])
def test_a_run_of_so_many_steps_is_recorded_and_resumed(steps: int, graph: lmc.Graph, tmp_path: Path) -> None:
    options = {"epochs": 3, "restore_best": False}
    cut, record = fit(graph, tmp_path / "r", steps=steps, **options)
    assert len(record.epochs) == -(-steps // STEPS)
    assert record.epochs[-1].scores is not None
    assert record.epochs == lmc.results.read_run(tmp_path / "r").epochs
    again, repeated = fit(graph, tmp_path / "r", steps=steps, resume=True, **options)
    assert same(cut, again)
    assert repeated.epochs == record.epochs
    resumed, record = fit(graph, tmp_path / "r", resume=True, **options)
    whole, expected = fit(graph, **options)
    assert same(resumed, whole)
    assert without_times(record) == without_times(expected)


def test_the_last_epoch_is_evaluated_also_where_a_limit_ends_the_run(graph: lmc.Graph) -> None:
    _, record = fit(graph, steps=STEPS + 1, eval_every=50)
    assert [epoch.scores is not None for epoch in record.epochs] == [False, True]


def test_a_run_of_so_many_minutes_stops_within_the_epoch(
    graph: lmc.Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr("lmc.train.loop.time.perf_counter", lambda: 60.0 * next(ticks))  # a minute at every reading
    _, record = fit(graph, tmp_path / "r", minutes=2.5)
    assert len(record.epochs) == 1
    assert lmc.results.read_run(tmp_path / "r").epochs == record.epochs
    state = json.loads(lmc_metadata(tmp_path / "r")["position"])
    assert 0 < dict(state["dict"])["step"] < STEPS


def lmc_metadata(run_dir: Path) -> dict[str, str]:
    import safetensors

    with safetensors.safe_open(run_dir / "checkpoint.safetensors", framework="pt") as file:
        return dict(file.metadata())


EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "moving_average.py"
Average = runpy.run_path(str(EXAMPLE))["MovingAverage"]
"""An exponential moving average of the parameters, which replaces them at the end."""


def test_the_state_of_a_callback_survives_a_resume(graph: lmc.Graph, tmp_path: Path) -> None:
    fit(graph, tmp_path / "r", steps=STEPS + 2, callbacks=[Average()])
    resumed, _ = fit(graph, tmp_path / "r", resume=True, callbacks=[Average()])
    whole, _ = fit(graph, callbacks=[Average()])
    assert same(resumed, whole)
    assert not same(whole, fit(graph)[0])


def test_a_callback_logs_and_stops(graph: lmc.Graph, tmp_path: Path) -> None:
    seen = []

    def watch(training: Training) -> None:
        training.log(double=2 * training.record.loss, undefined=float("nan"))
        seen.append((training.record.epoch, training.config["epochs"], training.model is training.run.problem.model))
        if training.record.epoch == 2:
            training.stop()

    _, record = fit(graph, tmp_path / "r", callbacks=[watch])
    assert seen == [(1, 6, True), (2, 6, True)]
    assert record.epochs[1].logged == {"double": 2 * record.epochs[1].loss, "undefined": None}
    assert lmc.results.read_run(tmp_path / "r").epochs == record.epochs
    assert "NaN" not in (tmp_path / "r" / "epochs.jsonl").read_text()
    _, record = fit(graph, tmp_path / "r", resume=True)
    assert len(record.epochs) == 6


@pytest.mark.parametrize("hook", ["on_epoch", "on_step"])
def test_an_error_in_a_callback_leaves_a_checkpoint(hook: str, graph: lmc.Graph, tmp_path: Path) -> None:
    class Fail(Callback):
        calls = 0

        def count(self, training: Training) -> None:
            self.calls += 1
            if self.calls == 2:
                raise RuntimeError("mine")

    setattr(Fail, hook, Fail.count)
    with pytest.raises(RuntimeError, match="mine"):
        fit(graph, tmp_path / "r", callbacks=[Fail()], checkpoint_every="1000h")
    steps = []
    resumed, record = fit(graph, tmp_path / "r", resume=True, callbacks=[counting(steps)])
    assert len(steps) == 6 * STEPS - (2 * STEPS if hook == "on_epoch" else 2)
    whole, expected = fit(graph)
    assert same(resumed, whole)
    assert without_times(record) == without_times(expected)


def counting(steps: list[int]) -> Callback:
    class Count(Callback):
        def on_step(self, training: Training) -> None:
            steps.append(len(steps))

    return Count()


def test_fit_keeps_memory_unless_told_otherwise(graph: lmc.Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    # lmc.train.fit is the function, which hides its module
    monkeypatch.setattr(sys.modules["lmc.train.fit"], "keep_freed_memory", lambda: calls.append(True))
    fit(graph, epochs=1, eval_every=0, keep_memory=False)
    assert calls == []
    fit(graph, epochs=1, eval_every=0)
    assert calls == [True]


def test_what_is_not_a_callback_is_refused(graph: lmc.Graph) -> None:
    for bad in (["print"], print):
        with pytest.raises(ConfigError, match="callbacks to be a list of Callbacks or functions"):
            fit(graph, callbacks=bad)


def spoil_step(number: int, value: float) -> Callback:
    """Makes a parameter ``value`` after a step."""

    class Spoil(Callback):
        done = 0

        def on_step(self, training: Training) -> None:
            self.done += 1
            if self.done == number:
                next(training.model.parameters()).data[0] = value

    return Spoil()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("step", [STEPS + 2, 2 * STEPS])
def test_divergence_names_the_step_and_keeps_the_last_checkpoint(
    step: int, value: float, graph: lmc.Graph, tmp_path: Path
) -> None:
    run_dir = tmp_path / "r"
    fit(graph, run_dir, epochs=1)
    before = {file.name: file.read_bytes() for file in run_dir.iterdir() if file.name != "config.json"}
    found = "loss of .* in epoch 2, step 3" if step < 2 * STEPS else "parameter of .* in epoch 2, step 4"
    with pytest.raises(DivergenceError, match=rf"{found}.*learning rate.*after epoch 1, step 0, is in .*r$") as error:
        fit(graph, run_dir, resume=True, callbacks=[spoil_step(step - STEPS, value)])
    assert "\n" not in str(error.value)
    assert {name: (run_dir / name).read_bytes() for name in before} == before


def test_a_callback_cannot_make_a_checkpoint_that_is_not_finite(graph: lmc.Graph, tmp_path: Path) -> None:
    def spoil(training: Training) -> None:
        if training.record.epoch == 2:
            next(training.model.parameters()).data[0] = float("nan")

    with pytest.raises(DivergenceError, match="after epoch 1, step 0"):
        fit(graph, tmp_path / "r", callbacks=[spoil], checkpoint_every="1epochs")
    saved = load_file(tmp_path / "r" / "checkpoint.safetensors")
    assert all(value.isfinite().all() for name, value in saved.items() if name.startswith("model."))


def test_divergence_of_the_first_epoch_is_not_the_best_epoch(graph: lmc.Graph, tmp_path: Path) -> None:
    with pytest.raises(DivergenceError, match="nothing was saved"):
        fit(graph, lr=1e30)
    with pytest.raises(DivergenceError, match="after epoch 0, step 0"):
        fit(graph, tmp_path / "r", lr=1e30)
    assert not (tmp_path / "r" / "best.safetensors").exists()
    initial = load_file(tmp_path / "r" / "checkpoint.safetensors")
    assert all(torch.equal(initial[f"model.{k}"], v) for k, v in model_of(graph).state_dict().items())


def test_an_empty_run_dir_is_not_the_current_folder(
    graph: lmc.Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"expected run_dir to name a folder \(got an empty text\)"):
        lmc.fit(graph, model_of(graph), GAS(2, 1), epochs=1, run_dir="")
    assert list(tmp_path.iterdir()) == []
