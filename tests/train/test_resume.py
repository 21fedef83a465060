"""A run that is killed or interrupted and then resumed ends as one that was never stopped."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import lmc
from lmc.errors import CheckpointError, ConfigError, Interrupted
from lmc.methods import GAS, LMC4Conv

EPOCHS = 12
SCRIPT = """
import sys, lmc
g = lmc.load("tiny-like", scale=0.5)
model = lmc.models.GCN(g.num_features, 16, g.num_classes, num_layers=3, dropout=0.5, norm="batch")
method = lmc.methods.LMC4Conv(num_parts=6, clusters_per_batch=2, redraw=True)
lmc.fit(g, model, method, epochs=int(sys.argv[2]), seed=3, run_dir=sys.argv[1], resume=True, device="cpu",
        checkpoint_every="1epochs")
"""


def start(run_dir: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(run_dir), str(EPOCHS)]
    return subprocess.Popen(command, text=True, stderr=subprocess.DEVNULL)


def wait_for_epochs(run_dir: Path, number: int, process: subprocess.Popen[str]) -> None:
    log = run_dir / "epochs.jsonl"
    deadline = time.monotonic() + 60
    while not log.exists() or len(log.read_text().splitlines()) < number:
        assert process.poll() is None, "the run ended before it could be stopped"
        assert time.monotonic() < deadline, "the run made no progress"
        time.sleep(0.002)


def state(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "checkpoint.safetensors")


def scores(run_dir: Path) -> list[tuple[int, float, object]]:
    return [(r.epoch, r.loss, r.scores) for r in lmc.results.read_run(run_dir).epochs]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "undisturbed"
    assert start(run_dir).wait() == 0
    return run_dir


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_stopped_run_resumes_bit_identical(how: signal.Signals, undisturbed: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir)
    wait_for_epochs(run_dir, 3, process)
    process.send_signal(how)
    assert process.wait() != 0
    assert start(run_dir).wait() == 0
    resumed, whole = state(run_dir), state(undisturbed)
    assert resumed.keys() == whole.keys()
    assert all(torch.equal(resumed[k], whole[k]) for k in whole)
    assert scores(run_dir) == scores(undisturbed)


def test_interrupt_in_the_middle_of_an_epoch_keeps_the_step(tmp_path: Path) -> None:
    g = lmc.load("tiny-like", scale=0.5)

    def run(folder: Path, interrupt: bool) -> dict[str, torch.Tensor]:
        model = lmc.models.GCN(g.num_features, 8, g.num_classes, dropout=0.5)
        method = GAS(num_parts=6, clusters_per_batch=1)
        if interrupt:
            steps = 0

            def count(*_: object) -> None:
                nonlocal steps
                steps += 1
                if steps == 9:  # refresh passes 6 batches through the layer, so this is the third of 6 steps
                    os.kill(os.getpid(), signal.SIGINT)

            handle = model.layers[1].register_forward_hook(count)
            with pytest.raises(Interrupted, match="epoch 0, step 3; saved in"):
                lmc.fit(g, model, method, epochs=2, run_dir=folder, device="cpu")
            handle.remove()
            model.reset_parameters(99)
        lmc.fit(g, model, method, epochs=2, run_dir=folder, resume=interrupt, device="cpu")
        return state(folder)

    broken, whole = run(tmp_path / "a", True), run(tmp_path / "b", False)
    assert all(torch.equal(broken[k], whole[k]) for k in whole)


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    g = lmc.load("tiny-like", scale=0.25)
    model = lmc.models.GCN(g.num_features, 8, g.num_classes)
    lmc.fit(g, model, GAS(4, 1), epochs=1, run_dir=tmp_path / "r", device="cpu")
    before = (tmp_path / "r" / "checkpoint.safetensors").read_bytes()
    with pytest.raises(ConfigError, match="resume=True"):
        lmc.fit(g, model, GAS(4, 1), epochs=1, run_dir=tmp_path / "r", device="cpu")
    assert (tmp_path / "r" / "checkpoint.safetensors").read_bytes() == before


def test_resuming_with_other_settings_names_them(tmp_path: Path) -> None:
    g = lmc.load("tiny-like", scale=0.25)
    model = lmc.models.GCN(g.num_features, 8, g.num_classes)
    lmc.fit(g, model, LMC4Conv(4, 1, alpha=0.2), epochs=1, run_dir=tmp_path / "r", device="cpu")
    with pytest.raises(CheckpointError, match=r"method: .*0\.2.*0\.7"):
        lmc.fit(g, model, LMC4Conv(4, 1, alpha=0.7), epochs=2, run_dir=tmp_path / "r", resume=True, device="cpu")


def test_more_epochs_continue_a_finished_run(tmp_path: Path) -> None:
    g = lmc.load("tiny-like", scale=0.25)

    def fit(epochs: int, folder: str, resume: bool = False) -> lmc.RunRecord:
        model = lmc.models.GCN(g.num_features, 8, g.num_classes, dropout=0.3)
        return lmc.fit(g, model, GAS(4, 1), epochs=epochs, run_dir=tmp_path / folder, resume=resume, device="cpu")

    fit(2, "a")
    extended, whole = fit(4, "a", resume=True), fit(4, "b")
    assert [e.loss for e in extended.epochs] == [e.loss for e in whole.epochs]
    assert extended.epochs[:2] == fit(4, "a", resume=True).epochs[:2]  # a finished run is read, not trained


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    g = lmc.load("tiny-like", scale=0.25)
    model = lmc.models.GCN(g.num_features, 8, g.num_classes)
    lmc.fit(g, model, GAS(4, 1), epochs=1, run_dir=tmp_path / "r", device="cpu")
    for path in (tmp_path / "r").glob("checkpoint*.safetensors"):
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="damaged"):
        lmc.fit(g, model, GAS(4, 1), epochs=2, run_dir=tmp_path / "r", resume=True, device="cpu")


def test_a_damaged_configuration_is_named(tmp_path: Path) -> None:
    g = lmc.load("tiny-like", scale=0.25)
    model = lmc.models.GCN(g.num_features, 8, g.num_classes)
    lmc.fit(g, model, GAS(4, 1), epochs=1, run_dir=tmp_path / "r", device="cpu")
    (tmp_path / "r" / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        lmc.fit(g, model, GAS(4, 1), epochs=2, run_dir=tmp_path / "r", resume=True, device="cpu")


def test_a_folder_of_an_older_version_is_refused_in_one_line(tmp_path: Path) -> None:
    g = lmc.load("tiny-like", scale=0.25)
    model = lmc.models.GCN(g.num_features, 8, g.num_classes)
    lmc.fit(g, model, GAS(4, 1), epochs=1, run_dir=tmp_path / "r", device="cpu")
    path = tmp_path / "r" / "config.json"
    config = json.loads(path.read_text())
    del config["format"]  # format 1 had no number
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"format 3 \(got .* of format 1, .* another version of lmc") as refusal:
        lmc.fit(g, model, GAS(4, 1), epochs=2, run_dir=tmp_path / "r", resume=True, device="cpu")
    assert "\n" not in str(refusal.value)


def test_resume_needs_a_folder() -> None:
    g = lmc.load("tiny-like", scale=0.25)
    model = lmc.models.GCN(g.num_features, 8, g.num_classes)
    with pytest.raises(ConfigError, match="run_dir"):
        lmc.fit(g, model, GAS(4, 1), epochs=1, resume=True, device="cpu")


@pytest.mark.parametrize(
    "other",
    [
        {"alpha": 0.9},
        {"theta": 2.0},
        {"residual": True},
        {"input_dropout": 0.2},
        {"dropout": 0.4},
    ],
)
def test_resuming_another_model_is_refused(other: dict[str, object], tmp_path: Path) -> None:
    g = lmc.load("tiny-like", scale=0.25)
    first = lmc.models.GCNII(g.num_features, 8, g.num_classes, num_layers=2)
    lmc.fit(g, first, GAS(4, 1), epochs=1, run_dir=tmp_path / "r", device="cpu")
    second = lmc.models.GCNII(g.num_features, 8, g.num_classes, num_layers=2, **other)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="model"):
        lmc.fit(g, second, GAS(4, 1), epochs=2, run_dir=tmp_path / "r", resume=True, device="cpu")


def test_resuming_on_other_data_is_refused(tmp_path: Path) -> None:
    g = lmc.load("tiny-like", scale=0.25)
    model = lmc.models.GCN(g.num_features, 8, g.num_classes)
    lmc.fit(g, model, GAS(4, 1), epochs=1, run_dir=tmp_path / "r", device="cpu")
    shifted = dataclasses.replace(g, x=g.x + 1)
    with pytest.raises(CheckpointError, match="data"):
        lmc.fit(shifted, model, GAS(4, 1), epochs=2, run_dir=tmp_path / "r", resume=True, device="cpu")


def test_a_run_killed_before_its_first_epoch_keeps_its_initial_parameters(tmp_path: Path) -> None:
    g = lmc.load("tiny-like", scale=0.25)

    def explode(_: object) -> None:
        raise RuntimeError("killed")

    def fit(seed: int, folder: str, resume: bool = False, callbacks: Sequence[Callable[[object], None]] = ()) -> None:
        model = lmc.models.GCN(g.num_features, 8, g.num_classes, seed=seed)
        lmc.fit(
            g, model, GAS(4, 1), epochs=2, run_dir=tmp_path / folder, resume=resume, device="cpu", callbacks=callbacks
        )

    with pytest.raises(RuntimeError, match="killed"):
        fit(1, "a", callbacks=[explode])
    fit(2, "a", resume=True)  # another initialisation is overwritten by the one that was saved
    fit(1, "b")
    assert all(torch.equal(v, state(tmp_path / "b")[k]) for k, v in state(tmp_path / "a").items())


def test_numbers_of_numpy_are_settings_too(tmp_path: Path) -> None:
    g = lmc.load("tiny-like", scale=0.25)
    model = lmc.models.GCN(g.num_features, 8, g.num_classes)
    method = GAS(np.int64(4), np.int64(1))
    record = lmc.fit(g, model, method, epochs=1, seed=np.int64(1), run_dir=tmp_path / "r", device="cpu")
    assert record.loss is not None
