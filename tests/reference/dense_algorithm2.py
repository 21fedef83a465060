"""Algorithm 2 of the paper, node by node, with the paper's own histories: H-bar, Z-bar and V-bar = dL/dH.

:mod:`dense_lmc4rec` stores dL/dZ = 1[Z-bar > 0] * V-bar instead, as the library does. Both are the same algorithm
until a unit of a node changes its sign between two updates of its histories: V-bar of a unit that was inactive is known
here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from dense import Array, Data, Nodes, Tables, Values
from dense_recgcn import B, C, W, b, c, e, exact, losses, relu, settled


@dataclass
class Algorithm2:
    """The histories, and one iteration of the loop in lines 3 to 11.

    ``flipped`` counts units of a core whose sign line 5 changed.
    """

    data: Data
    width: int
    Z_bar: Array = field(init=False)
    V_bar: Array = field(init=False)
    flipped: int = 0

    def __post_init__(self) -> None:
        self.Z_bar, self.V_bar = np.zeros((2, self.data.num_nodes, self.width))

    @property
    def tables(self) -> Tables:
        """The histories as the library stores them: Z and dL/dZ."""
        return {"H": {1: self.Z_bar}, "V": {1: (self.Z_bar > 0) * self.V_bar}}

    def step(self, theta: Values, core: Nodes, slot: int, weight: float) -> tuple[float, Values]:
        P, n = self.data.P, len(core)
        H_bar, halo = relu(self.Z_bar), self.data.halo(core)
        near = [np.flatnonzero(P[i]) for i in range(self.data.num_nodes)]
        # line 5: (20) for every node of the batch, from the histories before it
        Z_new = np.stack([theta[W] @ sum(P[i, j] * H_bar[j] for j in near[i]) for i in core]) + b(
            theta, self.data, core
        )
        self.flipped += int(((Z_new > 0) != (self.Z_bar[core] > 0)).sum())
        self.Z_bar[core] = Z_new
        # line 6: the local fixed point (21); the halo is outside of the batch, so line 5 did not change it
        C_f = P[np.ix_(core, halo)] @ relu(self.Z_bar[halo])
        P_in, constant = P[np.ix_(core, core)], b(theta, self.data, core)
        Z_hat = settled(lambda Z: (P_in @ relu(Z) + C_f) @ theta[W].T + constant, (n, self.width))
        # line 7: (22) with the masks 1[Z-bar > 0] of line 5 and the loss gradient at H-bar
        _, G_bar, _ = losses(theta, self.data, self.Z_bar[core], core)
        masked = (self.Z_bar > 0) * self.V_bar
        self.V_bar[core] = [
            theta[W].T @ sum(P[j, i] * masked[j] for j in near[i]) + G_bar[k] for k, i in enumerate(core)
        ]
        # line 8: the local fixed point (23) in V = dL/dH
        found, G_hat, output = losses(theta, self.data, Z_hat, core)
        C_b = P[np.ix_(halo, core)].T @ ((self.Z_bar[halo] > 0) * self.V_bar[halo]) @ theta[W]
        V_hat = settled(lambda V: P_in.T @ ((Z_hat > 0) * V) @ theta[W] + C_b + G_hat, (n, self.width))
        # line 9: (24) and (25), with the factor b/c of the appendix
        U = (Z_hat > 0) * V_hat
        grads = {W: U.T @ (P_in @ relu(Z_hat) + C_f), B: U.T @ self.data.x[core], c: U.sum(0)}
        grads |= {name: output[name].sum(0) for name in (C, e)}
        return weight * found.sum(), {name: weight * g for name, g in grads.items()}

    def refresh(self, theta: Values) -> None:
        """Exact histories. V-bar of an inactive unit is P^T dL/dZ W + dL/dH of the loss."""
        self.Z_bar, U = exact(theta, self.data)
        _, G, _ = losses(theta, self.data, self.Z_bar, np.arange(self.data.num_nodes))
        self.V_bar = self.data.P.T @ U @ theta[W] + G
