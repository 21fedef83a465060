"""The best epoch of a run, and the parameters that it ended with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn


class Best:
    """The epoch with the best validation score so far.

    Args:
        model: the one that is trained.
        keep: whether to keep a copy of the parameters and buffers of the best epoch, where the model is.
        better: whether a score is better than another one, or than None.
    """

    def __init__(self, model: nn.Module, keep: bool, better: Callable[[float, float | None], bool]) -> None:
        self._model, self._keep, self._better = model, keep, better
        self.epoch = 0  # 0: none yet
        self.score: float | None = None
        self.since = 0  # evaluations after the best epoch
        self.parameters: dict[str, Tensor] | None = None

    def update(self, epoch: int, score: float) -> bool:
        """Whether the score of this epoch is better than all before it; then its parameters are copied."""
        if not self._better(score, self.score):
            self.since += 1
            return False
        self.epoch, self.score, self.since = epoch, score, 0
        if self._keep:
            self._copy()
        return True

    def restore(self) -> None:
        """Load the parameters of the best epoch into the model, where they were kept."""
        if self.parameters is not None:
            self._model.load_state_dict(self.parameters)

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("epoch", "score", "since", "parameters")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.score, self.since = state["epoch"], state["score"], state["since"]
        if state["parameters"] is not None:
            current = self._model.state_dict()
            self.parameters = {name: value.to(current[name].device) for name, value in state["parameters"].items()}

    def _copy(self) -> None:
        current = self._model.state_dict()
        if self.parameters is None:
            self.parameters = {name: value.detach().clone() for name, value in current.items()}
            return
        for name, value in self.parameters.items():
            value.copy_(current[name])
