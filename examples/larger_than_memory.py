"""Keep histories and features on disk, plan the memory before training, and predict within a limit."""

from __future__ import annotations

import lmc

graph = lmc.load("arxiv-like@0.02")
model = lmc.models.GCN(graph.num_features, 64, graph.num_classes, num_layers=3)
method = lmc.methods.LMC4Conv(num_parts=16, clusters_per_batch=2)
placement = lmc.Placement(history="disk", features="disk", keep_batches=False)

division = lmc.diagnostics.divide(graph, method)
for name, where in {"on the device": lmc.Placement(), "on disk": placement}.items():
    print(f"{name}: {lmc.diagnostics.plan(division, model, method, where).device / 1e6:.1f} MB of memory")
record = lmc.fit(graph, model, method, epochs=5, placement=placement)
run = method.bind(graph, model, placement=placement)
print(f"test accuracy {record.test:.3f}; tables on {run.tiers}")

classes = lmc.predict(model, graph, output="classes", memory=50_000_000)  # bytes beside graph, model and result
print(f"{len(classes)} predictions")
