"""The aggregation matrices P of a graph.

All of them store the pattern of A + I, also a diagonal of zeros, so that halos, degrees and blocks are the same for
every model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lmc.errors import ConfigError, GraphError
from lmc.graph.csr import CSR, empty_entries, entry_chunks, entry_ranges, pointer_dtype
from lmc.graph.equal_rows import for_equal_rows, numbers, spans

NORMALISATIONS = ("gcn", "mean", "sum")
"""D^-1/2 (A + I) D^-1/2; D^-1 A with D the degrees of A; A + I. The second is not its own transpose.

With edge weights, A holds the weights, a degree is the sum of a row, and the self-loops of A + I have the weight 1, as
in PyG's ``gcn_norm``. Row i of A holds the edges that end in node i, so on a directed graph degrees are in-degrees, and
none of the three is its own transpose.
"""

Rule = Callable[[Tensor, Tensor, slice], Tensor]
"""The values of entries: (row of each, column of each, the entries) -> one number for each; rows may broadcast."""


def with_self_loops(adj: CSR, dtype: torch.dtype | None = None, rule: Rule | None = None) -> CSR:
    """A + I, columns sorted; A has no self-loops. Where A has weights, loops have the weight 1; edge data of loops is
    zero.

    Args:
        dtype, rule: the values that A + I gets in the same pass, only for a matrix that is :func:`_bare`; None: none.
    """
    n, device = adj.num_rows, adj.device
    num, of_pointers = adj.nnz + n, pointer_dtype(adj.nnz + n)
    indptr = adj.indptr.to(of_pointers) + torch.arange(n + 1, dtype=of_pointers, device=device)
    indices = empty_entries(adj, torch.int32, num)
    values, data = (None if a is None else empty_entries(adj, a, num) for a in (adj.values, adj.edge_data))
    bare = _bare(adj)
    if rule is not None and dtype is not None:
        assert bare, "other matrices get their values from _weighted"
        values = empty_entries(adj, dtype, num)
    for rows, entries in entry_ranges(adj) if adj.files is not None or not bare else [(slice(0, n), slice(0, adj.nnz))]:
        if bare:
            _insert_loops(adj, rows, indptr, indices, values, rule)
        else:
            _sort_loops_in(adj, rows, entries, indices, values, data)
    return CSR(indptr, indices, values, adj.num_cols, edge_data=data, files=adj.files)


def _sort_loops_in(
    adj: CSR, rows: slice, entries: slice, indices: Tensor, values: Tensor | None, data: Tensor | None
) -> None:
    """Write the sorted columns of these rows of A + I into ``indices``, and their values and edge data."""
    n, nodes = adj.num_rows, torch.arange(rows.start, rows.stop, device=adj.device)
    counts = adj.indptr[rows.start : rows.stop + 1].diff()
    row = nodes.repeat_interleave(counts, output_size=entries.stop - entries.start)
    chunk = slice(entries.start + rows.start, entries.stop + rows.stop)
    key, order = torch.cat([row * n + adj.indices[entries], nodes * n + nodes]).sort()
    indices[chunk] = key % n
    for source, target, of_loop in ((adj.values, values, 1), (adj.edge_data, data, 0)):
        if source is not None and target is not None:
            there = order < row.numel()
            target[chunk] = of_loop
            target[there.nonzero().squeeze(1) + chunk.start] = source[entries][order[there]]


def _bare(adj: CSR) -> bool:
    """Whether a matrix is a pattern in the memory of the host, whose rows can be written by several threads."""
    return adj.values is None and adj.edge_data is None and adj.device.type == "cpu"


def _insert_loops(
    adj: CSR, some: slice, indptr: Tensor, indices: Tensor, values: Tensor | None, rule: Rule | None
) -> None:
    """Write the sorted columns of these rows of A + I, whose row pointers are ``indptr``, into ``indices``, and the
    numbers of ``rule`` into ``values`` while the columns are in the cache."""
    starts = adj.indptr[some.start : some.stop + 1]
    old, new = starts.numpy(), indptr[some].numpy()

    def insert(length: int, rows: np.ndarray) -> None:
        columns = np.empty((rows.size, length + 1), dtype=np.int32)
        columns[:, length] = rows + some.start
        if length:
            columns[:, :length] = spans(adj.indices, length)[old[rows]]
        columns.sort(axis=1)
        spans(indices, length + 1)[new[rows]] = columns
        if values is not None and rule is not None:
            found = rule(torch.from_numpy(rows + some.start).unsqueeze(1), torch.from_numpy(columns), slice(0, 0))
            spans(values, length + 1)[new[rows]] = numbers(found.to(values.dtype))

    for_equal_rows(starts.diff(), insert)


def _weighted(looped: CSR, dtype: torch.dtype, rule: Rule, symmetric: bool) -> CSR:
    """The pattern ``looped`` with the values of ``rule``; its edge data are the weights of ``looped``."""
    values = empty_entries(looped, dtype)
    if looped.values is None and looped.files is None and looped.device.type == "cpu":
        _weigh_rows(looped, values, rule)
    else:
        for row, entries in entry_chunks(looped):
            values[entries] = rule(row, looped.indices[entries], entries).to(dtype)
    return replace(looped, values=values, symmetric=symmetric, edge_data=looped.values)


def _of(number: Tensor, nodes: Tensor) -> Tensor:
    """``number[nodes]``, in a third of the time where ``nodes`` has two dimensions."""
    return number.index_select(0, nodes.reshape(-1)).view(nodes.shape)


def _weigh_rows(looped: CSR, values: Tensor, rule: Rule) -> None:
    """Write the values of a pattern in memory; its ``rule`` does not read the entries."""
    starts = looped.indptr.numpy()

    def weigh(length: int, rows: np.ndarray) -> None:
        at = starts[rows]
        columns = torch.from_numpy(spans(looped.indices, length)[at])
        found = rule(torch.from_numpy(rows).unsqueeze(1), columns, slice(0, 0))
        spans(values, length)[at] = numbers(found.to(values.dtype))

    for_equal_rows(looped.degrees(), weigh)


def gcn_norm(adj: CSR, dtype: torch.dtype = torch.float32) -> CSR:
    """P = D^-1/2 (A + I) D^-1/2 with D the row sums of A + I; symmetric where A is."""
    if _bare(adj) and adj.files is None:  # in one pass over the entries
        found = with_self_loops(adj, dtype, _gcn_rule((adj.degrees() + 1).double()))
        return replace(found, symmetric=adj.symmetric)
    looped = with_self_loops(adj)
    sums = looped.degrees().double() if looped.values is None else row_sums(looped, looped.values)
    return _weighted(looped, dtype, _gcn_rule(sums, looped.values), adj.symmetric)


def _gcn_rule(sums: Tensor, weights: Tensor | None = None) -> Rule:
    """The values of :func:`gcn_norm` from the row sums of A + I and its weights; None: all are 1."""
    scale = sums.rsqrt()

    def rule(row: Tensor, col: Tensor, entries: slice) -> Tensor:
        each = _of(scale, row) * _of(scale, col)
        return each if weights is None else each * weights[entries]

    return rule


def normalise(adj: CSR, kind: str, dtype: torch.dtype = torch.float32) -> CSR:
    """The aggregation matrix of this kind, one of :data:`NORMALISATIONS`; its edge data are the edge weights."""
    check_weights(adj, kind)
    if kind == "gcn":
        return gcn_norm(adj, dtype)
    if kind not in NORMALISATIONS:
        raise ConfigError(f"expected a normalisation in {NORMALISATIONS} (got {kind!r})")
    looped = with_self_loops(adj)
    weights = looped.values

    def weight(row: Tensor, col: Tensor, entries: slice) -> Tensor:
        return torch.ones_like(col, dtype=torch.float64) if weights is None else weights[entries].double()

    if kind == "sum":
        return _weighted(looped, dtype, weight, adj.symmetric)
    if adj.symmetric and weights is None:
        inverse = _inverse_degrees(looped, dtype)
        mean = _weighted(looped, dtype, lambda row, col, _: _of(inverse, row) * (row != col), False)
        # the pattern is symmetric, so the transpose has the same arrays with the weights of the other end
        back = _weighted(looped, dtype, lambda row, col, _: _of(inverse, col) * (row != col), False)
        mean._cache["t",], back._cache["t",] = back, mean
        return mean
    sums = torch.zeros(adj.num_rows, dtype=torch.float64, device=adj.device)
    for row, entries in entry_chunks(looped):
        sums.index_add_(0, row, weight(row, row, entries).where(row != looped.indices[entries], 0))
    sums = sums.where(sums > 0, 1)
    return _weighted(looped, dtype, lambda row, col, at: weight(row, col, at).where(row != col, 0) / sums[row], False)


def _inverse_degrees(block: CSR, dtype: torch.dtype) -> Tensor:
    """1 over the neighbours of every row of a pattern with self-loops; rounded once, at the end."""
    compute_dtype = torch.promote_types(dtype, torch.float32)
    return (block.degrees() - 1).clamp(min=1).to(compute_dtype).reciprocal().to(dtype)


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
    for row, entries in entry_chunks(matrix):
        sums.index_add_(0, row, values[entries].double())
    return sums


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

    For unweighted, undirected graphs: the pattern must be symmetric. Of the values it is read only whether they are
    zero: entries of padding are, and stay so.
    """
    row, col, edge = block.row_index(), block.indices, block.data != 0
    if kind == "gcn":
        compute_dtype = torch.promote_types(block.dtype, torch.float32)  # rounded once, at the end
        scale = block.degrees().to(compute_dtype).clamp(min=1).rsqrt()
        values = (scale[row] * scale[col]).to(block.dtype) * edge
        return CSR(block.indptr, col, values, block.num_cols, symmetric=block.symmetric)
    if kind == "sum":
        return CSR(block.indptr, col, edge.to(block.dtype), block.num_cols, symmetric=True)
    if kind != "mean":
        raise ConfigError(f"expected a normalisation in {NORMALISATIONS} (got {kind!r})")
    neighbour = edge & (row != col)
    inverse = _inverse_degrees(block, block.dtype)
    mean = CSR(block.indptr, col, inverse[row] * neighbour, block.num_cols)
    # the pattern is symmetric, so the transpose has the same arrays with the weights of the other end
    transpose = CSR(block.indptr, col, inverse[col] * neighbour, block.num_cols)
    mean._cache["t",], transpose._cache["t",] = transpose, mean
    return mean
