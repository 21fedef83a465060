"""Random graphs with hubs, nested communities, targets and features: a degree-corrected block model on three levels.

Every edge picks one end by node weight, then a level (its community, its district, its whole graph) and the other end
by weight inside that level. The weights follow a Pareto law, which makes the degree distribution heavy-tailed. The
shares of the levels set how many edges a partitioner can keep inside parts. Everything is vectorised over edges. Labels
and features follow the communities, so that a neighbourhood is more informative than a node's own features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

CHUNK = 1 << 22  # edges drawn at a time, so that temporaries take at most a few hundred MB
LATENT = 8  # dimensions of a community's latent vector in the multi-label sets
LEVEL_ROUNDS = 12  # afterwards small communities are assumed to be full, and edges end anywhere


@dataclass(frozen=True)
class Blocks:
    """Nested groups of nodes; nodes are numbered so that every group is a range.

    Each array gives the group of every node and never decreases: a community lies within a district (several
    communities), and a district within a world (the whole graph, or one of several disjoint graphs).
    """

    community: np.ndarray  # [n]
    district: np.ndarray  # [n]
    world: np.ndarray  # [n]

    @cached_property
    def _bounds(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The groups of every level, with the first node of each."""
        groups = (self.community, self.district, self.world)
        return [(group, np.concatenate([[0], np.cumsum(np.bincount(group))]).astype(np.int64)) for group in groups]

    def ranges(self, u: np.ndarray, level: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first node, and the node after the last, of the group of every ``u`` at ``level``."""
        low, high = np.empty_like(u), np.empty_like(u)
        for k, (group, bounds) in enumerate(self._bounds):
            here = level == k
            own = group[u[here]]
            low[here], high[here] = bounds[own], bounds[own + 1]
        return low, high


@dataclass(frozen=True)
class Line:
    """Nodes on a line; at level 0 an edge ends at most ``reach`` nodes away, so distant nodes are many hops apart."""

    n: int
    reach: int

    def ranges(self, u: np.ndarray, level: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first node, and the node after the last, that an edge from every ``u`` may end in."""
        near = level == 0
        low, high = np.maximum(u - self.reach, 0), np.minimum(u + self.reach + 1, self.n)
        return np.where(near, low, 0), np.where(near, high, self.n)


def make_blocks(n: int, community_size: int, branching: int, worlds: int, rng: np.random.Generator) -> Blocks:
    """About ``n / community_size`` communities of uneven size, ``branching`` to a district."""
    count = max(worlds, round(n / community_size))
    share = rng.lognormal(0.0, 0.5, count)
    # at least three nodes, so that every node can have a neighbour inside
    sizes = 3 + rng.multinomial(n - 3 * count, share / share.sum())
    districts = max(worlds, round(count / branching))
    district_of = np.arange(count) * districts // count
    world_of = np.arange(districts) * worlds // districts
    community = np.repeat(np.arange(count), sizes)
    district = district_of[community]
    return Blocks(community, district, world_of[district])


def draw_edges(
    blocks: Blocks | Line, weights: np.ndarray, num_edges: int, near: float, middle: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Exactly ``num_edges`` undirected edges (u < v), without duplicates, self-loops and isolated nodes.

    There must be more edges than nodes: every node first gets a partner in its community.

    Args:
        near, middle: shares of edges drawn within the community and within the district; the others end anywhere
            in the world. Duplicates are dropped, so dense communities get a little less than their share.
    """
    n = weights.size
    sampler = _Sampler(blocks, weights)
    keys = _sorted_unique(sampler.pair(np.arange(n), np.zeros(n, dtype=np.int8), rng))
    rounds = 0
    while (missing := num_edges - keys.size) > 0:
        shares = (near, middle) if rounds < LEVEL_ROUNDS else (0.0, 0.0)
        fresh = _sorted_unique(sampler.draw(int(missing * 1.05) + 16, shares, rng))
        place = np.minimum(np.searchsorted(keys, fresh), keys.size - 1)
        fresh = fresh[keys[place] != fresh]
        if fresh.size > missing:
            fresh = np.delete(fresh, rng.choice(fresh.size, fresh.size - missing, replace=False))
        keys = np.concatenate([keys, fresh])
        keys.sort()
        rounds += 1
    return keys // n, keys % n


class _Sampler:
    """Draws edge ends by weight inside ranges of nodes, from one running sum of the weights."""

    def __init__(self, blocks: Blocks | Line, weights: np.ndarray) -> None:
        self.n = weights.size
        self.total = np.concatenate([[0.0], np.cumsum(weights)])
        self.blocks = blocks

    def draw(self, count: int, shares: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
        """Keys of ``count`` edges, duplicates included."""
        chunks = []
        for start in range(0, count, CHUNK):
            size = min(CHUNK, count - start)
            u = self._by_weight(np.zeros(size), np.full(size, self.total[-1]), rng)
            dice = rng.random(size)
            level = (dice >= shares[0]).astype(np.int8) + (dice >= shares[0] + shares[1])
            chunks.append(self.pair(u, level, rng))
        return np.concatenate(chunks)

    def pair(self, u: np.ndarray, level: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A key for every ``u`` and a partner drawn from its range at ``level``."""
        low, high = self.blocks.ranges(u, level)
        v = self._by_weight(self.total[low], self.total[high], rng)
        v = np.clip(v, low, high - 1)  # rounding of the running sum may exceed the range by one
        # a node that drew itself takes the next node of the range instead
        v = np.where(v == u, np.where(u + 1 < high, u + 1, low), v)
        return np.minimum(u, v) * self.n + np.maximum(u, v)

    def _by_weight(self, low: np.ndarray, high: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        target = low + rng.random(low.size) * (high - low)
        return np.clip(np.searchsorted(self.total, target, side="right") - 1, 0, self.n - 1)


def _sorted_unique(keys: np.ndarray) -> np.ndarray:
    keys.sort()
    return keys[np.concatenate([[True], keys[1:] != keys[:-1]])]


def classes_and_features(
    blocks: Blocks, num_classes: int, num_features: int, label_noise: float, signal: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Classes [n] and features [n, d].

    Most communities of a district share its class, the others draw one of their own, so a class spans many communities
    in many places. A node takes the class of its community, except for a share ``label_noise`` drawn from all classes,
    so no model can be much better than 1 - ``label_noise``. The features of a node are the mean vector of its class, of
    length ``signal``, plus unit noise.
    """
    community, district = blocks.community, blocks.district
    prior = 1.0 / (1.0 + np.arange(num_classes)) ** 0.5  # large and small classes, as in real sets
    prior /= prior.sum()
    of_district = rng.choice(num_classes, int(district[-1]) + 1, p=prior)
    count = int(community[-1]) + 1
    home = np.zeros(count, dtype=np.int64)
    home[community] = district
    of_community = np.where(rng.random(count) < 0.7, of_district[home], rng.choice(num_classes, count, p=prior))
    sure = min(count, num_classes)  # every class has a community, however small the graph
    of_community[rng.choice(count, sure, replace=False)] = np.arange(sure)
    y = of_community[community]
    noisy = rng.random(y.size) < label_noise
    y[noisy] = rng.choice(num_classes, int(noisy.sum()), p=prior)
    means = rng.standard_normal((num_classes, num_features), dtype=np.float32)
    means *= signal / np.linalg.norm(means, axis=1, keepdims=True)
    x = rng.standard_normal((y.size, num_features), dtype=np.float32)
    x += means[y]
    return y, x


def labels_and_features(
    blocks: Blocks, num_labels: int, num_features: int, label_noise: float, signal: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """0/1 labels [n, C] and features [n, d] that generalise to graphs not seen in training.

    Every community has a latent vector z. Labels are thresholds of one linear map of z, features are another linear map
    plus unit noise. The maps are the same in all graphs, the communities are not.
    """
    community, count = blocks.community, int(blocks.community[-1]) + 1
    z = rng.standard_normal((count, LATENT), dtype=np.float32)
    to_label = rng.standard_normal((LATENT, num_labels), dtype=np.float32) / np.sqrt(LATENT)
    rarity = rng.normal(0.6, 0.4, num_labels)  # thresholds: about three labels in ten are 1
    y = (z @ to_label > rarity)[community]
    y ^= rng.random(y.shape, dtype=np.float32) < label_noise
    to_feature = rng.standard_normal((LATENT, num_features), dtype=np.float32)
    to_feature *= signal / np.sqrt(LATENT)
    x = rng.standard_normal((community.size, num_features), dtype=np.float32)
    x += (z @ to_feature)[community]
    return y.astype(np.float32), x


def labels_on_a_line(n: int, num_labels: int, label_noise: float, rng: np.random.Generator) -> np.ndarray:
    """0/1 labels [n, C] of nodes on a line, one or two per node.

    Each label holds for the nodes between two points of the line, and half of the labels for those between two others
    as well. A share ``label_noise`` of the nodes has one random label instead.
    """
    y = np.zeros((n, num_labels), dtype=np.float32)
    for labels in (num_labels, num_labels // 2):
        ends = np.cumsum(rng.lognormal(0.0, 0.3, num_labels))
        segment = np.searchsorted(ends[:-1] * (n / ends[-1]), np.arange(n), side="right")
        label = rng.permutation(num_labels)[segment]
        held = label < labels
        y[held, label[held]] = 1
    noisy = rng.random(n) < label_noise
    y[noisy] = np.eye(num_labels, dtype=np.float32)[rng.integers(num_labels, size=int(noisy.sum()))]
    return y


def split_nodes(n: int, shares: tuple[float, float, float], rng: np.random.Generator) -> np.ndarray:
    """0, 1 or 2 (train, val, test) for every node, at random, in these shares; 3 for the rest."""
    borders = np.round(n * np.cumsum(shares))
    return rng.permutation(np.searchsorted(borders, np.arange(n), side="right").astype(np.int8))


def split_worlds(world: np.ndarray, shares: tuple[float, float, float]) -> np.ndarray:
    """0, 1 or 2 for every node, the same for all nodes of a graph; the first graphs are for training."""
    count = int(world[-1]) + 1
    borders = np.round(np.cumsum(shares)[:2] * count)
    return np.searchsorted(borders, world, side="right").astype(np.int8)
