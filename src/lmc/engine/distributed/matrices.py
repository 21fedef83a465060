"""The aggregation matrices of one rank: the rows and columns of its local nodes, as on the whole graph."""

from __future__ import annotations

from dataclasses import replace

import torch

from lmc.engine.distributed.exchange import Exchange
from lmc.errors import ConfigError
from lmc.graph import CSR, spmm
from lmc.graph.csr import from_rows
from lmc.models import Model, recurrent_model


def local_matrices(model: Model, exchange: Exchange, dtype: torch.dtype) -> tuple[list[CSR], tuple[int, ...]]:
    """The matrices of the local nodes, and which of them each layer reads.

    The native models normalise by the sums of rows, which a shard knows of its mirrors too. The convolutions of a
    wrapped network compute their weights from edges, so they are given all edges of mirrors.
    """
    shard = exchange.shard
    n, weights = shard.num_local, shard.graph.edge_weight
    if model.owns_forward:
        check_weights(model, shard.graph.adj)
        found, index = model.matrices(with_edges_of_mirrors(exchange).to(exchange.device), dtype)
    else:
        found, index = model.matrices(shard.completed(), dtype)

    def cut(matrix: CSR) -> CSR:
        rows = matrix.leading(n)
        inside = rows.filtered(rows.indices < n)
        data = inside.edge_data
        if not model.owns_forward:
            data = None if weights is None or data is None else data.to(weights.dtype)
        return CSR(inside.indptr, inside.indices, inside.values, n, matrix.symmetric, edge_data=data)

    return [cut(matrix) for matrix in found], index


def with_edges_of_mirrors(exchange: Exchange) -> CSR:
    """A of the local nodes and of all nodes that mirrors read, which come last; an undirected graph has the edges of
    these nodes to the mirrors, and no others."""
    shard = exchange.shard
    adj, n, owned = shard.graph.adj.to("cpu"), shard.num_local, shard.num_owned
    given = [part for part in (adj.values, adj.edge_data) if part is not None]
    lengths, (ids, *sent) = exchange.rows_of_mirrors(adj, shard.ids[adj.indices.long()], *given)
    mine = slice(0, int(adj.indptr[owned]))
    outside = ids[~torch.isin(ids, shard.ids)].unique()
    nodes = torch.cat([shard.ids, outside])
    order = nodes.argsort()
    columns = order[torch.searchsorted(nodes[order], ids)]
    rows = torch.cat([adj.row_index()[mine], torch.arange(owned, n).repeat_interleave(lengths.long())])
    cols = torch.cat([adj.indices[mine].long(), columns])
    parts = [torch.cat([part[mine], of_mirrors]) for part, of_mirrors in zip(given, sent, strict=True)]
    if adj.symmetric:
        back = (cols >= n).nonzero().squeeze(1)
        rows, cols = torch.cat([rows, cols[back]]), torch.cat([cols, rows[back]])
        parts = [torch.cat([part, part[back]]) for part in parts]
    size = nodes.numel()
    at = (rows * size + cols).argsort()
    values = parts.pop(0)[at] if adj.values is not None else None
    found = from_rows(rows[at], cols[at], values, (size, size))
    return replace(found, symmetric=adj.symmetric, edge_data=parts[0][at] if parts else None)


def check_weights(model: Model, adj: CSR) -> None:
    """Refuse a wrapped network whose weights of an edge do not follow from the edges into its two ends, since a rank
    knows no more of its mirrors. The weights between two nodes of a small random graph of the kind of ``adj`` are
    compared with those on the same graph without all edges into other nodes."""
    n, ends, chance, device = 16, 2, torch.Generator().manual_seed(0), next(model.parameters()).device
    score = torch.rand(n, n, generator=chance)
    score = score + score.t() if adj.symmetric else 2 * score
    score[0, 1] = score[1, 0] = 2.0
    rows, cols = (score.fill_diagonal_(0) > 1.2).nonzero(as_tuple=True)
    data = None if adj.edge_data is None else torch.rand(rows.numel(), adj.edge_data.shape[1], generator=chance)
    values = None if adj.values is None else score[rows, cols]
    whole = replace(from_rows(rows, cols, values, (n, n)), symmetric=adj.symmetric, edge_data=data)
    known = whole.filtered((rows < ends) | ((cols < ends) & adj.symmetric))
    computed = []
    for graph in (whole, replace(known, symmetric=adj.symmetric)):
        found, index = model.matrices(graph.to(device), torch.float64)
        between = [(P := found[number].leading(ends)).filtered(P.indices < ends) for number in index]
        parts = [part for P in between for part in (P.data, P.edge_data) if part is not None]
        computed.append(torch.cat([part.flatten().double() for part in parts]))
    if not torch.allclose(computed[0], computed[1], rtol=1e-4, atol=1e-6):
        raise ConfigError(
            "expected convolutions whose weights of an edge follow from the edges into its two ends (got others): a "
            "rank knows no more of the graph; train it in one process"
        )


def bound_over_ranks(model: Model, P: CSR, exchange: Exchange) -> None:
    """Set the bound of lambda_pf(P) of a recurrent model, and project: max_i (P x)_i / x_i over the rows of all ranks,
    with x = diag(P)^-1/2, the eigenvector of the GCN normalisation (Collatz and Wielandt)."""
    recurrent, n = recurrent_model(model), exchange.shard.num_owned
    row = P.row_index()
    x = P.data[row == P.indices].double().rsqrt().unsqueeze(1)
    bound = (spmm(P.leading(n), x) / x[:n]).max().view(1)
    recurrent.get_buffer("lambda_pf").copy_(exchange.world.max(bound)[0])
    recurrent.project()
