"""The part of a graph that one rank of a distributed run holds.

A rank owns the nodes of its parts: their rows of A, features, targets and splits. It also holds *mirrors*, copies of
the remote nodes that its own nodes read, or that read them. So everything within one hop of an owned node is local:

    rows 0 .. num_owned - 1           owned nodes, all of whose neighbours are local
    rows num_owned .. num_local - 1   mirrors, by owner and then by node number; neighbours elsewhere are left out

What mirrors lack, the number of their neighbours and the sum of their edge weights, is kept for the whole graph, so
that P of the local rows is that of the whole graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lmc.errors import GraphError
from lmc.graph.checks import SPLITS
from lmc.graph.csr import CHUNK, CSR, from_rows, rows_in_chunks
from lmc.graph.graph import Graph, node_fields
from lmc.graph.normalise import row_sums
from lmc.graph.submatrices import induced


@dataclass(frozen=True, eq=False)
class Shard:
    """The local graph of one rank; owned rows come first, then mirrors.

    Args:
        graph: the local graph: A between local nodes, and the features, targets and splits of all of them.
        num_owned: the first rows, which this rank owns.
        ids: numbers of the local nodes in the whole graph, int64 [num_local].
        parts: the parts of the local nodes, in the numbering of the whole graph, int64 [num_local].
        degree: neighbours of the local nodes in the whole graph, int64 [num_local]; on a directed graph those of both
            directions are added.
        strength: row sums of A of the whole graph, float64 [num_local]; A holds the edge weights, or ones.
        send: owned rows that other ranks mirror, by receiver and then by node number, int64.
        send_counts, receive_counts: rows to and from every rank; the received ones are the mirrors in their order.
        rank: the number of this rank.
        num_nodes, num_edges: of the whole graph.
        split_sizes: nodes of the whole graph in train, val and test.
        total_weight: ``graph.total_weight`` of the whole graph.
        checksum: ``graph.checksum`` of the whole graph.
    """

    graph: Graph
    num_owned: int
    ids: Tensor
    parts: Tensor
    degree: Tensor
    strength: Tensor
    send: Tensor
    send_counts: tuple[int, ...]
    receive_counts: tuple[int, ...]
    rank: int
    num_nodes: int
    num_edges: int
    split_sizes: tuple[int, int, int]
    total_weight: float
    checksum: str

    @property
    def ranks(self) -> int:
        """The number of ranks, W."""
        return len(self.send_counts)

    @property
    def num_local(self) -> int:
        return self.graph.num_nodes

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """The splits that have nodes anywhere."""
        return tuple(split for split, size in zip(SPLITS, self.split_sizes, strict=True) if size)

    def __repr__(self) -> str:
        mirrors = self.num_local - self.num_owned
        return (
            f"Shard({self.rank} of {self.ranks}, {self.num_owned:,} of {self.num_nodes:,} nodes of "
            f"{self.graph.name!r}, {mirrors:,} mirrors)"
        )

    def permute(self, order: Tensor) -> Shard:
        """The same shard with owned row ``order[i]`` as row ``i``; mirrors stay where they are."""
        position = torch.empty_like(order)
        position[order] = torch.arange(order.numel())
        everything = torch.cat([order, torch.arange(self.num_owned, self.num_local)])
        rows = {name: getattr(self, name)[everything] for name in ("ids", "parts", "degree", "strength")}
        return replace(self, graph=self.graph.permute(everything), send=position[self.send], **rows)

    def completed(self) -> CSR:
        """A of the local nodes and of one further node that represents all others, with weights: rows of mirrors have
        their sum in the whole graph, so that P of the local nodes can be normalised."""
        adj, n, owned = self.graph.adj, self.num_local, self.num_owned
        weights = torch.ones(adj.nnz, dtype=torch.float64) if adj.values is None else adj.values.double()
        missing = (self.strength - row_sums(adj, weights)).clamp_min(0)
        missing[:owned] = 0
        incomplete = missing.nonzero().squeeze(1)
        rows = torch.cat([adj.row_index(), incomplete])
        order = rows.sort(stable=True).indices
        cols = torch.cat([adj.indices.long(), torch.full_like(incomplete, n)])[order]
        values = torch.cat([weights, missing[incomplete]])[order]
        return replace(from_rows(rows[order], cols, values, (n + 1, n + 1)), symmetric=adj.symmetric)

    @classmethod
    def cut(cls, graph: Graph, parts: Tensor, owners: Tensor, rank: int, ranks: int) -> Shard:
        """What ``rank`` holds of a graph. If the arrays of the graph are mapped, memory is proportional to that, beside
        a few numbers per node of the graph.

        Args:
            parts: the part of every node, int64 [n].
            owners: the rank that owns each part, int64 [number of parts].
        """
        if not 0 <= rank < ranks or int(owners.max()) >= ranks:
            raise GraphError(
                f"expected ranks below {ranks} (got rank {rank} and owner {int(owners.max())}): divide the graph for "
                "the ranks that there are"
            )
        adj, n = graph.adj.to("cpu"), graph.num_nodes
        owner = owners[parts]
        mine = owner == rank
        owned = mine.nonzero().squeeze(1)
        read, pairs = torch.zeros(n, dtype=torch.bool), []
        for matrix in (adj, adj.t()) if graph.directed else (adj,):
            for at, piece in rows_in_chunks(matrix, owned):
                col, row = piece.indices.long(), owned[at][piece.row_index()]
                crossing = ~mine[col]
                read[col[crossing]] = True
                pairs.append((owner[col[crossing]] * n + row[crossing]).unique())
        mirrors = read.nonzero().squeeze(1)
        mirrors = mirrors[owner[mirrors].sort(stable=True).indices]
        ids = torch.cat([owned, mirrors])
        local = torch.full((n,), -1, dtype=torch.int32)
        local[ids] = torch.arange(ids.numel(), dtype=torch.int32)
        receivers = torch.cat([*pairs, owned[:0]]).unique()
        sent_to, send = receivers // n, local[receivers % n].long()
        degree = adj.degrees() + (adj.t().degrees() if graph.directed else 0)
        strength = adj.degrees().double() if adj.values is None else row_sums(adj, adj.values)
        sizes: Any = tuple(int(getattr(graph, split).sum()) for split in SPLITS)
        return cls(
            graph=_induced(graph, adj, ids, local),
            num_owned=owned.numel(),
            ids=ids,
            parts=parts[ids],
            degree=degree[ids].long(),
            strength=strength[ids],
            send=send,
            send_counts=tuple(torch.bincount(sent_to, minlength=ranks).tolist()),
            receive_counts=tuple(torch.bincount(owner[mirrors], minlength=ranks).tolist()),
            rank=rank,
            num_nodes=graph.num_nodes,
            num_edges=graph.num_edges,
            split_sizes=sizes,
            total_weight=graph.total_weight,
            checksum=graph.checksum,
        )


def _induced(graph: Graph, adj: CSR, ids: Tensor, local: Tensor) -> Graph:
    """The graph on the nodes ``ids``; ``local`` are the rows of all nodes, -1 where they have none."""
    x, at = graph.x, ids.to(graph.x.device)
    if isinstance(x, CSR):
        rows: Tensor | CSR = x.select_rows(at)
    else:
        rows = x.new_empty(at.numel(), x.shape[1])
        step = max(1, CHUNK // x.shape[1])
        for target, some in zip(rows.split(step), at.split(step), strict=True):
            target.copy_(x[some])
            adj.release()  # mapped features lie in the same files
    nodes = {name: getattr(graph, name).cpu()[ids] for name in node_fields(graph)}
    return replace(graph, adj=induced(adj, ids, local), x=rows, **nodes)
