"""What a user adds to the training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmc.train.loop import Training


class Callback:
    """Methods that the training loop calls; they do nothing here, and a subclass overrides what it needs.

    Each gets the :class:`lmc.train.Training`: the run, the model, the optimiser and the records, with ``log`` and
    ``stop``. Where one of them raises, the run is saved before the error leaves the loop. A plain function in
    ``callbacks`` is called as ``on_epoch``.
    """

    def on_start(self, training: Training) -> None:
        """Called once before the first step, or after the state of a resumed run was loaded."""

    def on_step(self, training: Training) -> None:
        """Called after every step of the optimiser. Reading a value from the device makes the step wait for it."""

    def on_epoch(self, training: Training) -> None:
        """Called at the end of every epoch, before its record (``training.record``) is written."""

    def on_end(self, training: Training) -> None:
        """Called when training is over, after the parameters of the best epoch were restored."""

    def state_dict(self) -> dict[str, Any]:
        """What the callback continues from after a resume: tensors, numbers, texts, and lists and dicts of these."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
