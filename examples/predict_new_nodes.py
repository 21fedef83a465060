"""Predict nodes that did not exist when the model was trained: add them and their edges, then predict them alone."""

from __future__ import annotations

import tempfile

import torch

import lmc

graph = lmc.load("tiny-like")
x = torch.as_tensor(graph.x)
model = lmc.models.GCN(graph.num_features, 32, graph.num_classes)
folder = tempfile.mkdtemp()
lmc.fit(graph, model, lmc.methods.CMC(num_parts=10), epochs=15, run_dir=folder)

new_x = x[:3] + 0.1 * torch.randn(3, graph.num_features, generator=torch.manual_seed(0))  # three new nodes
neighbours = torch.tensor([[0, 1, 2, 2], [5, 6, 7, 8]])  # new node 0 is linked to old node 5, and so on
links = torch.stack([neighbours[0] + graph.num_nodes, neighbours[1]])
edges = torch.cat([graph.edge_index, links, links.flip(0)], dim=1)  # both directions
grown = lmc.Graph.from_edges(edges, torch.cat([x, new_x]))  # no targets and no splits are needed

trained, config, record = lmc.load_run(folder)  # for example in another process
nodes = [graph.num_nodes, graph.num_nodes + 1, graph.num_nodes + 2]
print("classes", lmc.predict(trained, grown, nodes=nodes, output="classes").tolist())
print("probabilities", lmc.predict(trained, grown, nodes=nodes, output="probabilities").amax(1))
