"""IMC on a GCN: messages from outside of a batch by a linear map of the rows inside."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from dense import Array, Nodes, Tables, Values
from dense_gcn import GCN, add, scaled


@dataclass
class DenseIMC:
    """m = P[B,B] h + S (R h + N) with S = (P Q)[B] - P[B,B] Q[B], R = (Q[B]^T Q[B] + lambda I)^-1 Q[B]^T, and
    N = J - R Q[B] J, where J picks the columns T of Q: the ridge pulls the map towards J.

    Layer 1 reads P X, which is constant. Parameters take their gradient from all rows. The loss is that of the
    core.

    Args:
        with_features: Q = [T, P X], else Q = T.
        batches: the nodes of every batch, where they are fixed: the tables are then Q and S, else Q and M = P Q.
        halos: nodes beside the core that belong to B, for every batch by its slot; by default none.
    """

    model: GCN
    widths: list[int]
    ridge: float
    with_features: bool
    batches: list[Nodes]
    halos: dict[int, Nodes] = field(default_factory=dict)
    tables: Tables = field(init=False)

    def __post_init__(self) -> None:
        n, features = self.model.data.num_nodes, self.model.data.x.shape[1]
        r = {l: self.widths[l - 2] + features * self.with_features for l in range(2, self.model.L + 1)}
        self.tables = {name: {l: np.zeros((n, r[l])) for l in r} for name in ("Q", "S" if self.batches else "M")}

    def refresh(self, theta: Values) -> None:
        data, model = self.model.data, self.model
        h = data.x
        for l in range(1, model.L):
            s = model.affine(theta, l, data.P @ h)
            if model.norm == "batch":  # the running statistics are those of the whole graph
                mean, var = model._running(l, s.shape[1])
                mean[:], var[:] = s.mean(0), s.var(0)
            h = model.activate(theta, l, s, None).h
            Q = np.concatenate([h, data.P @ data.x], 1) if self.with_features else h
            self.tables["Q"][l + 1] = Q
            if not self.batches:
                self.tables["M"][l + 1] = data.P @ Q
            for core in self.batches:
                self.tables["S"][l + 1][core] = (data.P @ Q)[core] - data.P[np.ix_(core, core)] @ Q[core]

    def map(self, l: int, core: Nodes, weight: float, more: int) -> tuple[Array, Array, Array]:
        """S, R and N of a batch; redrawn batches, and those with ``more`` rows than their core, count as many core rows
        as there are on average."""
        every, r = self.tables["Q"][l], self.tables["Q"][l].shape[1]
        Q, M = every[core], (self.model.data.P @ every)[core]
        mean = self.model.data.num_nodes / weight
        size, k = len(core) if self.batches else mean + more, max(1, int(mean / (20 * r)))
        # columns of unit mean square over all nodes, of fixed batches those that are fitted to; a dead unit stays a
        # column of zeros
        squares = k * np.concatenate([every[batch][::k] ** 2 for batch in self.batches]) if self.batches else every**2
        scale = 1 / np.sqrt(np.maximum(squares.sum(0) / len(every), 1e-12))
        Q, M = Q * scale, M * scale
        fit = np.zeros_like(Q)  # rows that are left out count as zeros
        fit[::k] = Q[::k]
        gram = fit.T @ fit
        ridge = self.ridge * max(1, (20 * r * k / size) ** 2)
        gram += ridge * np.trace(gram) / r * np.eye(r)
        R, J = np.linalg.solve(gram, fit.T), np.diag(1 / scale)[:, : self.widths[l - 2]]
        return M - self.model.data.P[np.ix_(core, core)] @ Q, R, J - R @ (Q @ J)

    def step(self, theta: Values, core: Nodes, slot: int, weight: float) -> tuple[float, Values]:
        model, data, L = self.model, self.model.data, self.model.L
        c, more = len(core), len(self.halos.get(slot, ()))
        core = np.concatenate([core, self.halos[slot]]) if more else core
        P = data.P[np.ix_(core, core)]
        m, activated = {1: (data.P @ data.x)[core]}, {}
        for l in range(1, L + 1):
            activated[l] = model.activate(theta, l, model.affine(theta, l, m[l]), len(core))
            if l < L:
                S, R, N = self.map(l + 1, core, weight, more)
                m[l + 1] = P @ activated[l].h + S @ (R @ activated[l].h + N)
        losses, v = data.losses(activated[L].h, core)
        losses, v = losses[:c], np.concatenate([v[:c], 0 * v[c:]])
        grads: Values = {}
        for l in range(L, 0, -1):
            add(grads, model.norm_slopes(l, activated[l], v))
            v = activated[l].back(v)
            add(grads, model.affine_slopes(l, v, m[l]))
            v = model.affine_back(theta, l, v)
            if l > 1:
                S, R, _ = self.map(l, core, weight, more)
                v = P.T @ v + R.T @ (S.T @ v)
        return weight * losses.sum(), scaled(grads, weight)
