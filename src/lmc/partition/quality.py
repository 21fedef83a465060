"""How good a partition is: what it cuts, how even it is, how large the halos are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.graph import Graph
from lmc.partition.check import check_parts


@dataclass(frozen=True)
class Quality:
    """Figures of one partition.

    ``edge_cut`` is the share of edges between two parts and ``kept`` its complement, the share of messages a
    method without a halo keeps; ``balance`` is the largest part over the mean; ``halo_ratio`` is the mean
    over parts of |N(V_B) \\ V_B| / |V_B|.
    """

    num_parts: int
    edge_cut: float
    balance: float
    halo_ratio: float
    kept: float


def quality(graph: Graph, parts: Tensor) -> Quality:
    """Measure ``parts`` (a part for every node) on ``graph``."""
    n = graph.num_nodes
    parts = check_parts(parts, n).to(graph.device)
    size = torch.bincount(parts)
    b = size.numel()
    row, col = graph.adj.row_index(), graph.adj.indices
    crossing = parts[row] != parts[col]
    edge_cut = float(crossing.sum()) / max(graph.adj.nnz, 1)
    # a node stands once in the halo of every other part it has a neighbour in
    pairs = (parts[row[crossing]] * n + col[crossing]).unique()
    halo = torch.bincount(pairs // n, minlength=b)
    return Quality(
        num_parts=b,
        edge_cut=edge_cut,
        balance=float(size.max()) * b / n,
        halo_ratio=float((halo / size).mean()),
        kept=1.0 - edge_cut,
    )
