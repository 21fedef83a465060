"""Random edges with hubs and nested communities: a degree-corrected block model on three levels.

Every edge picks one end by node weight, then a level (its community, its district, its whole graph) and the other end
by weight inside that level. The weights follow a Pareto law, which makes the degree distribution heavy-tailed. The
shares of the levels set how many edges a partitioner can keep inside parts. Everything is vectorised over edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CHUNK = 1 << 22  # edges drawn at a time, so that temporaries take at most a few hundred MB
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


def pareto_weights(n: int, tail: float, rng: np.random.Generator) -> np.ndarray:
    """Weights >= 1 with P(w > t) = t^-tail: the smaller ``tail``, the larger the hubs."""
    return (1.0 - rng.random(n)) ** (-1.0 / tail)


def draw_edges(
    blocks: Blocks,
    weights: np.ndarray,
    num_edges: int,
    near: float,
    middle: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Exactly ``num_edges`` undirected edges (u < v), without duplicates, self-loops and isolated nodes.

    There must be more edges than nodes: every node first gets a partner in its community.

    Args:
        near, middle: shares of edges drawn within the community and within the district; the others end anywhere
            in the world. Duplicates are dropped, so dense communities get a little less than their share.
    """
    n = weights.size
    sampler = _Sampler(blocks, weights)
    everyone = np.arange(n)
    keys = _sorted_unique(sampler.pair(everyone, np.zeros(n, dtype=np.int8), rng))
    rounds = 0
    while (missing := num_edges - keys.size) > 0:
        shares = (near, middle) if rounds < LEVEL_ROUNDS else (0.0, 0.0)
        fresh = _sorted_unique(sampler.draw(int(missing * 1.05) + 16, shares, rng))
        fresh = fresh[~_member(fresh, keys)]
        if fresh.size > missing:
            fresh = np.delete(fresh, rng.choice(fresh.size, fresh.size - missing, replace=False))
        keys = np.concatenate([keys, fresh])
        keys.sort()
        rounds += 1
    return keys // n, keys % n


class _Sampler:
    """Draws edge ends by weight inside ranges of nodes, from one running sum of the weights."""

    def __init__(self, blocks: Blocks, weights: np.ndarray) -> None:
        self.n = weights.size
        self.total = np.concatenate([[0.0], np.cumsum(weights)])
        self.groups = (blocks.community, blocks.district, blocks.world)
        self.bounds = tuple(
            np.concatenate([[0], np.cumsum(np.bincount(group))]).astype(np.int64) for group in self.groups
        )

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
        low, high = np.empty_like(u), np.empty_like(u)
        for k, (group, bounds) in enumerate(zip(self.groups, self.bounds, strict=True)):
            here = level == k
            own = group[u[here]]
            low[here], high[here] = bounds[own], bounds[own + 1]
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


def _member(items: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Which ``items`` occur in the sorted ``table``."""
    place = np.minimum(np.searchsorted(table, items), table.size - 1)
    return table[place] == items
