"""Lookalikes: synthetic graphs with a real one's size, hubs, communities, widths and splits.

They replace real files that are not available, in tests, demonstrations and speed measurements. The same seed gives
the same graph. The splits have the real shares but are drawn at random (the real arxiv splits by year, products by
sales rank).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lmc.data import synthetic
from lmc.errors import DataError
from lmc.graph import Graph
from lmc.graph.csr import from_rows, identity

LARGEST = 8.0  # times the real size, so that a typing error does not exhaust the memory


@dataclass(frozen=True)
class Lookalike:
    """The statistics that a lookalike copies, and the parameters that were chosen to match them.

    Args:
        nodes, edges, classes, features: as in the real set (undirected edges).
        splits: shares of train, val and test nodes (of whole graphs where there are several).
        parts, kept: the paper's number of parts, and the share of edges METIS keeps inside them.
        community, branching: nodes to a community, communities to a district.
        near, middle: shares of edges that stay in the community, in the district.
        tail: Pareto exponent of the node weights.
        signal, label_noise: how informative the features of one node are; the share of labels that are random.
        graphs: number of disjoint graphs; with more than one the set is multi-label and inductive.
        line: the nodes lie on a line, an edge ends at most ``community`` nodes away, and labels hold for stretches of
            the line that are many hops long. Such a set is multi-label and has no features.
    """

    nodes: int
    edges: int
    classes: int
    features: int
    splits: tuple[float, float, float]
    parts: int
    kept: float
    community: int
    branching: int
    near: float
    middle: float
    tail: float
    signal: float
    label_noise: float
    graphs: int = 1
    line: bool = False

    @property
    def least_nodes(self) -> int:
        """The fewest nodes that can be drawn."""
        # a class needs nodes in every split, and there are no communities if a node has a quarter of a graph as
        # neighbours
        crowded = 8 * self.graphs * self.edges // self.nodes
        return crowded if self.graphs > 1 else max(20 * self.classes, crowded)

    @property
    def multi_label(self) -> bool:
        return self.graphs > 1 or self.line


LOOKALIKES: dict[str, Lookalike] = {
    "tiny-like": Lookalike(
        nodes=1_500, edges=6_000, classes=5, features=32, splits=(0.3, 0.2, 0.5), parts=10, kept=0.75,
        community=30, branching=5, near=0.6, middle=0.15, tail=2.2, signal=1.5, label_noise=0.12,
    ),
    "arxiv-like": Lookalike(
        nodes=169_343, edges=1_157_799, classes=40, features=128, splits=(0.54, 0.18, 0.28), parts=80,
        kept=0.67, community=150, branching=12, near=0.52, middle=0.15, tail=1.6, signal=2.25, label_noise=0.25,
    ),
    "flickr-like": Lookalike(
        nodes=89_250, edges=449_878, classes=7, features=500, splits=(0.5, 0.25, 0.25), parts=24, kept=0.57,
        community=120, branching=20, near=0.35, middle=0.15, tail=1.7, signal=1.2, label_noise=0.43,
    ),
    "ppi-like": Lookalike(
        nodes=56_944, edges=793_632, classes=121, features=50, splits=(20 / 24, 2 / 24, 2 / 24), parts=20,
        kept=0.9, community=60, branching=10, near=0.5, middle=0.05, tail=2.0, signal=0.35, label_noise=0.01,
        graphs=24,
    ),
    "reddit-like": Lookalike(
        nodes=232_965, edges=11_606_919, classes=41, features=602, splits=(0.66, 0.10, 0.24), parts=200,
        kept=0.35, community=500, branching=6, near=0.35, middle=0.1, tail=2.1, signal=3.0, label_noise=0.05,
    ),
    "products-like": Lookalike(
        nodes=2_449_029, edges=61_859_076, classes=47, features=100, splits=(0.08, 0.02, 0.90), parts=1_500,
        kept=0.7, community=400, branching=4, near=0.58, middle=0.15, tail=2.3, signal=2.7, label_noise=0.23,
    ),
    "amazon-like": Lookalike(
        nodes=334_863, edges=925_872, classes=58, features=334_863, splits=(0.0006, 0.01, 0.1), parts=40, kept=0.99,
        community=140, branching=1, near=1.0, middle=0.0, tail=2.5, signal=0.0, label_noise=0.05, line=True,
    ),
}  # fmt: skip


def make(name: str, *, seed: int = 0, scale: float = 1.0, **changes: Any) -> Graph:
    """Draw the lookalike ``name`` at ``scale`` times its nodes and edges; communities keep their size.

    Args:
        changes: fields of :class:`Lookalike` that shall have other values.
    """
    spec = replace(LOOKALIKES[name], **changes)
    n, num_edges = _sizes(name, spec, scale)
    rng = np.random.default_rng([seed, *name.encode()])
    label = label_of(name, scale)
    if spec.line:
        return on_a_line(spec, label, n, num_edges, rng)
    # at small scales communities become smaller, so that there are enough of them for the classes or the graphs
    wanted = 8 * spec.graphs if spec.multi_label else 2 * spec.classes
    size = min(spec.community, max(15, n // wanted))
    blocks = synthetic.make_blocks(n, size, spec.branching, spec.graphs, rng)
    weights = _weights(spec, n, rng)
    u, v = synthetic.draw_edges(blocks, weights, num_edges, spec.near, spec.middle, rng)
    draw_targets = synthetic.labels_and_features if spec.multi_label else synthetic.classes_and_features
    y, x = draw_targets(blocks, spec.classes, spec.features, spec.label_noise, spec.signal, rng)
    split = (
        synthetic.split_worlds(blocks.world, spec.splits)
        if spec.multi_label
        else synthetic.split_nodes(n, spec.splits, rng)
    )
    made = _graph(u, v, x, y, split, spec.classes, label, rng)
    return replace(made, inductive=spec.multi_label)


def on_a_line(spec: Lookalike, name: str, n: int, num_edges: int, rng: np.random.Generator) -> Graph:
    """A multi-label graph without features, whose labelled nodes are about twelve edges apart."""
    # small graphs have more labelled nodes, but these stay many edges apart
    labelled = max(round(n * spec.splits[0]), min(3 * spec.classes, n // 80))
    reach = min(spec.community, max(8, n // (12 * labelled)))
    weights = _weights(spec, n, rng)
    u, v = synthetic.draw_edges(synthetic.Line(n, reach), weights, num_edges, spec.near, spec.middle, rng)
    y = synthetic.labels_on_a_line(n, spec.classes, spec.label_noise, rng)
    split = synthetic.split_nodes(n, (labelled / n, *spec.splits[1:]), rng)
    return replace(_graph(u, v, None, y, split, spec.classes, name, rng), metric="top-k-micro-f1")


def _weights(spec: Lookalike, n: int, rng: np.random.Generator) -> np.ndarray:
    """Weights of nodes with P(w > t) = t^-tail for t >= 1: the smaller the tail, the larger the hubs."""
    return (1.0 - rng.random(n)) ** (-1.0 / spec.tail)


def label_of(name: str, scale: float) -> str:
    """The name of a lookalike with its scale, as :func:`parse` reads it."""
    return name if scale == 1.0 else f"{name}@{scale:g}"


def parse(source: str) -> tuple[str, float | None] | None:
    """Name and scale of ``"arxiv-like"`` or ``"arxiv-like@0.1"``; None for anything else."""
    name, mark, suffix = source.strip().lower().replace("_", "-").partition("@")
    if name not in LOOKALIKES:
        return None
    if not mark:
        return name, None
    try:
        return name, float(suffix)
    except ValueError as error:
        raise DataError(f"expected a number after @ (got {source!r}): write e.g. {name}@0.1") from error


def _sizes(name: str, spec: Lookalike, scale: float) -> tuple[int, int]:
    if not 0 < scale <= LARGEST:
        raise DataError(f"expected a scale in (0, {LARGEST:g}] for {name} (got {scale:g}): choose another")
    n, num_edges, least = round(spec.nodes * scale), round(spec.edges * scale), spec.least_nodes
    if n < least:
        raise DataError(
            f"expected at least {least} nodes in {name} (got {n} at scale {scale:g}): "
            f"use a scale of {least / spec.nodes:.2g} or more"
        )
    return n, num_edges


def _graph(
    u: np.ndarray, v: np.ndarray, x: np.ndarray | None, y: np.ndarray, split: np.ndarray, num_classes: int, name: str,
    rng: np.random.Generator,
) -> Graph:  # fmt: skip
    """The graph of distinct edges in a random order of the nodes, since real sets are not sorted by community, without
    the checks of from_edges, which take memory."""
    n = y.shape[0]
    place = rng.permutation(n)
    order, u, v = np.argsort(place), place[u], place[v]
    keys = np.concatenate([u * n + v, v * n + u])
    keys.sort()
    key = torch.from_numpy(keys)
    adj = replace(from_rows(key // n, key % n, None, (n, n)), symmetric=True)
    train, val, test = (torch.from_numpy(split[order] == k) for k in range(3))
    features = identity(n) if x is None else torch.from_numpy(x[order])
    return Graph(adj, features, torch.from_numpy(y[order]), train, val, test, num_classes, name)
