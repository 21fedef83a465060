"""The aggregation matrices P of a graph.

All of them store the pattern of A + I, also a diagonal of zeros, so that halos, degrees and blocks are the same for
every model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.errors import ConfigError, GraphError
from lmc.graph.csr import CSR, pointer_dtype, row_chunks

NORMALISATIONS = ("gcn", "mean", "sum")
"""D^-1/2 (A + I) D^-1/2; D^-1 A with D the degrees of A; A + I. The second is not its own transpose.

With edge weights, A holds the weights, a degree is the sum of a row, and the self-loops of A + I have the weight 1, as
in PyG's ``gcn_norm``. Row i of A holds the edges that end in node i, so on a directed graph degrees are in-degrees, and
none of the three is its own transpose.
"""

CHUNK = 2**22
"""Entries that are sorted and weighted at a time, which bounds the memory of the int64 and float64 temporaries."""


def with_self_loops(adj: CSR) -> CSR:
    """A + I, columns sorted; A has no self-loops. Where A has weights, loops have the weight 1; edge data of loops is
    zero."""
    n, device = adj.num_rows, adj.device
    loops = torch.arange(n, device=device)
    dtype = pointer_dtype(adj.nnz + n)
    indptr = adj.indptr.to(dtype) + torch.arange(n + 1, dtype=dtype, device=device)
    indices = torch.empty(adj.nnz + n, dtype=torch.int32, device=device)
    given = [(adj.values, 1), (adj.edge_data, 0)]
    values, data = (None if a is None else a.new_full((adj.nnz + n, *a.shape[1:]), loop) for a, loop in given)
    for rows, entries in row_chunks(adj, CHUNK):
        nodes = loops[rows]
        row = nodes.repeat_interleave(adj.degrees()[rows], output_size=entries.stop - entries.start)
        key, order = torch.cat([row * n + adj.indices[entries], nodes * n + nodes]).sort()
        indices[entries.start + rows.start : entries.stop + rows.stop] = key % n
        for source, target in ((adj.values, values), (adj.edge_data, data)):
            if source is not None and target is not None:
                there = order < row.numel()
                at = there.nonzero().squeeze(1) + (entries.start + rows.start)
                target[at] = source[entries][order[there]]
    return CSR(indptr, indices, values, adj.num_cols, edge_data=data)


def gcn_norm(adj: CSR, dtype: torch.dtype = torch.float32) -> CSR:
    """P = D^-1/2 (A + I) D^-1/2 with D the row sums of A + I; symmetric where A is."""
    looped = with_self_loops(adj)
    weights = looped.values
    scale = (looped.degrees().to(torch.float64) if weights is None else row_sums(looped, weights)).rsqrt()
    values = torch.empty(looped.nnz, dtype=dtype, device=looped.device)
    for rows, entries in row_chunks(looped, CHUNK):
        each = scale[rows].repeat_interleave(looped.degrees()[rows], output_size=entries.stop - entries.start)
        each = each * scale[looped.indices[entries]]
        values[entries] = (each if weights is None else each * weights[entries]).to(dtype)
    return CSR(looped.indptr, looped.indices, values, looped.num_cols, adj.symmetric, edge_data=weights)


def normalise(adj: CSR, kind: str, dtype: torch.dtype = torch.float32) -> CSR:
    """The aggregation matrix of this kind, one of :data:`NORMALISATIONS`; its edge data are the edge weights."""
    check_weights(adj, kind)
    if kind == "gcn":
        return gcn_norm(adj, dtype)
    looped = with_self_loops(adj)
    weights = looped.values
    if adj.symmetric and weights is None:
        return renormalise(CSR(looped.indptr, looped.indices, looped.indices.to(dtype), looped.num_cols, True), kind)
    row = looped.row_index()
    values = torch.ones(looped.nnz, dtype=torch.float64, device=looped.device) if weights is None else weights.double()
    if kind == "mean":
        values = values.where(row != looped.indices, 0)
        sums = row_sums(looped, values)
        values = values / sums.where(sums > 0, 1)[row]
    symmetric = adj.symmetric and kind == "sum"
    return CSR(looped.indptr, looped.indices, values.to(dtype), looped.num_cols, symmetric, edge_data=weights)


def adjacency_of(block: CSR, adj: CSR) -> CSR:
    """The adjacency of the subgraph that ``block``, cut out of an aggregation matrix of the graph ``adj``, is the
    pattern of."""
    bare = block.filtered(block.row_index() != block.indices)
    weights, attr = None, bare.edge_data
    if adj.values is not None and attr is not None:
        weights, attr = (attr, None) if attr.dim() == 1 else (attr[:, 0], attr[:, 1:])
    return CSR(bare.indptr, bare.indices, weights, bare.num_cols, adj.symmetric, edge_data=attr)


def row_sums(matrix: CSR, values: Tensor) -> Tensor:
    """The sum over every row of one number per stored entry, in float64."""
    sums = torch.zeros(matrix.num_rows, dtype=torch.float64, device=matrix.device)
    return sums.index_add_(0, matrix.row_index(), values.double())


def check_weights(adj: CSR, kind: str) -> None:
    """Refuse negative edge weights where the normalisation divides by sums of them."""
    if adj.values is None or kind not in ("gcn", "mean") or not bool((adj.values < 0).any()):
        return
    raise GraphError(
        f"expected edge weights of at least 0 for the normalisation {kind!r} (got {float(adj.values.min()):g}): its "
        "degrees are sums of weights; shift or clip them, or use a model that sums, such as GIN"
    )


def renormalise(block: CSR, kind: str = "gcn") -> CSR:
    """Cluster-GCN: the normalisation of the subgraph whose pattern, with self-loops, is ``block``.

    For unweighted, undirected graphs: the pattern must be symmetric, and of the values only the dtype is read.
    """
    row, col = block.row_index(), block.indices
    compute_dtype = torch.promote_types(block.dtype, torch.float32)  # rounded once, at the end
    if kind == "gcn":
        scale = block.degrees().to(compute_dtype).clamp(min=1).rsqrt()
        values = (scale[row] * scale[col]).to(block.dtype)
        return CSR(block.indptr, col, values, block.num_cols, symmetric=block.symmetric)
    if kind == "sum":
        return CSR(block.indptr, col, torch.ones_like(block.data), block.num_cols, symmetric=True)
    if kind != "mean":
        raise ConfigError(f"expected a normalisation in {NORMALISATIONS} (got {kind!r})")
    neighbour = row != col
    inverse = (block.degrees() - 1).clamp(min=1).to(compute_dtype).reciprocal().to(block.dtype)
    mean = CSR(block.indptr, col, inverse[row] * neighbour, block.num_cols)
    # the pattern is symmetric, so the transpose has the same arrays with the weights of the other end
    transpose = CSR(block.indptr, col, inverse[col] * neighbour, block.num_cols)
    mean._cache["t",], transpose._cache["t",] = transpose, mean
    return mean
