"""Two training loops of your own: Adam with gradient clipping, then LBFGS, which evaluates the loss several times."""

from __future__ import annotations

import torch
from torch import Tensor

import lmc

graph = lmc.load("tiny-like")
model = lmc.models.GCN(graph.num_features, 32, graph.num_classes)
run = lmc.methods.CMC(num_parts=10, clusters_per_batch=2).bind(graph, model)
run.refresh()  # fill the histories exactly

adam = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(10):
    for batch in run:  # one epoch
        adam.zero_grad()
        run.accumulate(batch)  # p.grad += estimate of dL/dp
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
print(f"Adam: test accuracy {lmc.evaluate(model, graph)['test']:.3f}")

full = lmc.methods.FullBatch().bind(graph, model)  # LBFGS needs the same loss at every evaluation
lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
(batch,) = full.batches()


def closure() -> Tensor:
    lbfgs.zero_grad()
    return full.accumulate(batch).loss


for _ in range(3):
    loss = lbfgs.step(closure)  # or full.step(batch, lbfgs), which does the same
print(f"LBFGS: training loss {loss:.3f} before the last step, {closure():.3f} after it")
