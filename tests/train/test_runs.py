"""Run folders as things: the model of a folder, its record as a table, and the names of folders."""

from __future__ import annotations

import copy
import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg

import lmc
from helpers import random_graph
from lmc.errors import CheckpointError, ConfigError
from lmc.models import GCN, MODELS, Model, RecGCN
from lmc.results import EpochRecord, RunRecord
from lmc.solvers import Picard
from lmc.train.run_folder import RUN_FILES
from lmc.train.runs import clear_folder, latest_folder, new_folder


def trained(folder: Path, model: Model, **options: Any) -> RunRecord:
    method = lmc.methods.FullBatch()
    return lmc.fit(random_graph(), model, method, epochs=3, run_dir=folder, device="cpu", **options)


@pytest.mark.parametrize("name", MODELS)
def test_a_native_model_comes_back_from_its_folder(name: str, tmp_path: Path) -> None:
    model = MODELS[name](6, 8, 4, dropout=0.2, seed=3).double()
    record = trained(tmp_path / "run", model)
    found, config, again = lmc.load_run(tmp_path / "run")
    assert repr(found) == repr(model)
    assert found.settings == model.settings
    assert not found.training
    assert torch.equal(lmc.predict(found, random_graph()), lmc.predict(model, random_graph()))
    assert again.epochs == record.epochs
    assert config["lr"] == 0.01


def test_the_best_epoch_counts_and_the_last_one_where_there_is_no_best(tmp_path: Path) -> None:
    model = GCN(6, 8, 4).double()
    record = trained(tmp_path / "best", model, lr=0.5)
    scores = lmc.evaluate(lmc.load_run(str(tmp_path / "best"))[0], random_graph())
    assert scores["val"] == pytest.approx(record.best_val)
    last = GCN(6, 8, 4).double()
    trained(tmp_path / "last", last, restore_best=False)
    found = lmc.load_run(tmp_path / "last")[0].state_dict()
    assert all(torch.equal(found[name], value) for name, value in last.state_dict().items())


def test_a_wrapped_network_is_passed(tmp_path: Path) -> None:
    model = lmc.wrap(pyg.GCN(6, 8, 2, 4).double())
    trained(tmp_path, model)
    with pytest.raises(ConfigError, match=r"got wrap\(GCN\) in .*: make it in Python, .*lmc.predict"):
        lmc.load_run(tmp_path)
    other = lmc.wrap(pyg.GCN(6, 8, 2, 4))
    assert lmc.load_run(tmp_path, model=other)[0] is other
    assert torch.equal(lmc.predict(other, random_graph()), lmc.predict(model, random_graph()))
    with pytest.raises(ConfigError, match=r"expected the model of the run in .* \(got another one: .*: make it as"):
        lmc.load_run(tmp_path, model=GCN(6, 9, 4))


def test_arguments_are_kept_where_they_are_plain() -> None:
    model = GCN(6, 8, 4, dropout=0.5)
    assert model.arguments is not None
    assert {"in_width": 6, "hidden": 8, "num_layers": 2, "dropout": 0.5}.items() <= model.arguments.items()
    assert copy.deepcopy(model).arguments == model.arguments
    assert RecGCN(6, 8, 4, solver=Picard()).arguments is None


def test_damaged_folders_are_refused_in_one_line(tmp_path: Path) -> None:
    trained(tmp_path, GCN(6, 8, 4).double())
    config = json.loads((tmp_path / "config.json").read_text())

    def refused(message: str, **changed: object) -> None:
        (tmp_path / "config.json").write_text(json.dumps(config | changed))
        with pytest.raises((CheckpointError, ConfigError), match=message) as error:
            lmc.load_run(tmp_path)
        assert "\n" not in str(error.value)

    refused("expected a run folder of format", format=1)
    refused("expected a run of a model of lmc.models", model=7)
    refused("expected the arguments of GCN", model={"name": "GCN", "arguments": {"width": 3}})
    best = tmp_path / "best.safetensors"
    content = bytearray(best.read_bytes())
    content[-1] ^= 1
    best.write_bytes(content)
    refused("got damage")
    best.unlink()
    refused(r"expected best.safetensors in .* \(got none\)")
    with pytest.raises(CheckpointError, match=r"expected a run folder with a config\.json"):
        lmc.load_run(tmp_path / "nowhere")


def test_folders_are_numbered(tmp_path: Path) -> None:
    assert latest_folder(tmp_path / "runs", "a.b") is None
    assert [new_folder(tmp_path / "runs", "a.b").name for _ in range(2)] == ["a.b-1", "a.b-2"]
    assert latest_folder(tmp_path / "runs", "a.b") is None  # both are empty
    for name in ("a.b-10", "a.b-010", "axb-20"):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "config.json").touch()
    assert latest_folder(tmp_path / "runs", "a.b") == tmp_path / "runs" / "a.b-10"
    assert new_folder(tmp_path / "runs", "a.b").name == "a.b-11"
    assert latest_folder(tmp_path / "runs", "a.b") == tmp_path / "runs" / "a.b-10"


def test_a_cleared_folder_keeps_the_files_of_others(tmp_path: Path) -> None:
    trained(tmp_path, GCN(6, 8, 4).double())
    (tmp_path / "notes.txt").write_text("mine")
    clear_folder(tmp_path)
    assert [name for name in RUN_FILES if (tmp_path / name).exists()] == []
    assert (tmp_path / "notes.txt").read_text() == "mine"


EPOCHS = (
    EpochRecord(1, 0.5, 1.0, None, {"steps": 3.0}),
    EpochRecord(2, 0.25, 2.0, {"train": 0.75, "val": 0.5}, None, {"lr": 0.1}),
)


def test_a_record_is_shown_in_one_short_line() -> None:
    assert repr(RunRecord({"lr": 0.1}, EPOCHS, "runs/a-1")) == "RunRecord(2 epochs, best epoch 2, val 0.5, runs/a-1)"
    assert repr(RunRecord({}, ())) == "RunRecord(0 epochs, best epoch None)"
    zero = EpochRecord(1, 0.5, 1.0, {"val": 0.0, "test": 0.25})
    assert repr(RunRecord({}, (zero,))) == "RunRecord(1 epochs, best epoch 1, val 0, test 0.25)"


def test_a_record_as_comma_separated_values(tmp_path: Path) -> None:
    path = RunRecord({}, EPOCHS).to_csv(tmp_path / "run.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["epoch", "loss", "seconds", "solver.steps", "train", "val", "logged.lr"]
    assert rows[1] == dict(
        zip(rows[0], ["2", "0.25", "2.0", "", "0.75", "0.5", "0.1"], strict=True),
    )


def test_a_record_as_a_table_of_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    record = RunRecord({}, EPOCHS)
    table = record.to_pandas()
    assert list(table["loss"]) == [epoch.loss for epoch in EPOCHS]
    assert table["val"][1] == 0.5
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"expected the package pandas \(got none\): pip install pandas"):
        record.to_pandas()
