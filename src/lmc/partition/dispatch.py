"""``partition``: one function for every partitioner, with a cache on disk."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral

import torch
from torch import Tensor

from lmc.errors import ConfigError, GraphError
from lmc.graph import Graph
from lmc.partition import cache as _cache
from lmc.partition.check import check_parts
from lmc.partition.metis import metis_parts
from lmc.partition.propagation import propagated_parts


def random_parts(graph: Graph, num_parts: int, seed: int = 0) -> Tensor:
    """Random parts whose sizes differ by at most one node: the baseline that every partitioner must beat."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(graph.num_nodes, generator=generator) % num_parts


METHODS: dict[str, Callable[[Graph, int, int], Tensor]] = {
    "metis": metis_parts,
    "random": random_parts,
    "label-propagation": propagated_parts,
}


def partition(graph: Graph, num_parts: int, method: str = "metis", seed: int = 0, cache: bool = True) -> Tensor:
    """A part 0 .. ``num_parts`` - 1 for every node, int64 [n]; no part is empty.

    Args:
        method: ``"metis"`` (fewest edges cut), ``"label-propagation"`` (for graphs too large for METIS) or
            ``"random"``.
        seed: the same seed gives the same parts.
        cache: store the result in the user's cache folder and read it the next time (not for random parts, which
            are drawn faster than read).
    """
    if method not in METHODS:
        raise ConfigError(f"expected a method of {', '.join(METHODS)} (got {method!r}): choose one of them")
    if isinstance(num_parts, bool) or not isinstance(num_parts, Integral) or num_parts < 1:
        raise ConfigError(f"expected num_parts as a whole number, 1 or more (got {num_parts!r}): raise it")
    if num_parts > graph.num_nodes:
        raise GraphError(f"expected at most one part per node, {graph.num_nodes} (got num_parts={num_parts}): lower it")
    if num_parts == 1:
        return torch.zeros(graph.num_nodes, dtype=torch.int64)
    if method == "random" or not cache:
        return _compute(graph, num_parts, method, seed)
    path = _cache.cache_path(graph, num_parts, method, seed)
    parts = _cache.read(path, graph.num_nodes, num_parts)
    if parts is None:
        parts = _compute(graph, num_parts, method, seed)
        _cache.write(path, parts)
    return parts


def _compute(graph: Graph, num_parts: int, method: str, seed: int) -> Tensor:
    return check_parts(METHODS[method](graph, num_parts, seed), graph.num_nodes, num_parts)
