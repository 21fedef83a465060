"""SSE on RecGCN: one averaged step toward the fixed point, and one message-passing step in backward."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from dense import Data, Nodes, Tables, Values
from dense_recgcn import W, b, exact, gradients, losses, relu


@dataclass
class DenseSSE:
    """H[1] holds Z; the settings are those of ``lmc.methods.SSE``, without dropout."""

    data: Data
    width: int
    momentum: float = 0.9
    tables: Tables = field(init=False)

    def __post_init__(self) -> None:
        self.tables = {"H": {1: np.zeros((self.data.num_nodes, self.width))}}

    def step(self, theta: Values, core: Nodes, slot: int, weight: float) -> tuple[float, Values]:
        data, table = self.data, self.tables["H"][1]
        new = data.P[core] @ relu(table) @ theta[W].T + b(theta, data, core)
        table[core] = (1 - self.momentum) * table[core] + self.momentum * new
        m = data.P[core] @ relu(table)
        Z = m @ theta[W].T + b(theta, data, core)
        found, G, output = losses(theta, data, Z, core)
        active, P_in = Z > 0, data.P[np.ix_(core, core)]
        U = active * (P_in.T @ (active * G) @ theta[W] + G)
        return weight * found.sum(), gradients(theta, data, core, U, m, output, weight)

    def refresh(self, theta: Values) -> None:
        self.tables["H"][1] = exact(theta, self.data)[0]
