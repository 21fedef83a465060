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
from lmc.graph.csr import entry_chunks, entry_ranges
from lmc.graph.edges import mixed

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
        key = torch.minimum(row, col) * adj.num_rows + torch.maximum(row, col)  # the same for both directions
        kept.append((mixed(key) & 2**62 - 1) % torch.minimum(degree[row], degree[col]) < NEIGHBOURS)
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
    adj, generator = with_transpose(graph.adj.to("cpu")), torch.Generator().manual_seed(seed)
    parts = _cut_in_order(adj, grown(adj, CLUSTERS_PER_PART * num_parts, GROW_ROUNDS, generator), num_parts)
    refine(adj, parts, num_parts, MAX_BALANCE, REFINE_ROUNDS, generator)
    return parts


def grown(adj: CSR, least: int, rounds: int, generator: torch.Generator) -> Tensor:
    """The cluster of every node, numbered without gaps, after so many rounds that begin with clusters of one node. A
    cluster has at most n / ``least`` nodes, so that at least about ``least`` clusters are left."""
    n = adj.num_rows
    clusters, bound = torch.arange(n), max(1, n // least)
    for _ in range(rounds if bound > 1 else 0):
        vote(adj, clusters, n, low=0, high=bound, generator=generator)
    return clusters.unique(return_inverse=True)[1]


def refine(adj: CSR, parts: Tensor, count: int, balance: float, rounds: int, generator: torch.Generator) -> None:
    """Move nodes between ``count`` parts, in place. The sizes of parts stay between the mean divided by ``balance`` and
    ``balance`` times the mean."""
    n = adj.num_rows
    low, high = max(1, int(n / count / balance)), int(np.ceil(balance * n / count))
    for _ in range(rounds):
        vote(adj, parts, count, low=low, high=high, generator=generator)


def vote(adj: CSR, labels: Tensor, count: int, *, low: int, high: int, generator: torch.Generator) -> None:
    """One round in place, by chunks of edges: half of the nodes move to the label of most of their neighbours, where
    sizes allow."""
    size = torch.bincount(labels, minlength=count)
    for rows, entries in entry_ranges(adj):
        own = labels[rows].clone()
        degree = adj.indptr[rows.start : rows.stop + 1].diff().long()
        row = torch.arange(own.numel()).repeat_interleave(degree)
        pairs, votes = (row * count + labels[adj.indices[entries].long()]).unique(return_counts=True)
        row, label = pairs // count, pairs % count
        # ties are broken at random; two nodes that swap labels at once would do so forever, so half of the nodes stay
        score = votes + 0.5 * torch.rand(votes.numel(), generator=generator, dtype=torch.float64)
        top = torch.zeros(own.numel(), dtype=torch.float64).scatter_reduce_(0, row, score, "amax")
        winner, mine = score == top[row], label == own[row]
        best = own.index_copy(0, row[winner], label[winner])
        gain = top.floor() - torch.zeros_like(top).index_copy_(0, row[mine], votes[mine].double())
        stays = (best == own) | (torch.rand(own.numel(), generator=generator) < 0.5)
        movers = gain.where(~stays, -1.0).sort(descending=True, stable=True).indices[: int((~stays).sum())]
        movers = movers[_ranks(best[movers]) < (high - size)[best[movers]]]
        movers = movers[_ranks(own[movers]) < (size - low)[own[movers]]]
        labels[rows] = own.index_copy(0, movers, best[movers])
        size.index_add_(0, best[movers], torch.ones_like(movers))
        size.index_add_(0, own[movers], -torch.ones_like(movers))


def _ranks(groups: Tensor) -> Tensor:
    """For every element, how many earlier elements are in its group."""
    ordered, order = groups.sort(stable=True)
    return torch.empty_like(order).index_copy_(
        0, order, torch.arange(order.numel()) - torch.searchsorted(ordered, ordered)
    )


def _cut_in_order(adj: CSR, clusters: Tensor, num_parts: int) -> Tensor:
    """The part of every node: clusters in an order that keeps neighbours close, cut into ranges of equal size."""
    n, size = clusters.numel(), torch.bincount(clusters).numpy()
    ones, columns = np.ones(adj.nnz, dtype=np.float32), adj.indices.numpy()
    edges = sp.csr_array((ones, columns, adj.indptr.numpy()), shape=adj.shape)
    member = sp.csr_array((np.ones(n, np.float32), clusters.numpy(), np.arange(n + 1)), shape=(n, size.size))
    order = reverse_cuthill_mckee(sp.csr_array(member.T @ edges @ member), symmetric_mode=True)
    middle = 2 * np.cumsum(size[order]) - size[order]  # twice the middle of each cluster's range
    parts = np.empty(size.size, dtype=np.int64)
    parts[order] = middle * num_parts // (2 * n)
    return torch.from_numpy(parts)[clusters]
