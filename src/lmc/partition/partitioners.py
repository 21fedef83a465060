"""The partitioners: METIS through pymetis, KaMinPar where it is installed, random parts, and label propagation for
graphs too large for both.

In label propagation every node starts in a cluster of its own and joins the cluster of most of its neighbours, as long
as its size is bounded. The clusters are ordered so that neighbours are close, and cut into parts of equal size. Further
rounds of the same vote, now between parts, refine the borders. The memory is a few copies of the adjacency, and nothing
loops over nodes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from lmc.errors import ConfigError
from lmc.graph import CSR, Graph, with_transpose
from lmc.graph.csr import entry_chunks

GROW_ROUNDS = 8
REFINE_ROUNDS = 12
CLUSTERS_PER_PART = 8  # the size of clusters bounds the imbalance of the first cut
IMBALANCE = 0.03  # how much larger than the mean KaMinPar may make a part; METIS' own default is the same
WORK_SHARE = 4.0  # how much the entries of a mean node weigh against its row
NEIGHBOURS = 12  # edges of a node that KaMinPar's fast settings read; more of them hardly lower the cut
LARGE_K = 256  # more parts than this: KaMinPar's settings for many parts, 2.1 s instead of 3.1 s at the same cut (800)
MAX_BALANCE = 1.2  # the largest size of a part, over the mean, while borders are refined


def metis_parts(graph: Graph, num_parts: int, seed: int = 0, weights: list[int] | None = None) -> Tensor:
    """Parts of nearly equal size, or of equal sums of ``weights`` of nodes, with few edges cut; the same seed gives the
    same parts."""
    return metis(bare(with_transpose(graph.adj.to("cpu"))), num_parts, seed, weights)


def bare(adj: CSR) -> CSR:
    """The pattern alone, on which parts depend."""
    return CSR(adj.indptr, adj.indices, None, adj.num_cols, adj.symmetric)


def metis(adj: CSR, num_parts: int, seed: int = 0, weights: list[int] | None = None) -> Tensor:
    """METIS on a symmetric pattern; its values, where it has any, are whole weights of edges."""
    try:
        import pymetis
    except ImportError as error:
        raise ConfigError(
            "expected pymetis for method='metis' (got none): pip install pymetis, or use method='label-propagation'"
        ) from error
    if adj.indptr.dtype != torch.int32:
        raise ConfigError(
            f"expected fewer than 2^31 entries for method='metis' (got {adj.nnz:,}): use method='stream' or "
            "method='label-propagation'"
        )
    # METIS passes the seed to srand, for which 0 and 1 are the same
    given: dict[str, Any] = {"options": pymetis.Options(seed=(seed + 1) % 2**31), "vweights": weights}
    buffers = hasattr(pymetis, "CSRAdjacency")  # newer versions of pymetis read arrays without a list of objects
    if adj.values is not None:
        given["eweights"] = adj.values.numpy() if buffers else adj.values.tolist()
    starts, neighbours = adj.indptr.numpy(), adj.indices.numpy()
    if buffers:
        rows = pymetis.CSRAdjacency(adj_starts=starts, adjacent=neighbours)
        _, parts = pymetis.part_graph(num_parts, rows, **given)
    else:
        _, parts = pymetis.part_graph(num_parts, xadj=starts, adjncy=neighbours, **given)
    return fill_empty(torch.as_tensor(parts, dtype=torch.int64), num_parts)


def work_parts(graph: Graph, num_parts: int, seed: int = 0) -> Tensor:
    """Parts of METIS with nearly equal work: the weight of a node is 1 + 4 deg / mean deg, in units of 1/16."""
    degree = with_transpose(graph.adj.to("cpu")).degrees().double()
    weight = 1 + WORK_SHARE * degree / degree.mean().clamp(min=1e-9)
    return metis_parts(graph, num_parts, seed, (16 * weight).round().long().tolist())


def kaminpar_parts(graph: Graph, num_parts: int, seed: int = 0) -> Tensor:
    """Parts of nearly equal size with fewer edges cut than by METIS; the same seed gives the same parts."""
    adj = with_transpose(graph.adj.to("cpu"))
    return _kaminpar(adj, num_parts, seed, "largek" if num_parts > LARGE_K else "default")


def fast_kaminpar_parts(graph: Graph, num_parts: int, seed: int = 0) -> Tensor:
    """Parts of KaMinPar with its fast settings on the edges that :func:`thinned` keeps; the same seed gives the same
    parts."""
    return _kaminpar(thinned(with_transpose(graph.adj.to("cpu"))), num_parts, seed, "fast")


def thinned(adj: CSR) -> CSR:
    """The pattern of a random choice of edges, the same in every call.

    An edge is kept with the probability ``NEIGHBOURS`` / d, and at least 1/4, where d is the smaller degree of its two
    ends: a partitioner takes less time for fewer edges, and nodes of few edges keep them all.
    """
    degree, kept = adj.degrees().long().clamp(max=4 * NEIGHBOURS), []
    for row, entries in entry_chunks(adj):
        col = adj.indices[entries].long()
        mixed = torch.minimum(row, col) * adj.num_rows + torch.maximum(row, col)  # the same for both directions
        for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
            mixed = (mixed ^ (mixed >> shift)) * factor
        kept.append((mixed & 2**62 - 1) % torch.minimum(degree[row], degree[col]) < NEIGHBOURS)
    return bare(adj).filtered(torch.cat(kept)) if kept else adj


def _kaminpar(adj: CSR, num_parts: int, seed: int, settings: str) -> Tensor:
    """KaMinPar on a symmetric pattern, on one thread: with more of them, its parts differ from call to call."""
    try:
        import kaminpar
    except ImportError as error:
        raise ConfigError(
            "expected kaminpar for method='kaminpar' (got none): pip install kaminpar, or use method='metis'"
        ) from error
    with tempfile.TemporaryDirectory() as folder:  # the package reads graphs from files only
        path = Path(folder) / "graph.parhip"
        with path.open("wb") as file:
            _write_parhip(adj, file)
        stored = kaminpar.load_graph(str(path), kaminpar.GraphFileFormat.PARHIP)
    kaminpar.reseed(seed % 2**31)
    parts = kaminpar.KaMinPar(1, kaminpar.context_by_name(settings)).compute_partition(
        stored, k=num_parts, eps=IMBALANCE
    )
    return fill_empty(torch.as_tensor(parts, dtype=torch.int64), num_parts)


def _write_parhip(adj: CSR, file: BinaryIO) -> None:
    """Write the pattern in ParHIP's binary format: a header, where the neighbours of each node begin, the neighbours.

    The first number of the header says by its bits that edges (1) and nodes (2) have no weights and that the numbers of
    nodes take 32 bits (8).
    """
    first = 8 * (3 + adj.num_rows + 1)  # bytes before the neighbours
    np.array([1 | 2 | 8, adj.num_rows, adj.nnz], dtype=np.uint64).tofile(file)
    (adj.indptr.numpy().astype(np.uint64) * 4 + np.uint64(first)).tofile(file)
    adj.indices.numpy().astype(np.uint32, copy=False).tofile(file)


def fill_empty(parts: Tensor, num_parts: int) -> Tensor:
    """Move one node of a part that has several into every empty part.

    METIS and KaMinPar may leave parts empty when they have only a few nodes each, and every method needs all parts.
    """
    empty = (torch.bincount(parts, minlength=num_parts) == 0).nonzero().squeeze(1)
    if empty.numel() == 0:
        return parts
    order = parts.sort(stable=True).indices
    grouped = parts[order]
    spare = order[1:][grouped[1:] == grouped[:-1]]  # all but the first node of every part
    size = torch.bincount(parts, minlength=num_parts)
    spare = spare[size[parts[spare]].sort(descending=True, stable=True).indices]
    parts = parts.clone()
    parts[spare[: empty.numel()]] = empty
    return parts


def random_parts(graph: Graph, num_parts: int, seed: int = 0) -> Tensor:
    """Random parts whose sizes differ by at most one node: the baseline that every partitioner must beat."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(graph.num_nodes, generator=generator) % num_parts


def propagated_parts(graph: Graph, num_parts: int, seed: int = 0) -> Tensor:
    """Parts at most about 1.2 times the mean size; the same seed gives the same parts."""
    n = graph.num_nodes
    rng = np.random.default_rng(seed)
    pattern = with_transpose(graph.adj.to("cpu"))
    ones = np.ones(pattern.nnz, dtype=np.float32)
    adj = sp.csr_array((ones, pattern.indices.numpy(), pattern.indptr.numpy()), shape=pattern.shape)
    clusters = np.arange(n)
    bound = max(1, n // (CLUSTERS_PER_PART * num_parts))
    if bound > 1:
        for _ in range(GROW_ROUNDS):
            clusters = _vote(adj, clusters, n, low=0, high=bound, rng=rng)
        clusters = np.unique(clusters, return_inverse=True)[1]
    parts = _parts_of_clusters(adj, clusters, num_parts)[clusters]
    low, high = int(n / num_parts / MAX_BALANCE), int(np.ceil(MAX_BALANCE * n / num_parts))
    for _ in range(REFINE_ROUNDS):
        parts = _vote(adj, parts, num_parts, low=max(1, low), high=high, rng=rng)
    return torch.from_numpy(parts.astype(np.int64))


def _vote(
    adj: sp.csr_array, labels: np.ndarray, count: int, *, low: int, high: int, rng: np.random.Generator
) -> np.ndarray:
    """One round: half of the nodes move to the label with most of their neighbours, where sizes allow."""
    best, gain = _majority(adj, labels, count, rng)
    # neighbours that swap labels at once would do so forever, so a random half of the nodes stays
    movers = np.flatnonzero((gain > 0) & (rng.random(labels.size) < 0.5))
    movers = movers[np.argsort(-gain[movers], kind="stable")]
    size = np.bincount(labels, minlength=count)
    movers = movers[_rank(best[movers]) < (high - size)[best[movers]]]
    movers = movers[_rank(labels[movers]) < (size - low)[labels[movers]]]
    moved = labels.copy()
    moved[movers] = best[movers]
    return moved


def _majority(
    adj: sp.csr_array, labels: np.ndarray, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """For every node the most frequent label of its neighbours, and how many more neighbours have it than its own."""
    n = labels.size
    own = sp.csr_array((np.ones(n, np.float32), labels.astype(np.int32), np.arange(n + 1)), shape=(n, count))
    votes = adj @ own  # [n, count], as sparse as the adjacency
    degree = np.diff(votes.indptr)
    row = np.repeat(np.arange(n), degree)
    own_votes = np.zeros(n, np.float32)
    is_own = votes.indices == labels[row]
    own_votes[row[is_own]] = votes.data[is_own]
    score = votes.data + 0.5 * rng.random(votes.nnz, dtype=np.float32)  # breaks ties at random
    top = np.zeros(n, np.float32)
    some = degree > 0
    top[some] = np.maximum.reduceat(score, votes.indptr[:-1][some])
    winner = score == top[row]
    best = labels.copy()
    best[row[winner]] = votes.indices[winner]
    return best, np.where(best == labels, 0.0, np.floor(top) - own_votes)


def ranks_in_groups(groups: Tensor) -> Tensor:
    """For every element, how many earlier elements are in its group."""
    return torch.from_numpy(_rank(groups.numpy()))


def _rank(groups: np.ndarray) -> np.ndarray:
    """The same of numpy arrays."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    first = np.searchsorted(ordered, ordered, side="left")
    rank = np.empty(groups.size, dtype=np.int64)
    rank[order] = np.arange(groups.size) - first
    return rank


def _parts_of_clusters(adj: sp.csr_array, clusters: np.ndarray, num_parts: int) -> np.ndarray:
    """The part of every cluster: clusters in an order that keeps neighbours close, cut into ranges of equal size."""
    n, count = clusters.size, int(clusters.max()) + 1
    member = sp.csr_array((np.ones(n, np.float32), clusters, np.arange(n + 1)), shape=(n, count))
    between = sp.csr_array(member.T @ adj @ member)
    order = reverse_cuthill_mckee(between, symmetric_mode=True)
    size = np.bincount(clusters, minlength=count)[order]
    middle = 2 * np.cumsum(size) - size  # twice the middle of each cluster's range
    parts = np.empty(count, dtype=np.int64)
    parts[order] = middle * num_parts // (2 * n)
    return parts
