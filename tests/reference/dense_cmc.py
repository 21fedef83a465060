"""CMC on a GCN: complete messages from stored sums, and trust measured on the core."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from dense import Array, Nodes, Tables, Values
from dense_gcn import GCN, add, joined, scaled


@dataclass
class Seen:
    """The values that the rules of CMC took (drifts before they are clipped), for tests that ask whether a rule made a
    difference."""

    drifts: list[Array] = field(default_factory=list)
    adjoint_drifts: list[Array] = field(default_factory=list)
    trusts: list[Array] = field(default_factory=list)


@dataclass
class DenseCMC:
    """Rows T and sums M = P T of every layer but the first, whose sums P X are constant; with ``adjoints`` rows V and
    sums U = P^T V of the adjoints of those sums, too."""

    model: GCN
    widths: list[int]
    num_batches: int
    adjoints: bool = False
    tables: Tables = field(init=False)
    R2: dict[int, Array] = field(init=False)
    seen: Seen = field(default_factory=Seen)

    def __post_init__(self) -> None:
        n, L = self.model.data.num_nodes, self.model.L
        names = ("T", "M", "V", "U") if self.adjoints else ("T", "M")
        self.tables = {name: {l: np.zeros((n, self.widths[l - 2])) for l in range(2, L + 1)} for name in names}
        self.R2 = {l: np.ones(self.num_batches) for l in range(2, L + 1)}

    def read(self, l: int, rows: str, sums: str, t: Array, core: Nodes, halo: Nodes) -> tuple[Array, float]:
        """The complete sums m of the rows t of ext, and R2; rows and sums are pushed."""
        P, T, M, c = self.model.data.P, self.tables[rows][l], self.tables[sums][l], len(core)
        P = P if rows == "T" else P.T  # adjoints go back along the edges
        ext = joined(core, halo)
        P_ee = P[np.ix_(ext, ext)]
        # a batch norm holds every column where it is
        fitted = factors(t[c:], T[halo]) if self.model.norm != "batch" else np.ones(t.shape[1])
        (self.seen.drifts if rows == "T" else self.seen.adjoint_drifts).append(fitted)
        a = np.clip(fitted, 0, 2)
        missed = ((t[:c] - a * T[core]) ** 2).sum()
        R2 = float(np.clip(1 - missed / (t[:c] ** 2).sum(), 0, 1))
        outside = M[ext] - P_ee @ T[ext]  # what comes from outside ext, as old as the tables
        m = P_ee @ t + a * outside
        M[ext] += P[np.ix_(ext, core)] @ (t[:c] - T[core])
        T[core] = t[:c]
        return m, R2

    def step(self, theta: Values, core: Nodes, slot: int, weight: float) -> tuple[float, Values]:
        model, data, L, c = self.model, self.model.data, self.model.L, len(core)
        halo = data.halo(core)
        ext = joined(core, halo)
        P_ee = data.P[np.ix_(ext, ext)]
        m, activated = {}, {}
        t = data.x[ext]
        for l in range(1, L + 1):
            if l == 1:
                m[l] = (data.P @ data.x)[ext]
            else:
                m[l], self.R2[l][slot] = self.read(l, "T", "M", t, core, halo)
            activated[l] = model.activate(theta, l, model.affine(theta, l, m[l]), c)
            t = activated[l].h
        losses, v = data.losses(t, ext)
        grads: Values = {}
        for l in range(L, 0, -1):
            add(grads, model.norm_slopes(l, activated[l], v))
            v = activated[l].back(v)
            if l > 1:
                v = joined(v[:c], self.trust(l, slot, core, halo) * v[c:])
            add(grads, model.affine_slopes(l, v[:c], m[l][:c]))  # from core rows alone
            u = model.affine_back(theta, l, v)
            if l > 1:
                v = self.read(l, "V", "U", u, core, halo)[0] if self.adjoints else P_ee.T @ u
        return weight * losses[:c].sum(), scaled(grads, weight)

    def trust(self, l: int, slot: int, core: Nodes, halo: Nodes) -> Array:
        """tau of every halo row: 1 up to an error e = 0.1 of its state, 0 from 0.15 on, a ramp between."""
        part = (1 - self.model.data.completeness(core, halo)) ** 2
        if self.model.norm == "batch":
            part = part * min(1, len(halo) / len(core) / 10)
        R2 = min(self.R2[l][slot], self.R2[l].mean())
        tau = np.clip((0.15 - part * (1 - R2)) / 0.05, 0, 1)
        self.seen.trusts.append(tau)
        return tau

    def refresh(self, theta: Values) -> None:
        """Exact rows and sums, and full trust."""
        model, P = self.model, self.model.data.P
        _, t, V = model.exact(theta)
        for l in self.tables["T"]:
            self.tables["T"][l] = t[l].copy()
            self.tables["M"][l] = P @ t[l]
            if self.adjoints:
                self.tables["V"][l] = model.affine_back(theta, l, V[l])
                self.tables["U"][l] = P.T @ self.tables["V"][l]
            self.R2[l][:] = 1


def factors(fresh: Array, stored: Array) -> Array:
    """a_k with which a_k stored is nearest to fresh, column by column; 1 where nothing is stored."""
    a = np.ones(fresh.shape[1])
    for k in range(fresh.shape[1]):
        if stored[:, k].any():
            a[k] = (fresh[:, k] @ stored[:, k]) / (stored[:, k] @ stored[:, k])
    return a
