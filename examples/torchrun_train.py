"""Train with several processes, one GPU each: ``torchrun --nproc-per-node 2 examples/torchrun_train.py``.

Every rank owns a share of the parts and trains on its own batches; rows that another rank reads are sent to it after
each step, and the gradients of all ranks are added up. On a machine without GPUs the ranks use the CPU. Without
torchrun the same script trains in one process.
"""

from __future__ import annotations

import os

import lmc

graph = lmc.load("tiny-like")  # the same graph and the same initial parameters on every rank
model = lmc.models.GCN(graph.num_features, 32, graph.num_classes, seed=0)
method = lmc.methods.LMC4Conv(num_parts=8, clusters_per_batch=1)
record = lmc.fit(graph, model, method, epochs=10, lr=0.01)
if os.environ.get("RANK", "0") == "0":
    ranks = os.environ.get("WORLD_SIZE", "1")
    print(f"{ranks} processes: test accuracy {record.test:.3f}")
