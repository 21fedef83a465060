"""``partition``: one function for every partitioner, with a cache on disk; check, quality and groups of its result.

A large partition takes minutes, and the same one is needed again and again. The name of its file in the cache contains
everything that it depends on: the structure of the graph, the number of parts, the method and the seed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmc.errors import ConfigError, GraphError, typed
from lmc.files import replacing, user_cache
from lmc.graph import CSR, Graph, with_transpose
from lmc.graph.csr import entry_chunks, pointers
from lmc.graph.submatrices import permuted
from lmc.partition.partitioners import (
    fast_kaminpar_parts,
    kaminpar_parts,
    metis_parts,
    propagated_parts,
    random_parts,
    work_parts,
)
from lmc.partition.stream import streamed_parts

METHODS: dict[str, Callable[[Graph, int, int], Tensor]] = {
    "metis": metis_parts,
    "metis-work": work_parts,
    "kaminpar": kaminpar_parts,
    "kaminpar-fast": fast_kaminpar_parts,
    "random": random_parts,
    "label-propagation": propagated_parts,
    "stream": streamed_parts,
}
NAMES = ("auto", *METHODS)
LARGE = 3 * 10**7
"""Entries of the adjacency from which on ``"auto"`` avoids METIS, which takes about half a minute for so many."""


@typed
def partition(graph: Graph, num_parts: int, method: str = "auto", seed: int = 0, cache: bool = True) -> Tensor:
    """A part 0 .. ``num_parts`` - 1 for every node, int64 [n]; no part is empty.

    Args:
        method: ``"metis"``, ``"metis-work"`` (equal sums of rows and entries instead of equal rows), ``"kaminpar"``
            (faster, and fewer edges cut; needs the package kaminpar), ``"kaminpar-fast"`` (its fast settings on a
            sample of the edges), ``"label-propagation"`` (for graphs too large for both), ``"stream"`` (for graphs
            larger than memory: label propagation over chunks of edges, then METIS on one piece at a time) or
            ``"random"``. ``"auto"`` is METIS, and ``"kaminpar-fast"`` for graphs of :data:`LARGE` entries and more
            where kaminpar is installed.
        seed: the same seed gives the same parts.
        cache: store the result in the user's cache folder and read it the next time (not for random parts, which
            are drawn faster than read).
    """
    if method not in NAMES:
        raise ConfigError(f"expected a method of {', '.join(NAMES)} (got {method!r}): choose one of them")
    method = chosen(method, graph)
    if num_parts < 1:
        raise ConfigError(f"expected num_parts as a whole number, 1 or more (got {num_parts}): raise it")
    if num_parts > graph.num_nodes:
        raise GraphError(f"expected at most one part per node, {graph.num_nodes} (got num_parts={num_parts}): lower it")
    if num_parts == 1:
        return torch.zeros(graph.num_nodes, dtype=torch.int64)
    path = _cache_file(graph, num_parts, method, seed)
    cache = cache and method != "random"
    parts = _read(path, graph.num_nodes, num_parts) if cache else None
    if parts is None:
        parts = check_parts(METHODS[method](graph, num_parts, seed), graph.num_nodes, num_parts)
        if cache:
            _write(path, parts)
    return parts


def chosen(method: str, graph: Graph) -> str:
    """The partitioner that ``method`` names, also where it is "auto"."""
    if method != "auto":
        return method
    fast = graph.adj.nnz >= LARGE and importlib.util.find_spec("kaminpar") is not None
    return "kaminpar-fast" if fast else "metis"


def is_cached(graph: Graph, num_parts: int, method: str = "auto", seed: int = 0) -> bool:
    """Whether :func:`partition` has stored these parts before."""
    return _cache_file(graph, num_parts, chosen(method, graph), seed).exists()


def _cache_file(graph: Graph, num_parts: int, method: str, seed: int) -> Path:
    return user_cache() / "partitions" / f"{graph.fingerprint}-{method}-{num_parts}-{seed}.npz"


def _read(path: Path, n: int, num_parts: int) -> Tensor | None:
    """The stored parts; None if the file is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return check_parts(archive["parts"].astype(np.int64), n, num_parts)
    except Exception:  # a damaged zip may raise anything, and the parts can be computed again
        return None


def _write(path: Path, parts: Tensor) -> None:
    """Store ``parts`` atomically; a folder that cannot be written is not an error."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            np.savez_compressed(stream, parts=parts.cpu().numpy().astype(np.int32))


def check_parts(parts: Any, n: int, num_parts: int | None = None) -> Tensor:
    """``parts`` as int64 [n]; every part 0 .. b-1 has a node.

    Args:
        parts: the part of every node: a tensor, array or list of whole numbers.
        num_parts: b, if known; by default the largest part plus one.
    """
    parts = torch.as_tensor(parts)
    if parts.dim() != 1 or parts.numel() != n:
        raise GraphError(
            f"expected one part per node, [{n}] (got shape {list(parts.shape)}): make the assignment for this graph"
        )
    if parts.is_floating_point() or parts.is_complex() or parts.dtype == torch.bool:
        raise GraphError(f"expected whole part numbers (got {parts.dtype}): convert them to int64")
    parts = parts.long()
    if n == 0 or int(parts.min()) < 0:
        raise GraphError("expected parts numbered from 0 (got a negative or no number): renumber them")
    b = int(parts.max()) + 1
    if num_parts is not None and b > num_parts:
        raise GraphError(f"expected parts in [0, {num_parts}) (got part {b - 1}): renumber them")
    b = b if num_parts is None else num_parts
    # more parts than nodes cannot all be in use, and counting them could exhaust memory
    empty = torch.bincount(parts, minlength=b) == 0 if b <= n else None
    if empty is None or bool(empty.any()):
        which = "more parts than nodes" if empty is None else f"part {int(empty.nonzero()[0])} empty"
        raise GraphError(
            f"expected every part of 0 .. {b - 1} in use (got {which}): renumber them, "
            f"e.g. with parts.unique(return_inverse=True)[1]"
        )
    return parts


@dataclass(frozen=True)
class Quality:
    """Figures of one partition.

    Args:
        edge_cut: the share of edges between two parts.
        balance: the size of the largest part over the mean.
        halo_ratio: the mean over parts of |N(V_B) \\ V_B| / |V_B|.
        kept: 1 - ``edge_cut``, the share of messages that a method without a halo keeps.
    """

    num_parts: int
    edge_cut: float
    balance: float
    halo_ratio: float
    kept: float


def quality(graph: Graph, parts: Tensor) -> Quality:
    """Measure ``parts`` (a part for every node) on ``graph``."""
    n, adj = graph.num_nodes, replace(graph.adj, values=None, edge_data=None)
    parts = check_parts(parts, n).to(graph.device)
    size = torch.bincount(parts)
    b = size.numel()
    if bool((parts.diff() < 0).any()):  # nodes of a part are made neighbours in memory
        adj = permuted(adj, parts.argsort(stable=True), adj.files)
    crossing, halo = _outside(adj, size)
    edge_cut = int(crossing) / max(adj.nnz, 1)
    if graph.directed:
        halo = _outside(with_transpose(adj), size)[1]
    balance, halo_ratio = float(size.max()) * b / n, float((halo / size).mean())
    return Quality(b, edge_cut, balance, halo_ratio, kept=1.0 - edge_cut)


def _outside(adj: CSR, size: Tensor) -> tuple[Tensor, Tensor]:
    """The number of entries whose column is in another part, and for every part the number of such columns; part k has
    ``size[k]`` consecutive rows."""
    mark = torch.zeros(adj.num_rows, dtype=torch.bool, device=adj.device)
    crossing, halo, stop = torch.zeros_like(size[0]), torch.zeros_like(size), 0
    starts = adj.indptr[pointers(size, torch.int64)].tolist()
    for part, rows in enumerate(size.tolist()):
        start, stop = stop, stop + rows
        columns = adj.indices[starts[part] : starts[part + 1]]
        crossing += ((columns < start) | (columns >= stop)).sum()
        mark.index_fill_(0, columns.long(), True)
        mark[start:stop] = False
        halo[part] = mark.sum()
        mark.zero_()
        adj.release()
    return crossing, halo


def group_parts(graph: Graph, parts: Tensor, ranks: int) -> Tensor:
    """The rank that owns each part, int64 [number of parts].

    Ranks own as many parts as each other, or one part less, since a rank without a batch waits for the others. A group
    starts with the free part that has the fewest edges to other free parts, and grows by the free part with the largest
    share of its edges inside of the group. The parts themselves do not depend on the number of ranks.
    """
    num_parts = int(parts.max()) + 1
    if num_parts < ranks:
        raise ConfigError(
            f"expected at least one part per rank, {ranks} (got {num_parts} parts): raise num_parts, or start fewer "
            "ranks"
        )
    parts = parts.cpu()
    adj, edges = graph.adj.to("cpu"), torch.zeros(num_parts**2, dtype=torch.float64)
    for row, entries in entry_chunks(adj):
        edges += torch.bincount(parts[row] * num_parts + parts[adj.indices[entries].long()], minlength=num_parts**2)
    edges = edges.view(num_parts, num_parts)
    edges = edges + edges.t() - 2 * edges.diag().diag()
    owners = torch.full((num_parts,), -1, dtype=torch.int64)
    to_free = edges.sum(1)
    for rank in range(ranks):
        to_group = torch.zeros_like(to_free)
        part = int(to_free.where(owners < 0, torch.inf).argmin())
        for _ in range(num_parts // ranks + (rank < num_parts % ranks)):
            owners[part] = rank
            to_group += edges[part]
            to_free -= edges[part]
            part = int((to_group / (to_group + to_free + 1)).where(owners < 0, -1.0).argmax())
    return owners
