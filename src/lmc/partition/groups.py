"""Groups of parts, one per rank of a distributed run."""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.graph.csr import entry_chunks


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
