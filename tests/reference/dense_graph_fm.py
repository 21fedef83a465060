"""GraphFM-OB on a GCN: GAS whose halo rows take a momentum step toward the message of the core."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from dense import Array, Nodes, Values
from dense_gas import DenseGAS


@dataclass
class DenseGraphFM(DenseGAS):
    """GAS with H[halo] <- (1 - momentum) H[halo] + momentum s_tmp, where s_tmp reads core rows and the row itself."""

    momentum: float = 0.3

    def halo_states(self, theta: Values, l: int, t: Array, core: Nodes, halo: Nodes) -> Array:
        P, c, H = self.model.data.P, len(core), self.tables["H"][l]
        partial = P[np.ix_(halo, core)] @ t[:c] + P[halo, halo][:, None] * t[c:]
        tmp = self.model.affine(theta, l, partial)
        H[halo] = (1 - self.momentum) * H[halo] + self.momentum * tmp
        return H[halo]
