"""Train a PyG network by mini-batches without changing it, and use it afterwards as plain PyG."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, SAGEConv

import lmc


class Network(nn.Module):
    def __init__(self, in_channels: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = GCNConv(in_channels, hidden), SAGEConv(hidden, hidden)
        self.norm, self.out = nn.LayerNorm(hidden), nn.Linear(2 * hidden, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.norm(self.conv1(x, edge_index)).relu()
        h2 = self.conv2(nn.functional.dropout(h, 0.5, self.training), edge_index).relu()
        return self.out(torch.cat([h, h2], 1))  # jumping knowledge


graph = lmc.load("tiny-like")  # or lmc.load(data) with a PyG Data that has masks
network = Network(graph.num_features, 32, graph.num_classes)
model = lmc.wrap(network)  # refuses what cannot be divided into rows, with the reason
record = lmc.fit(graph, model, lmc.methods.LMC4Conv(num_parts=10, clusters_per_batch=2), epochs=15)
print(f"test accuracy {record.test:.3f}")

with torch.no_grad():  # the network itself was trained: call it as before
    plain = network.eval()(graph.x, graph.edge_index).argmax(1)
print("the same classes:", plain.equal(lmc.predict(model, graph, output="classes")))
