"""Ego subgraphs: a small sampled neighbourhood of every root, as the blocks of one block-diagonal matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lmc.graph import CSR
from lmc.graph.csr import pointers, row_entries
from lmc.sampling.neighbours import Neighbours, places


def egos(
    neighbours: Neighbours, roots: Tensor, fanouts: Sequence[int], generator: torch.Generator
) -> tuple[Tensor, CSR]:
    """The nodes of every root's subgraph, all roots first, and P induced on each subgraph, as diagonal blocks.

    From each root one hop is drawn for each of ``fanouts``, with at most that many neighbours per node. A node in the
    subgraphs of two roots has a row in each.
    """
    P, n = neighbours.P, neighbours.P.num_rows
    own = torch.arange(roots.numel(), device=roots.device) * n + roots  # (root, node) as one number
    pairs = newest = own
    for fanout in fanouts:
        which, columns = neighbours.reached(newest % n, fanout, generator)
        reached = ((newest // n)[which] * n + columns).unique()
        newest = reached[~torch.isin(reached, pairs)]
        pairs = torch.cat([pairs, newest])
    pairs, order = pairs.sort()
    is_root = (
        order < roots.numel()
    )  # the roots came first, in their order, and the roots of pairs ascend with the pairs
    position = torch.cat([places(is_root, roots.numel()), places(~is_root, pairs.numel() - roots.numel())])
    return pairs[position] % n, _induced(P, pairs, position, n)


def _induced(P: CSR, pairs: Tensor, position: Tensor, n: int) -> CSR:
    """P between pairs of the same root; row k is the pair ``pairs[position[k]]``, ``pairs`` ascending."""
    rank = torch.empty_like(position)
    rank[position] = torch.arange(position.numel(), device=position.device)
    rows = pairs[position]
    entries, indptr = row_entries(P, rows % n)
    counts = indptr.diff().long()
    owner = (rows // n).repeat_interleave(counts, output_size=entries.numel())
    wanted = owner * n + P.indices[entries]
    found = torch.searchsorted(pairs, wanted).clamp_(max=pairs.numel() - 1)
    inside = pairs[found] == wanted
    at = inside.nonzero().squeeze(1)
    indptr = pointers(inside)[indptr]
    columns = rank[found[at]].to(torch.int32)
    return CSR(indptr, columns, P.data[entries[at]], pairs.numel(), symmetric=P.symmetric)
