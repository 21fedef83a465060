"""GAS on a GCN: messages from outside come from the history, adjoints from outside are dropped."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from dense import Array, Nodes, Tables, Values
from dense_gcn import GCN, add, joined, scaled


@dataclass
class DenseGAS:
    """States lie before the activation. Only core rows are computed; halo rows of layer l read H[l]."""

    model: GCN
    widths: list[int]
    tables: Tables = field(init=False)

    def __post_init__(self) -> None:
        n = self.model.data.num_nodes
        self.tables = {"H": {l: np.zeros((n, width)) for l, width in enumerate(self.widths[:-1], start=1)}}

    def halo_states(self, theta: Values, l: int, t: Array, core: Nodes, halo: Nodes) -> Array:
        """The states of halo rows that the next layer reads; ``t`` are the rows of ext that layer l read."""
        return self.tables["H"][l][halo]

    def step(self, theta: Values, core: Nodes, slot: int, weight: float) -> tuple[float, Values]:
        model, data, L, c = self.model, self.model.data, self.model.L, len(core)
        halo = data.halo(core)
        ext = joined(core, halo)
        m, activated = {}, {}
        t = data.x[ext]
        for l in range(1, L + 1):
            m[l] = data.P[np.ix_(core, ext)] @ t
            s = model.affine(theta, l, m[l])
            if l < L:
                outside = self.halo_states(theta, l, t, core, halo)
                self.tables["H"][l][core] = s
                s = joined(s, outside)
            activated[l] = model.activate(theta, l, s, c)
            t = activated[l].h
        losses, v = data.losses(t, core)
        grads: Values = {}
        for l in range(L, 0, -1):
            if l < L:  # no adjoint comes to halo rows, and none goes on from them
                v = joined(v, np.zeros((len(halo), v.shape[1])))
            add(grads, model.norm_slopes(l, activated[l], v))
            v = activated[l].back(v)[:c]
            add(grads, model.affine_slopes(l, v, m[l]))
            v = data.P[np.ix_(core, core)].T @ model.affine_back(theta, l, v)
        return weight * losses.sum(), scaled(grads, weight)

    def refresh(self, theta: Values) -> None:
        s, _, _ = self.model.exact(theta)
        for l in self.tables["H"]:
            self.tables["H"][l] = s[l]
