"""Train with a loss of your own: the focal loss, which weighs rows that are already classified well less.

A loss is a function (outputs [rows, k], targets [rows]) -> one loss per row [rows]. The library weighs the rows, leaves
out unlabelled ones and divides.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

import lmc


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = F.cross_entropy(outputs, targets, reduction="none")
    return (1 - (-losses).exp()) ** 2 * losses


graph = lmc.load("tiny-like")
counts = graph.y[graph.train].bincount(minlength=graph.num_classes).clamp_min(1)
balanced = lmc.losses.cross_entropy(
    weight=(counts.float().mean() / counts).tolist()
)  # ready-made, with a weight per class
for name, loss in {"default": None, "balanced": balanced, "focal": focal}.items():
    model = lmc.models.GCN(graph.num_features, 32, graph.num_classes)
    record = lmc.fit(graph, model, lmc.methods.CMC(num_parts=10), epochs=15, loss=loss)
    print(f"{name} loss: test accuracy {record.test:.3f}")
