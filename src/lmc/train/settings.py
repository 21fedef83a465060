"""The settings of the training loop."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lmc.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    """How to optimise.

    Args:
        epochs: passes over the parts.
        lr, weight_decay: of Adam.
        clip: largest norm of the gradient; None: no clipping.
        eval_every: epochs between evaluations; the last epoch is always evaluated; 0: never.
        checkpoint_seconds: shortest time between two checkpoints at the end of an epoch.
    """

    epochs: int = 100
    lr: float = 0.01
    weight_decay: float = 0.0
    clip: float | None = None
    eval_every: int = 1
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.epochs != int(self.epochs):
            raise ConfigError(f"expected at least 1 epoch, a whole number (got {self.epochs})")
        if not 0 < self.lr < math.inf:
            raise ConfigError(f"expected a positive lr (got {self.lr})")
        if not 0 <= self.weight_decay < math.inf:
            raise ConfigError(f"expected weight_decay of at least 0 (got {self.weight_decay})")
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"expected a positive clip, or None (got {self.clip})")
        if self.eval_every < 0:
            raise ConfigError(f"expected eval_every of at least 0 (got {self.eval_every})")

    def evaluates(self, epoch: int) -> bool:
        """Whether the ``epoch``-th epoch, counted from 1, ends with an evaluation."""
        return self.eval_every > 0 and (epoch % self.eval_every == 0 or epoch == self.epochs)
