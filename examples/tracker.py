"""Send every epoch to an experiment tracker: a callback of ten lines, here with a tracker that writes a text file."""

from __future__ import annotations

from pathlib import Path

import lmc
from lmc.train import Callback, Training


class Tracker(Callback):
    """Replace the body of each method by the calls of your tracker."""

    def on_start(self, training: Training) -> None:
        self.lines = [f"lr {training.config['lr']}"]  # e.g. tracker.init(config=training.config)

    def on_epoch(self, training: Training) -> None:
        self.lines.append(str(training.record.flat()))  # e.g. tracker.log(training.record.flat())

    def on_end(self, training: Training) -> None:
        Path("tracked.txt").write_text("\n".join(self.lines))  # e.g. tracker.finish()


def gradient_norm(training: Training) -> None:
    """A plain function is called at the end of every epoch; what it logs is in the record and the run folder."""
    norms = [p.grad.norm() for p in training.model.parameters() if p.grad is not None]
    training.log(gradient_norm=float(sum(norms)))
    if training.record.loss < 0.3:
        training.stop()


graph = lmc.load("tiny-like")
model = lmc.models.GCN(graph.num_features, 32, graph.num_classes)
method = lmc.methods.LMC4Conv(num_parts=10, clusters_per_batch=2)
record = lmc.fit(graph, model, method, epochs=50, callbacks=[gradient_norm, Tracker()])
print(f"{len(record.epochs)} epochs; the last one: {record.epochs[-1].logged}")
