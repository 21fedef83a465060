"""VR-GCN on a GCN, given the sampled matrices: m = P_hat (t - T) + P T, and plain gradients of every computed row."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from dense import Array, Nodes, Tables, Values
from dense_gcn import GCN, add, scaled


@dataclass
class DenseVRGCN:
    """No dropout.

    Args:
        nodes: the nodes of the batch, seeds first.
        samples: P_hat of every layer, [rows that it gives, rows that it reads], both leading ``nodes``; None for a
            first layer whose P X is computed once.
    """

    model: GCN
    widths: list[int]
    tables: Tables = field(init=False)
    nodes: Nodes = field(init=False)
    samples: dict[int, Array | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n, L = self.model.data.num_nodes, self.model.L
        self.tables = {"T": {l: np.zeros((n, self.widths[l - 2])) for l in range(2, L + 1)}}

    def step(self, theta: Values, core: Nodes, slot: int, weight: float) -> tuple[float, Values]:
        model, data, L, T = self.model, self.model.data, self.model.L, self.tables["T"]
        m, activated = {}, {}
        t = data.x[self.nodes]
        for l in range(1, L + 1):
            P_hat = self.samples[l]
            if P_hat is None:
                m[l] = (data.P @ data.x)[self.nodes[: len(t)]]
            else:
                given, read = self.nodes[: P_hat.shape[0]], self.nodes[: P_hat.shape[1]]
                t = t[: len(read)]
                if l == 1:  # features have no history: they are sampled as they are
                    m[l] = P_hat @ t
                else:
                    m[l] = P_hat @ (t - T[l][read]) + (data.P @ T[l])[given]
                    T[l][read] = t
            activated[l] = model.activate(theta, l, model.affine(theta, l, m[l]), len(m[l]))
            t = activated[l].h
        losses, v = data.losses(t, core)
        grads: Values = {}
        for l in range(L, 0, -1):
            add(grads, model.norm_slopes(l, activated[l], v))
            v = activated[l].back(v)
            add(grads, model.affine_slopes(l, v, m[l]))
            P_hat = self.samples[l]
            if l > 1:
                assert P_hat is not None
                v = P_hat.T @ model.affine_back(theta, l, v)
        return weight * losses.sum(), scaled(grads, weight)

    def refresh(self, theta: Values) -> None:
        _, t, _ = self.model.exact(theta)
        for l in self.tables["T"]:
            self.tables["T"][l] = t[l].copy()
