"""Node-wise sampling: a few neighbours of every row, drawn on the device from the CSR.

A row of P is estimated without bias. The entry on the diagonal is kept (the row itself is always in the batch), and of
the d other entries k = min(fanout, d) are drawn uniformly without replacement and weighted by d / k:

    sum over the drawn j of (d / k) P_ij t_j  +  P_ii t_i        has the mean        sum over all j of P_ij t_j

Floyd's algorithm draws k rounds for all rows at once, and its cost does not depend on the degrees. It fills a table of
``fanout`` + 1 slots per row, the first for the diagonal. The number of filled slots and of new nodes are read together,
so the host waits once per hop for a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.graph import CSR
from lmc.graph.csr import pointers, row_entries
from lmc.kernels.neighbours import NO_DIAGONAL, draw_slots


@dataclass(frozen=True, eq=False)
class Hop:
    """One sampled hop: the nodes that a set of rows reads, and with which weights.

    Args:
        nodes: the rows themselves, then the other nodes that they read, ascending.
        matrix: the estimate of P[rows, nodes].
        scale: d / k of every row [rows].
        whole: stored entries of the rows in P; None if they were not counted.
    """

    nodes: Tensor
    matrix: CSR
    scale: Tensor
    whole: int | None


class Neighbours:
    """Draws entries from the rows of one matrix; stores a few numbers per node."""

    def __init__(self, P: CSR) -> None:
        self.P = P
        row = P.row_index()
        entries = (P.indices == row).nonzero().squeeze(1)
        loop = torch.full((P.num_rows,), NO_DIAGONAL, dtype=torch.int64, device=P.device)
        loop[row[entries]] = entries - P.indptr[row[entries]]
        others = P.degrees().long() - (loop < NO_DIAGONAL).long()
        # first entry, d, position of the diagonal
        self._row_facts = torch.stack([P.indptr[:-1].long(), others, loop], 1)
        self._max_degree = int(others.max())
        self._per_fanout: dict[int, tuple[Tensor, Tensor]] = {}
        self._row = torch.zeros(P.num_rows, dtype=torch.int32, device=P.device)
        self.diagonal = torch.zeros(P.num_rows, dtype=P.dtype, device=P.device)
        """P_ii of every node."""
        self.diagonal[row[entries]] = P.data[entries]

    def hop(self, rows: Tensor, fanout: int, generator: torch.Generator, count_whole: bool = False) -> Hop:
        """The diagonal and at most ``fanout`` other entries of every row, as a matrix over the nodes that they read."""
        if fanout >= self._max_degree:
            return self._everything(rows)
        slots, columns = self._slots(rows, fanout, generator)
        number, scale = (each.index_select(0, rows) for each in self._of(fanout))
        indptr = pointers(number)
        new = torch.zeros(self.P.num_rows, dtype=torch.bool, device=rows.device)
        new.index_fill_(0, columns.flatten(), True).index_fill_(0, rows, False)
        sizes = [indptr[-1], new.sum(dtype=torch.int32)]
        if count_whole:
            sizes.append(self.P.degrees(rows).sum(dtype=torch.int32))
        nnz, num_new, *whole = read(sizes)
        nodes = torch.cat([rows, places(new, num_new)])
        self._row[nodes] = torch.arange(nodes.numel(), dtype=torch.int32, device=nodes.device)
        at = places((slots >= 0).flatten(), nnz)
        factor = scale[:, None].repeat(1, fanout + 1)
        factor[:, 0] = 1.0  # the diagonal
        values = self.P.data[slots.flatten()[at]] * factor.flatten()[at]
        matrix = CSR(indptr, self._row[columns.flatten()[at]], values, nodes.numel())
        return Hop(nodes, matrix, scale, whole[0] if whole else None)

    def reached(self, rows: Tensor, fanout: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """At most ``fanout`` entries of every row: the position of the row in ``rows``, and the column.

        The row's own node may be among the columns, more than once.
        """
        each = torch.arange(rows.numel(), device=rows.device)
        if fanout >= self._max_degree:
            entries, indptr = row_entries(self.P, rows)
            return each.repeat_interleave(indptr.diff().long(), output_size=entries.numel()), self.P.indices[
                entries
            ].long()
        _, columns = self._slots(rows, fanout, generator)
        return each.repeat_interleave(fanout + 1, output_size=columns.numel()), columns.flatten()

    def _slots(self, rows: Tensor, fanout: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Entries of P by row and slot [rows, fanout + 1], -1 in an empty slot, and the nodes that they read; an empty
        slot reads the row's own node."""
        uniform = torch.rand(fanout, rows.numel(), dtype=torch.float64, device=rows.device, generator=generator)
        return draw_slots(self._row_facts, self.P.indices, rows, uniform)

    def _of(self, fanout: int) -> tuple[Tensor, Tensor]:
        """The number of entries kept of every row, and their factor d / k; cached per fan-out."""
        if fanout not in self._per_fanout:
            _, d, loop = self._row_facts.unbind(1)
            number = (d.clamp(max=fanout) + (loop < NO_DIAGONAL)).to(torch.int32)
            self._per_fanout[fanout] = number, (d / d.clamp(1, fanout)).clamp_(min=1).to(self.P.dtype)
        return self._per_fanout[fanout]

    def _everything(self, rows: Tensor) -> Hop:
        entries, indptr = row_entries(self.P, rows)
        columns = self.P.indices[entries].long()
        nodes = joined(rows, columns, self.P.num_rows)
        self._row[nodes] = torch.arange(nodes.numel(), dtype=torch.int32, device=nodes.device)
        matrix = CSR(indptr, self._row[columns], self.P.data[entries], nodes.numel())
        return Hop(nodes, matrix, torch.ones_like(rows, dtype=self.P.dtype), entries.numel())


def joined(rows: Tensor, others: Tensor, num_nodes: int) -> Tensor:
    """``rows``, then the distinct ``others`` that are not among them, ascending."""
    mark = torch.zeros(num_nodes, dtype=torch.bool, device=rows.device)
    mark.index_fill_(0, others, True).index_fill_(0, rows, False)
    return torch.cat([rows, mark.nonzero().squeeze(1)])


def read(sizes: list[Tensor]) -> list[int]:
    """Read numbers of the device on the host: the one synchronisation of a hop."""
    return torch.stack(sizes).tolist()


def places(mark: Tensor, number: int) -> Tensor:
    """The positions where ``mark`` is true, ascending; the caller knows their number, so the host does not wait."""
    if number == 0:  # saves a kernel launch
        return torch.empty(0, dtype=torch.int64, device=mark.device)
    return torch.nonzero_static(mark, size=number).squeeze(1)


def egos(
    neighbours: Neighbours, roots: Tensor, fanouts: Sequence[int], generator: torch.Generator
) -> tuple[Tensor, CSR]:
    """The nodes of every root's subgraph, all roots first, and P induced on each subgraph, as the blocks of one
    block-diagonal matrix.

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
    is_root = order < roots.numel()  # the roots came first, in their order, and they ascend with the pairs
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
    data = None if P.edge_data is None else P.edge_data[entries[at]]
    return CSR(indptr, columns, P.data[entries[at]], pairs.numel(), symmetric=P.symmetric, edge_data=data)
