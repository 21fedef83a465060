"""Logging to TensorBoard, as a callback."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmc.errors import ConfigError
from lmc.train.callbacks import Callback

if TYPE_CHECKING:
    from lmc.train.loop import Training


def writer_class() -> Any:
    """The class of torch that writes event files; refused where its package is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError("expected the package tensorboard (got none): pip install 'lmc-gnn[tensorboard]'") from error
    return SummaryWriter


class TensorBoard(Callback):
    """Writes the loss, the scores and what callbacks before it logged, for ``tensorboard --logdir FOLDER``.

    Args:
        folder: where the event files go.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder, self._make = str(folder), writer_class()
        self._writer: Any = None

    def on_start(self, training: Training) -> None:
        # events of epochs that a resumed run trains again are dropped
        self._writer = self._make(self._folder, purge_step=len(training.records) + 1)

    def on_epoch(self, training: Training) -> None:
        values = training.record.flat()
        epoch = values.pop("epoch")
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, epoch)

    def on_end(self, training: Training) -> None:
        self._writer.close()
