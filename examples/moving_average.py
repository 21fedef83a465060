"""Train with an exponential moving average (EMA) of the parameters, kept by a callback.

The callback averages after every step, its state is part of the checkpoint, and at the end the model gets the averages.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

import lmc
from lmc.train import Callback, Training


class MovingAverage(Callback):
    """Replace the parameters by their moving average when training is over."""

    def __init__(self, decay: float = 0.9) -> None:
        self.decay, self.average = decay, dict[str, Tensor]()

    def on_start(self, training: Training) -> None:
        self.average = self.average or {name: p.detach().clone() for name, p in training.model.named_parameters()}

    def on_step(self, training: Training) -> None:
        for name, p in training.model.named_parameters():
            self.average[name].lerp_(p.detach(), 1 - self.decay)

    def on_end(self, training: Training) -> None:
        training.model.load_state_dict(self.average, strict=False)

    def state_dict(self) -> dict[str, Any]:
        return self.average

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average = state


if __name__ == "__main__":
    graph = lmc.load("tiny-like")
    model = lmc.models.GCN(graph.num_features, 32, graph.num_classes, dropout=0.5)
    method = lmc.methods.LMC4Conv(num_parts=10, clusters_per_batch=2)
    record = lmc.fit(graph, model, method, epochs=20, callbacks=[MovingAverage()], restore_best=False)
    last, averaged = (record.epochs[-1].scores or {})["test"], lmc.evaluate(model, graph)["test"]
    print(f"test accuracy {last:.3f} with the last parameters, {averaged:.3f} with their average")
