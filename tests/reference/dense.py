"""A graph, its aggregation matrix, its halos and its loss in dense float64 numpy.

The files ``dense*.py`` of this folder are second versions of the library's mathematics, written to be obviously
correct and not to be fast. They import nothing of the library: they know the names of parameters and the numbers of
nodes, and compute P, the forward pass, the adjoints, the tables and the gradients on their own.
Letters are those of METHOD.md; equation numbers are those of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Nodes = NDArray[np.int64]
Values = dict[str, Array]
"""Parameters, gradients or buffers, by the model's own names."""
Tables = dict[str, dict[int, Array]]
"""Tables by name and layer; one row a node, in the user's numbering."""


@dataclass(frozen=True, eq=False)
class Data:
    """A graph with features and labels.

    Args:
        edges: undirected edges, [E, 2], each once, without self-loops; where ``directed``, source and target.
        x: features, [n, f].
        y: classes [n], or labels [n, k] of 0 and 1.
        train: which nodes are labelled training nodes, [n].
        parts: the part of every node, [n].
        weights: of the edges, [E]; None: all are 1.
        directed: an edge is a message from its source to its target alone.
        node_weights: of the losses of nodes, [n]; None: all are 1.
        class_weights: of the losses of classes, [4]; None: all are 1.
    """

    edges: Nodes
    x: Array
    y: NDArray[np.int64]
    train: NDArray[np.bool_]
    parts: Nodes
    weights: Array | None = None
    directed: bool = False
    node_weights: Array | None = None
    class_weights: Array | None = None

    @property
    def num_nodes(self) -> int:
        return self.x.shape[0]

    @cached_property
    def A(self) -> Array:
        """The adjacency matrix, without self-loops; A_ij is the weight of the edge from j to i."""
        A = np.zeros((self.num_nodes, self.num_nodes))
        for k, (i, j) in enumerate(self.edges):
            A[j, i] = 1.0 if self.weights is None else self.weights[k]
            if not self.directed:
                A[i, j] = A[j, i]
        return A

    @cached_property
    def near(self) -> Array:
        """How many edges join two nodes, in either direction; 1 in an undirected graph."""
        linked = (self.A != 0).astype(np.float64)
        return linked + linked.T if self.directed else linked

    @cached_property
    def P(self) -> Array:
        """P = D^-1/2 (A + I) D^-1/2 with D the degrees of A + I."""
        loops = self.A + np.eye(self.num_nodes)
        scale = 1 / np.sqrt(loops.sum(1))
        return scale[:, None] * loops * scale[None, :]

    def halo(self, core: Nodes) -> Nodes:
        """N(V_B) without V_B."""
        return np.setdiff1d(np.flatnonzero(self.near[core].any(0)), core)

    def completeness(self, core: Nodes, halo: Nodes) -> Array:
        """x_i = deg_local(i) / deg_global(i) of every halo row, as a column."""
        ext = np.concatenate([core, halo])
        return (self.near[np.ix_(halo, ext)].sum(1) / self.near[halo].sum(1))[:, None]

    def losses(self, logits: Array, nodes: Nodes) -> tuple[Array, Array]:
        """w_i loss_i / (sum of w over labelled nodes) of every node, 0 where it is not labelled; and its derivative by
        the logits."""
        y = self.y[nodes]
        w = self.train if self.node_weights is None else self.train * self.node_weights
        labelled = w[nodes] / w.sum()
        if self.class_weights is not None:
            labelled = labelled * self.class_weights[y]
        if y.ndim == 2:  # several labels: the mean of their binary cross-entropies
            p = 1 / (1 + np.exp(-logits))
            losses = -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean(1)
            return losses * labelled, (p - y) / y.shape[1] * labelled[:, None]
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        each = np.arange(len(nodes))
        return -np.log(p[each, y]) * labelled, (p - np.eye(p.shape[1])[y]) * labelled[:, None]


def random_data(
    n: int = 48, num_parts: int = 4, multi_label: bool = False, seed: int = 0, weighted: bool = False,
    directed: bool = False, weighted_loss: bool = False,
) -> Data:  # fmt: skip
    """A ring with random chords, six features, four classes; chords are dense around the first nodes, so that degrees
    and the completeness of halo rows differ."""
    rng = np.random.default_rng(seed)
    ring = [(i, (i + 1) % n) for i in range(n)]
    chords = [(int(n * rng.random() ** 2), int(n * rng.random())) for _ in range(n)]
    edges = {(min(i, j), max(i, j)) for i, j in ring + chords if i != j}
    y = (rng.random((n, 4)) < 0.4).astype(np.int64) if multi_label else rng.integers(4, size=n)
    # neighbours on the ring are mostly in one part; a few nodes are in a part of far-away nodes
    parts = np.where(rng.random(n) < 0.75, np.arange(n) * num_parts // n, rng.integers(num_parts, size=n))
    x, train = rng.standard_normal((n, 6)), rng.random(n) < 0.7
    listed = np.array(sorted(edges))
    if directed:  # every third edge points to the smaller number, and every fifth both ways
        listed = np.concatenate([np.where(np.arange(len(listed))[:, None] % 3, listed, listed[:, ::-1]), listed[::5]])
        listed = np.unique(listed, axis=0)
    weights = 0.2 + 2 * rng.random(len(listed)) if weighted else None
    of_losses = (3 * rng.random(n), np.array([1.0, 6.0, 0.3, 2.0])) if weighted_loss else (None, None)
    return Data(listed, x, y, train, parts, weights, directed, *of_losses)
