"""CMC4Rec on RecGCN: core and halo are solved for together, with what comes from outside as stored sums."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from dense import Data, Nodes, Tables, Values
from dense_gcn import joined
from dense_recgcn import W, adjoints, b, exact, gradients, losses, relu, states


@dataclass
class DenseCMC4Rec:
    """H[1] holds Z and V[1] holds dL/dZ; M = P relu(Z) and U = P^T V of all nodes at all times."""

    data: Data
    width: int
    tables: Tables = field(init=False)

    def __post_init__(self) -> None:
        self.tables = {name: {1: np.zeros((self.data.num_nodes, self.width))} for name in ("H", "M", "V", "U")}

    def step(self, theta: Values, core: Nodes, slot: int, weight: float) -> tuple[float, Values]:
        data, n = self.data, len(core)
        ext = joined(core, data.halo(core))
        P_ee = data.P[np.ix_(ext, ext)]
        Z_bar, M, V_bar, U_bar = (self.tables[name][1] for name in ("H", "M", "V", "U"))
        outer = M[ext] - P_ee @ relu(Z_bar[ext])
        Z = states(theta, P_ee, outer @ theta[W].T + b(theta, data, ext))
        found, G, output = losses(theta, data, Z, ext)
        arriving = U_bar[ext] - P_ee.T @ V_bar[ext]
        U = adjoints(theta, P_ee, Z, G + arriving @ theta[W])
        grads = gradients(theta, data, core, U, P_ee @ relu(Z) + outer, output, weight)
        Z_bar[core], V_bar[core] = Z[:n], U[:n]
        # the invariants themselves, from scratch: the library keeps them by increments
        M[:], U_bar[:] = data.P @ relu(Z_bar), data.P.T @ V_bar
        return weight * found[:n].sum(), grads

    def refresh(self, theta: Values) -> None:
        Z, V = exact(theta, self.data)
        tables = {"H": Z, "M": self.data.P @ relu(Z), "V": V, "U": self.data.P.T @ V}
        self.tables = {name: {1: table} for name, table in tables.items()}
