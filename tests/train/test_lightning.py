"""Lightning is optional; where it is needed and not installed, the error says what to do."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from helpers import parts_of, random_graph
from lmc.engine import Run
from lmc.errors import ConfigError
from lmc.methods import LMC4Conv
from lmc.models import GCN
from lmc.train.lightning import data_module


def bound() -> Run:
    g = random_graph()
    return LMC4Conv(clusters_per_batch=1).bind(g, GCN(6, 7, 4).double(), parts_of(g))


def test_without_lightning_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    with pytest.raises(ConfigError, match=r"pip install 'lmc-gnn\[lightning\]'"):
        data_module(bound())


def test_the_module_yields_epochs_and_keeps_the_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.ModuleType("lightning.pytorch")
    fake.LightningDataModule = type("LightningDataModule", (), {"__init__": lambda self: None})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lightning", types.ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", fake)
    run, other = bound(), bound()
    module = data_module(run)
    loader = module.train_dataloader()
    assert len(loader) == run.num_batches == 4
    for epoch in range(2):
        batches = list(loader)
        assert run.epoch == epoch + 1
        assert sorted(torch.cat([b.n_id[: b.batch_size] for b in batches]).tolist()) == list(range(40))
    for batch in batches:
        assert module.transfer_batch_to_device(batch, torch.device("cpu"), 0) is batch
        run.accumulate(batch)
    data_module(other).load_state_dict(module.state_dict())
    assert all(
        torch.equal(a.data(), b.data())
        for a, b in zip(run.named_tables().values(), other.named_tables().values(), strict=True)
    )
    assert other.epoch == 2
