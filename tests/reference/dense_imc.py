"""IMC on a GCN: messages from outside of a batch by a linear map of the rows inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from dense import Array, Nodes, Tables, Values
from dense_gcn import EPS, GCN, Activated, add, scaled

Adjoint = Callable[[Array], Array]


@dataclass
class DenseIMC:
    """m = P[B,B] h + S (R h + N) with S = (P Q)[B] - P[B,B] Q[B], R = (Q[B]^T Q[B] + lambda I)^-1 Q[B]^T, and
    N = J - R Q[B] J, where J picks the columns T of Q: the ridge pulls the map towards J.

    Layer 1 reads P X, which is constant. Parameters take their gradient from all rows. The loss is that of the
    core. A batch norm reads the mean and the variance over all nodes of the state W^T (P Q) (R h + N) + b.

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

    def map(self, l: int, core: Nodes, weight: float) -> tuple[Array, Array, Array, Array]:
        """S, R and N of a batch, and P Q of all nodes. Redrawn batches count as many rows as there are on average."""
        every, r = self.tables["Q"][l], self.tables["Q"][l].shape[1]
        Q, whole = every[core], self.model.data.P @ every
        mean = self.model.data.num_nodes / weight
        size, k = len(core) if self.batches or self.halos else mean, max(1, int(mean / (20 * r)))
        # columns of unit mean square over all nodes, of fixed batches those that are fitted to; a dead unit stays a
        # column of zeros
        squares = k * np.concatenate([every[batch][::k] ** 2 for batch in self.batches]) if self.batches else every**2
        scale = 1 / np.sqrt(np.maximum(squares.sum(0) / len(every), 1e-12))
        Q, whole = Q * scale, whole * scale
        fit = np.zeros_like(Q)  # rows that are left out count as zeros
        fit[::k] = Q[::k]
        gram = fit.T @ fit
        ridge = self.ridge * max(1, (20 * r * k / size) ** 2)
        gram += ridge * max(np.trace(gram) / r, 1e-3) * np.eye(r)
        R, J = np.linalg.solve(gram, fit.T), np.diag(1 / scale)[:, : self.widths[l - 2]]
        return whole[core] - self.model.data.P[np.ix_(core, core)] @ Q, R, J - R @ (Q @ J), whole

    def activate(self, theta: Values, l: int, s: Array, whole: Array) -> tuple[Activated, Adjoint]:
        """h^l from s^l, and the adjoint of the state ``whole`` of all nodes from v = dL/dh^l."""
        model = self.model
        if model.norm != "batch" or l == model.L:
            return model.activate(theta, l, s, len(s)), lambda v: 0 * whole
        mean, std, n = whole.mean(0), np.sqrt(whole.var(0) + EPS), len(whole)
        for running, now in zip(model._running(l, s.shape[1]), (mean, whole.var(0)), strict=True):
            running[:] = now
        model.buffers[f"{model._norm(l)}.num_batches_tracked"] += 1
        unit, (gain, shift) = (s - mean) / std, model._gain(theta, l)
        y = unit * gain + shift

        def whole_back(v: Array) -> Array:
            v = v * (y > 0) * gain
            return -(v.sum(0) + (v * unit).sum(0) * (whole - mean) / std) / std / n

        return Activated(
            np.maximum(y, 0),
            lambda v: v * (y > 0) * gain / std,
            lambda v: ((v * (y > 0) * unit).sum(0), (v * (y > 0)).sum(0)),
        ), whole_back

    def step(self, theta: Values, core: Nodes, slot: int, weight: float) -> tuple[float, Values]:
        model, data, L = self.model, self.model.data, self.model.L
        c = len(core)
        core = np.concatenate([core, self.halos[slot]]) if self.halos else core
        P = data.P[np.ix_(core, core)]
        m, whole = {1: (data.P @ data.x)[core]}, {1: data.P @ data.x}
        activated, whole_back = {}, {}
        for l in range(1, L + 1):
            s, s_whole = model.affine(theta, l, m[l]), model.affine(theta, l, whole[l])
            activated[l], whole_back[l] = self.activate(theta, l, s, s_whole)
            if l < L:
                S, R, N, M = self.map(l + 1, core, weight)
                C = R @ activated[l].h + N
                m[l + 1], whole[l + 1] = P @ activated[l].h + S @ C, M @ C
        losses, v = data.losses(activated[L].h, core)
        losses, v = losses[:c], np.concatenate([v[:c], 0 * v[c:]])
        grads: Values = {}
        for l in range(L, 0, -1):
            add(grads, model.norm_slopes(l, activated[l], v))
            v, v_whole = activated[l].back(v), whole_back[l](v)
            add(grads, model.affine_slopes(l, v, m[l]))
            add(grads, model.affine_slopes(l, v_whole, whole[l]))
            v, v_whole = model.affine_back(theta, l, v), model.affine_back(theta, l, v_whole)
            if l > 1:
                S, R, _, M = self.map(l, core, weight)
                v = P.T @ v + R.T @ (S.T @ v + M.T @ v_whole)
        return weight * losses.sum(), scaled(grads, weight)
