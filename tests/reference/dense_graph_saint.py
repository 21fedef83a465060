"""The chances of GraphSAINT's samplers, computed and not counted.

A sampler draws ``size`` times independently, and a subgraph is all that was met. With a(S) the chance that one draw
avoids the nodes S, a subgraph avoids them with chance a(S)^size.
"""

from __future__ import annotations

import numpy as np
from dense import Array, Data


def avoiding(data: Data, sampler: str, nodes: list[int], walk_length: int = 2) -> float:
    """The chance that one draw meets none of these nodes."""
    A, P, degrees = data.A, data.P, data.A.sum(1)
    if sampler == "node":  # in proportion to |P[:, v]|^2
        size = (P**2).sum(0)
        return float(1 - size[nodes].sum() / size.sum())
    others = np.setdiff1d(np.arange(data.num_nodes), nodes)
    if sampler == "edge":  # in proportion to 1 / deg(u) + 1 / deg(v)
        weights = A * (1 / degrees[:, None] + 1 / degrees[None, :])
        return float(weights[np.ix_(others, others)].sum() / weights.sum())
    step = A / degrees[:, None]
    ways = np.ones(len(others))  # walks that stay among the others
    for _ in range(walk_length):
        ways = step[np.ix_(others, others)] @ ways
    return float(ways.sum() / data.num_nodes)


def chances(data: Data, sampler: str, size: int) -> tuple[Array, Array]:
    """lambda_v of every node, and alpha_uv = chance of u given v of every entry [v, u] of P, else 0."""
    n = data.num_nodes
    missed = np.array([avoiding(data, sampler, [v]) ** size for v in range(n)])
    alpha = np.eye(n)
    for v, u in np.argwhere(data.A):
        both = 1 - missed[u] - missed[v] + avoiding(data, sampler, [u, v]) ** size
        alpha[v, u] = both / (1 - missed[v])
    return 1 - missed, alpha
