"""Write a model for this library: a graph convolution with a linear skip connection, s = P h W1 + h W2 + b.

Every method trains it. ``lmc.testing.check_model`` measures in float64 what holds for it.
"""

from __future__ import annotations

from torch import Tensor, nn

import lmc
from lmc.graph import CSR
from lmc.models import Activation, Layer, Linear, Model, Operator, Pass


class SkipLayer(Layer):
    def __init__(self, in_width: int, out_width: int, activation: Activation | None) -> None:
        super().__init__()
        self.message, self.skip = Linear(in_width, out_width), Linear(in_width, out_width, bias=False)
        self.out_width, self.activation, self.dropout = out_width, activation, 0.0

    def forward(self, h: Tensor | CSR, P: Operator, p: Pass, h0: Tensor | CSR) -> Tensor:
        assert isinstance(h, Tensor)  # features may be sparse, but lin_in has encoded them
        return self.message.aggregate(P, h, p) + self.skip(h[: P.num_outputs], p)  # core rows come first


class SkipGCN(Model):
    lin_out = act_in = None
    dropout = input_dropout = 0.0

    def __init__(self, in_width: int, hidden: int, out_width: int, seed: int = 0) -> None:
        super().__init__()
        self.in_width, self.out_width = in_width, out_width
        self.lin_in = Linear(in_width, hidden)
        inner, last = SkipLayer(hidden, hidden, Activation(hidden, "layer")), SkipLayer(hidden, out_width, None)
        self.layers = nn.ModuleList([inner, last])
        self.reset_parameters(seed)


if __name__ == "__main__":
    graph = lmc.load("tiny-like")
    model = SkipGCN(graph.num_features, 32, graph.num_classes)
    print(lmc.testing.check_model(model))
    record = lmc.fit(graph, model, lmc.methods.LMC4Conv(num_parts=10, clusters_per_batch=2), epochs=20)
    print(f"test accuracy {record.test:.3f}")
