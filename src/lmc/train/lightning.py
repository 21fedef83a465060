"""The batches of a run for the Trainer of Lightning; an optional extra."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from lmc.engine import Run
from lmc.errors import ConfigError
from lmc.graph import Batch


class Epochs:
    """A data loader over the batches of a run: every iteration is the run's next epoch.

    After a checkpoint from the middle of an epoch is loaded, the first iteration is the rest of that epoch.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._done = 0
        self._resume_at = 0

    def __len__(self) -> int:
        return self.run.num_batches

    def __iter__(self) -> Iterator[Batch]:
        start, self._resume_at = self._resume_at, 0
        self._done = start
        for batch in self.run.batches(self.run.epoch - 1 if start else None, start):
            self._done += 1  # counted before the step: a checkpoint is made after it
            yield batch

    def state_dict(self) -> dict[str, int]:
        """How many batches of the epoch were yielded; the state of the run holds the number of the epoch."""
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._resume_at = state["done"] % len(self)


def data_module(run: Run) -> Any:
    """A ``LightningDataModule`` of the batches of ``run``; checkpoints contain the state of the run.

    The training step of a module with ``automatic_optimization = False`` is the step of this library:
    ``optimizer.zero_grad(); stats = run.accumulate(batch); optimizer.step()``. Batches are on the run's device already.
    """
    try:
        from lightning.pytorch import LightningDataModule
    except ImportError as error:
        raise ConfigError(
            "expected Lightning to be installed (got no module named lightning): pip install 'lmc-gnn[lightning]'"
        ) from error

    class RunDataModule(LightningDataModule):
        """The batches of one run."""

        def __init__(self) -> None:
            super().__init__()
            self.run = run

        def train_dataloader(self) -> Epochs:
            return Epochs(self.run)

        def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
            return batch

        def state_dict(self) -> dict[str, Any]:
            return self.run.state_dict()

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.run.load_state_dict(state_dict)

    return RunDataModule()
