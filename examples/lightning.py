"""Train under Lightning's Trainer: its loop, callbacks and checkpoints, with the histories inside the checkpoints.

Needs ``pip install 'lmc-gnn[lightning]'``.
"""

from __future__ import annotations

import sys
from pathlib import Path

# this file has the name of the package, which Python would otherwise find first in this folder
sys.path = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]

import lightning.pytorch as pl
import torch

import lmc
from lmc.engine import Run
from lmc.graph import Batch
from lmc.train.lightning import data_module


class Training(pl.LightningModule):
    automatic_optimization = False  # a step is more than a loss on a subgraph: run.accumulate fills p.grad

    def __init__(self, model: lmc.models.Model, run: Run) -> None:
        super().__init__()
        self.model, self.run = model, run

    def training_step(self, batch: Batch) -> None:
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        optimizer.zero_grad()
        stats = self.run.accumulate(batch)
        optimizer.step()
        self.log("loss", stats.loss, batch_size=stats.num_core)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), lr=0.01)


if __name__ == "__main__":
    graph = lmc.load("tiny-like")
    model = lmc.models.GCN(graph.num_features, 32, graph.num_classes)
    run = lmc.methods.LMC4Conv(num_parts=10, clusters_per_batch=2).bind(graph, model, device="cpu")
    trainer = pl.Trainer(
        max_epochs=10, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(Training(model, run), datamodule=data_module(run))
    print(f"test accuracy {lmc.evaluate(model, graph)['test']:.3f}")
