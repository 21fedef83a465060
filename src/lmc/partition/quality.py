"""The quality of a partition: the share of edges cut, the balance and the size of halos."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.graph import Graph
from lmc.partition.check import check_parts


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
    n = graph.num_nodes
    parts = check_parts(parts, n).to(graph.device)
    size = torch.bincount(parts)
    b = size.numel()
    row, col = graph.adj.row_index(), graph.adj.indices
    crossing = parts[row] != parts[col]
    edge_cut = float(crossing.sum()) / max(graph.adj.nnz, 1)
    # a node is once in the halo of every other part in which it has a neighbour
    pairs = (parts[row[crossing]] * n + col[crossing]).unique()
    halo = torch.bincount(pairs // n, minlength=b)
    return Quality(
        num_parts=b,
        edge_cut=edge_cut,
        balance=float(size.max()) * b / n,
        halo_ratio=float((halo / size).mean()),
        kept=1.0 - edge_cut,
    )
