"""METIS k-way partitioning, through pymetis."""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.errors import ConfigError
from lmc.graph import Graph


def metis_parts(graph: Graph, num_parts: int, seed: int = 0) -> Tensor:
    """Parts of nearly equal size with few edges cut; the same seed gives the same parts."""
    try:
        import pymetis
    except ImportError as error:
        raise ConfigError(
            "expected pymetis for method='metis' (got none): pip install pymetis, or use method='label-propagation'"
        ) from error
    adj = graph.adj.to("cpu")
    # METIS passes the seed to srand, for which 0 and 1 are the same
    options = pymetis.Options(seed=(seed + 1) % 2**31)
    starts, neighbours = adj.indptr.numpy(), adj.indices.numpy()
    if hasattr(pymetis, "CSRAdjacency"):  # newer versions of pymetis
        rows = pymetis.CSRAdjacency(adj_starts=starts, adjacent=neighbours)
        _, parts = pymetis.part_graph(num_parts, rows, options=options)
    else:
        _, parts = pymetis.part_graph(num_parts, xadj=starts, adjncy=neighbours, options=options)
    return fill_empty(torch.as_tensor(parts, dtype=torch.int64), num_parts)


def fill_empty(parts: Tensor, num_parts: int) -> Tensor:
    """Move one node of a part that has several into every empty part.

    METIS may leave parts empty when they have only a few nodes each, and every method needs all parts.
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
