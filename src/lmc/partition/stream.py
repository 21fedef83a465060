"""Parts of a graph that is read in chunks: label propagation for a coarse division, then METIS inside of each piece.

    clusters   every node joins the cluster of most of its neighbours, as long as its size is bounded
    pieces     METIS divides the graph between clusters, which is small
    borders    nodes on borders move to the piece of most of their neighbours
    parts      METIS divides each piece, whose edges are in memory one piece at a time

The rounds over all nodes read the edges in chunks. Beside a chunk they need a few whole numbers per node.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.graph import CSR, Graph
from lmc.graph.csr import entry_chunks, from_rows, with_transpose
from lmc.graph.submatrices import induced
from lmc.partition.partitioners import bare, fill_empty, grown, metis, refine

PIECE_ENTRIES = 2**27
"""Entries of a piece, by default: METIS needs about 50 bytes for each."""
CLUSTERS_PER_PIECE = 400
PAIRS_PER_NODE, MIN_PAIRS = 2, 2**20
"""How many edges the graph between clusters may have."""
GROW_ROUNDS = 5
REFINE_ROUNDS = 6
MAX_BALANCE = 1.05
"""The largest size of a piece over the mean while borders are refined."""


def streamed_parts(graph: Graph, num_parts: int, seed: int = 0) -> Tensor:
    """Parts of nearly equal size; the same seed gives the same parts."""
    pieces = min(num_parts, max(2, -(-graph.adj.nnz // PIECE_ENTRIES)))
    parts, _ = parts_in_pieces(graph, coarse_pieces(graph, pieces, seed), num_parts, seed)
    return fill_empty(parts, num_parts)  # a piece of few nodes has fewer parts than its share


def coarse_pieces(graph: Graph, num_pieces: int, seed: int = 0) -> Tensor:
    """A piece 0 .. ``num_pieces`` - 1 for every node, int64 [n]: connected regions of nearly equal size."""
    if num_pieces == 1:
        return torch.zeros(graph.num_nodes, dtype=torch.int64)
    adj, generator = graph.adj.to("cpu"), torch.Generator().manual_seed(seed)
    clusters = grown(adj, CLUSTERS_PER_PIECE * num_pieces, GROW_ROUNDS, generator)
    size = torch.bincount(clusters)
    labels = metis(_between(adj, clusters, size.numel()), num_pieces, seed, size.tolist())[clusters]
    refine(adj, labels, num_pieces, MAX_BALANCE, REFINE_ROUNDS, generator)
    return fill_empty(labels, num_pieces)


def parts_in_pieces(graph: Graph, pieces: Tensor, num_parts: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """The part of every node and the piece of every part; a piece is divided into ``num_parts`` / pieces parts, or into
    one more."""
    count, adj = int(pieces.max()) + 1, graph.adj.to("cpu")
    parts, owners = torch.empty_like(pieces), list[int]()
    local = torch.full((graph.num_nodes,), -1, dtype=torch.int32)
    for piece in range(count):
        nodes = (pieces == piece).nonzero().squeeze(1)
        num = min(num_parts // count + (piece < num_parts % count), nodes.numel())
        local[nodes] = torch.arange(nodes.numel(), dtype=torch.int32)
        inside = with_transpose(bare(induced(adj, nodes, local)))
        parts[nodes] = len(owners) + (metis(inside, num, seed) if num > 1 else 0)
        local[nodes] = -1
        owners += [piece] * num
    return parts, torch.tensor(owners)


def _between(adj: CSR, clusters: Tensor, count: int) -> CSR:
    """The graph between clusters, in both directions; its values are numbers of edges. Where there are more pairs of
    clusters than :data:`PAIRS_PER_NODE` allows, those with the fewest edges so far are left out."""
    keys, weights = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    limit = max(MIN_PAIRS, PAIRS_PER_NODE * adj.num_rows)
    for row, entries in entry_chunks(adj):
        a, b = clusters[row], clusters[adj.indices[entries].long()]
        chosen = a < b if adj.symmetric else a != b  # a symmetric graph has every edge in both directions
        a, b = a[chosen], b[chosen]
        found, counts = (torch.minimum(a, b) * count + torch.maximum(a, b)).unique(return_counts=True)
        known = torch.searchsorted(keys, found)
        old = known < keys.numel()
        old[old.clone()] = keys[known[old]] == found[old]
        weights.index_add_(0, known[old], counts[old])
        keys, order = torch.cat([keys, found[~old]]).sort()
        weights = torch.cat([weights, counts[~old]])[order]
        if keys.numel() > limit:
            kept = weights > weights.kthvalue(keys.numel() - limit).values
            keys, weights = keys[kept], weights[kept]
    keys, order = torch.cat([keys, keys % count * count + keys // count]).sort()
    weights = torch.cat([weights, weights])[order] * (2 if adj.symmetric else 1)
    return from_rows(keys // count, keys % count, weights, (count, count))
