"""LMC4Rec on RecGCN, Algorithm 2 of the paper, and the library's correction of stale histories (``undo_drift``)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from dense import Array, Data, Nodes, Tables, Values
from dense_recgcn import W, adjoints, b, exact, gradients, losses, relu, states

REACH, MOST_LOSS, RIDGE, OLDEST, ROWS = 10.0, 0.5, 1e-3, 1.5, 16
"""Limits of the growth of a column, its ridge, the oldest share, and the core rows that are asked for each column."""


@dataclass
class Seen:
    """The values that the rules took, for tests that ask whether a rule made a difference."""

    shares: list[Array] = field(default_factory=list)
    growths: list[Array] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)


@dataclass
class DenseLMC4Rec:
    """H[1] holds Z, V[1] holds dL/dZ; the settings are those of ``lmc.methods.LMC4Rec``, without dropout.

    ``way`` is the way that W has gone, |W - W'| / |W| summed over the steps; ``stored`` is its value when a row was
    stored; ``last`` is W of the step before.
    """

    data: Data
    width: int
    first: Values
    update: str = "solution"
    undo_drift: bool = True
    tables: Tables = field(init=False)
    seen: Seen = field(default_factory=Seen)

    def __post_init__(self) -> None:
        n = self.data.num_nodes
        self.tables = {name: {1: np.zeros((n, self.width))} for name in ("H", "V")}
        self.way, self.stored, self.last = 0.0, np.zeros(n), self.first[W]

    def step(self, theta: Values, core: Nodes, slot: int, weight: float) -> tuple[float, Values]:
        data, Z_bar, V_bar = self.data, self.tables["H"][1], self.tables["V"][1]
        halo = data.halo(core)
        P_in, P_out = data.P[np.ix_(core, core)], data.P[np.ix_(core, halo)]
        way = self.way + np.linalg.norm(theta[W] - self.last) / np.linalg.norm(theta[W])
        outer = P_out @ relu(Z_bar[halo])
        if self.undo_drift:
            outer = self._grown(theta, core, halo, way)
        Z = states(theta, P_in, b(theta, data, core) + outer @ theta[W].T)  # (21)
        found, G, output = losses(theta, data, Z, core)
        arriving = P_out @ V_bar[halo] @ theta[W]  # P is its own transpose
        if self.undo_drift:
            arriving = self._faded(theta, core, Z, G, arriving)
        U = adjoints(theta, P_in, Z, G + arriving)  # (23)
        grads = gradients(theta, data, core, U, P_in @ relu(Z) + outer, output, weight)  # (24) (25)
        Z_new, V_new = (Z, U) if self.update == "solution" else self._stepped(theta, core)
        Z_bar[core], V_bar[core] = Z_new, V_new
        self.way, self.last = way, theta[W]
        self.stored[core] = way
        return weight * found.sum(), grads

    def _stepped(self, theta: Values, core: Nodes) -> tuple[Array, Array]:
        """One message-passing step from the histories: (20) and (22)."""
        data, P = self.data, self.data.P[core]
        Z = P @ relu(self.tables["H"][1]) @ theta[W].T + b(theta, data, core)
        _, G, _ = losses(theta, data, Z, core)
        return Z, (Z > 0) * (P @ self.tables["V"][1] @ theta[W] + G)

    def _grown(self, theta: Values, core: Nodes, halo: Nodes, way: float) -> Array:
        """The messages of the halo, each column grown by the share e that the core shows, each row as far as it is old.

        The residual of Z = S * (1 + e) is orthogonal to every column of the stored S of the core.
        """
        data, S, P_out = self.data, self.tables["H"][1][core], self.data.P[np.ix_(core, halo)]
        H = relu(self.tables["H"][1][halo])
        moved = way - self.stored[core].mean()
        shares = np.zeros(len(halo)) if moved == 0 else np.clip((way - self.stored[halo]) / moved, 0, OLDEST)
        arrived, aged = P_out @ H, P_out @ (H * shares[:, None])
        inside = data.P[np.ix_(core, core)] @ relu(S)
        M, late = inside + arrived, inside + aged
        R = M @ theta[W].T + b(theta, data, core) - S
        asked = slice(0, ROWS * S.shape[1])
        S, R, late = S[asked], R[asked], late[asked]
        size = (S**2).sum(0)
        d = len(size)
        matrix, right = np.zeros((d, d)), np.zeros(d)
        for j in range(d):
            right[j] = S[:, j] @ R[:, j]
            matrix[j, j] = size[j] + RIDGE * size.mean() + np.finfo(np.float64).tiny
            for i in range(d):
                matrix[j, i] -= theta[W][j, i] * (S[:, j] @ late[:, i])
        e = np.linalg.solve(matrix, right) if S.any() else np.zeros(d)
        limit = REACH * moved
        self.seen.shares.append(shares)
        self.seen.growths.append(e)
        self.seen.limits.append(limit)
        return arrived + aged * np.clip(e, -min(limit, MOST_LOSS), limit)

    def _faded(self, theta: Values, core: Nodes, Z: Array, G: Array, arriving: Array) -> Array:
        """What arrives, times what is left of the loss gradient: a = argmin |a D - 1[Z > 0] * G| in [0, 1]."""
        V, P_in = self.tables["V"][1][core], self.data.P[np.ix_(core, core)]
        D = V - (Z > 0) * (P_in.T @ V @ theta[W] + arriving)
        now = (Z > 0) * G
        if not now.any():
            return arriving
        factor = (D * now).sum() / (D**2).sum() if D.any() else 0.0
        self.seen.factors.append(factor)
        return arriving * np.clip(factor, 0, 1)

    def refresh(self, theta: Values) -> None:
        """Exact tables, all stored now."""
        self.tables["H"][1], self.tables["V"][1] = exact(theta, self.data)
        self.way += np.linalg.norm(theta[W] - self.last) / np.linalg.norm(theta[W])
        self.last = theta[W]
        self.stored[:] = self.way
