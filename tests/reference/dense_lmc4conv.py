"""LMC4Conv on a GCN, Algorithm 1 of the paper, one equation at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from dense import Array, Nodes, Tables, Values
from dense_gcn import GCN, add, joined, scaled

SCORES: dict[str, Callable[[Array], Array]] = {
    "x": lambda x: x,
    "x^2": lambda x: x * x,
    "2x-x^2": lambda x: 2 * x - x * x,
    "1": lambda x: 1 + 0 * x,
    # docs/notation.md; the paper's table of scores has sin(x), without the factor pi / 2
    "sin": lambda x: np.sin(x),
}


@dataclass
class DenseLMC4Conv:
    """One step at a time; the settings are those of ``lmc.methods.LMC4Conv``."""

    model: GCN
    widths: list[int]
    alpha: float = 0.8
    score: str = "x"
    forward: bool = True
    backward: bool = True
    cut: str = "before"
    first_layer: str = "complete"
    tables: Tables = field(init=False)

    def __post_init__(self) -> None:
        n, L = self.model.data.num_nodes, self.model.L
        first = 2 if self.first_layer == "complete" else 1
        layers = range(first, L + 1)
        self.tables = {"H": {l: np.zeros((n, self.widths[l - 1])) for l in layers}}
        self.tables["V"] = {l: np.zeros((n, self.widths[l - 1])) for l in layers if l < L and self.backward}

    def step(self, theta: Values, core: Nodes, slot: int, weight: float) -> tuple[float, Values]:
        """The loss and the gradients of one batch; the tables are updated."""
        model, data, L, c = self.model, self.model.data, self.model.L, len(core)
        H, V = self.tables["H"], self.tables["V"]
        halo = data.halo(core)
        ext = joined(core, halo)
        P = data.P[np.ix_(ext, ext)]
        beta = self.alpha * SCORES[self.score](data.completeness(core, halo))

        def mixed(stored: Array, rows: Array, beta: Array | float) -> Array:
            """Core rows as they are; halo rows by (13) or (16)."""
            return np.concatenate([rows[:c], (1 - beta) * stored[halo] + beta * rows[c:]])

        m, activated = {}, {}
        t = data.x[ext]
        for l in range(1, L + 1):
            complete = l == 1 and self.first_layer == "complete"
            m[l] = (data.P @ data.x)[ext] if complete else P @ t
            state = model.affine(theta, l, m[l])  # (12) of core rows, (14) of halo rows
            if self.cut == "after":
                activated[l] = model.activate(theta, l, state, c)
                state = activated[l].h
            if l in H:
                state = mixed(H[l], state, beta if self.forward else 0.0)  # (13)
                H[l][core] = state[:c]
            if self.cut == "before":
                activated[l] = model.activate(theta, l, state, c)
                state = activated[l].h
            t = state
        losses, v = data.losses(t, ext)
        grads: Values = {}
        for l in range(L, 0, -1):
            if self.cut == "before":  # v is dL/dh^l, and the state lies before the activation
                add(grads, model.norm_slopes(l, activated[l], v))
                v = activated[l].back(v)
            if l in V:
                v = mixed(V[l], v, beta)  # (15) of core rows, (17) and (16) of halo rows
                V[l][core] = v[:c]
            if not self.backward:
                v[c:] = 0
            if self.cut == "after":
                add(grads, model.norm_slopes(l, activated[l], v))
                v = activated[l].back(v)
            add(grads, model.affine_slopes(l, v[:c], m[l][:c]))  # (18) (19): core rows alone
            v = P.T @ model.affine_back(theta, l, v)
        return weight * losses[:c].sum(), scaled(grads, weight)

    def refresh(self, theta: Values) -> None:
        """Exact tables at these parameters."""
        model, P, L = self.model, self.model.data.P, self.model.L
        s, t, V = model.exact(theta)
        for l in self.tables["H"]:
            self.tables["H"][l] = s[l] if self.cut == "before" or l == L else t[l + 1]
        for l in self.tables["V"]:
            after = self.cut == "after"
            self.tables["V"][l] = P.T @ model.affine_back(theta, l + 1, V[l + 1]) if after else V[l]
