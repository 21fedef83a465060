"""The data module under Lightning's own Trainer, where Lightning is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import parts_of, random_graph
from lmc.engine import Run
from lmc.methods import LMC4Conv
from lmc.models import GCN
from lmc.train.lightning import data_module

lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is an extra: pip install 'lmc-gnn[lightning]'")


def bound() -> Run:
    g = random_graph()
    model = GCN(6, 7, 4, dropout=0.5, seed=0).double()
    run = LMC4Conv(clusters_per_batch=1).bind(g, model, parts_of(g), seed=1)
    run.refresh()
    return run


class Training(lightning.LightningModule):  # type: ignore[misc]
    """The three lines of docs/bring-your-own-model.md."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run, self.model, self.losses = run, run.problem.model, []
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.losses.append(float(self.run.accumulate(batch).loss))
        optimizer.step()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), lr=0.01)


class Saves(lightning.Callback):  # type: ignore[misc]
    """A checkpoint after these steps, as ``ModelCheckpoint(every_n_train_steps=...)`` makes them."""

    def __init__(self, folder: Path, steps: tuple[int, ...]) -> None:
        self.folder, self.steps = folder, steps

    def on_train_batch_end(self, trainer: Any, *_: object) -> None:
        if trainer.global_step in self.steps:
            trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt")


def trained(folder: Path, run: Run, start: Path | None = None) -> list[float]:
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        max_epochs=3,
        callbacks=[] if start else [Saves(folder, (4, 6))],
    )
    module = Training(run)
    trainer.fit(module, datamodule=data_module(run), ckpt_path=start)
    return module.losses


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_trains_as_our_loop_and_continues_from_the_middle_of_an_epoch(tmp_path: Path) -> None:
    run = bound()
    optimizer, wanted = torch.optim.Adam(run.problem.model.parameters(), lr=0.01), []
    for _ in range(3):
        for batch in run.batches():
            optimizer.zero_grad()
            wanted.append(float(run.accumulate(batch).loss))
            optimizer.step()
    assert trained(tmp_path, bound()) == wanted
    for steps in (4, 6):  # after an epoch, and in the middle of one
        other = bound()
        assert trained(tmp_path, other, start=tmp_path / f"{steps}.ckpt") == wanted[steps:]
        assert other.epoch == 3
