"""Node-wise sampling: a few neighbours of every row, drawn on the device from the CSR.

A row of P is estimated without bias: the entry on the diagonal is kept as it is (the row itself is always there), and
of the d other entries k = min(fanout, d) are drawn uniformly without replacement and weighted by d / k:

    sum over the drawn j of (d / k) P_ij t_j  +  P_ii t_i        has the mean        sum over all j of P_ij t_j

The draw is Floyd's: k rounds for all rows at once, whose cost does not depend on the degrees. It fills a table of
``fanout`` + 1 slots a row, the diagonal's first. How many slots are filled, and how many nodes are new, is read in one
go: a hop waits once for a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.graph import CSR
from lmc.graph.csr import pointers, row_entries
from lmc.kernels.neighbours import NO_DIAGONAL, draw_slots, floyd


@dataclass(frozen=True, eq=False)
class Hop:
    """What a set of rows reads.

    Args:
        nodes: the rows themselves, then what they read beside, ascending.
        matrix: the estimate of P[rows, nodes].
        scale: d / k of every row [rows].
        whole: stored entries of the rows in P; None where they were not counted.
    """

    nodes: Tensor
    matrix: CSR
    scale: Tensor
    whole: int | None


class Neighbours:
    """Picks entries from rows of one matrix; it keeps a few numbers per node."""

    def __init__(self, P: CSR) -> None:
        self.P = P
        row = P.row_index()
        entries = (P.indices == row).nonzero().squeeze(1)
        loop = torch.full((P.num_rows,), NO_DIAGONAL, dtype=torch.int64, device=P.device)
        loop[row[entries]] = entries - P.indptr[row[entries]]
        others = P.degrees().long() - (loop < NO_DIAGONAL).long()
        self._about = torch.stack([P.indptr[:-1].long(), others, loop], 1)  # first entry, d, where the diagonal is
        self._most = int(others.max())
        self._known: dict[int, tuple[Tensor, Tensor]] = {}
        self._row = torch.zeros(P.num_rows, dtype=torch.int32, device=P.device)
        self.diagonal = torch.zeros(P.num_rows, dtype=P.dtype, device=P.device)
        """P_ii of every node."""
        self.diagonal[row[entries]] = P.data[entries]

    def hop(self, rows: Tensor, fanout: int, generator: torch.Generator, count_whole: bool = False) -> Hop:
        """The diagonal and at most ``fanout`` other entries of every row, as a matrix of what they read."""
        if fanout >= self._most:
            return self._everything(rows)
        slots, columns = self._slots(rows, fanout, generator)
        number, scale = (each.index_select(0, rows) for each in self._of(fanout))
        indptr = pointers(number)
        new = torch.zeros(self.P.num_rows, dtype=torch.bool, device=rows.device)
        new.index_fill_(0, columns.flatten(), True).index_fill_(0, rows, False)
        sizes = [indptr[-1], new.sum(dtype=torch.int32)]
        if count_whole:
            sizes.append(self.P.degrees().index_select(0, rows).sum(dtype=torch.int32))
        nnz, num_new, *whole = read(sizes)
        nodes = torch.cat([rows, places(new, num_new)])
        self._row[nodes] = torch.arange(nodes.numel(), dtype=torch.int32, device=nodes.device)
        at = places((slots >= 0).flatten(), nnz)
        factor = scale[:, None].repeat(1, fanout + 1)
        factor[:, 0] = 1.0  # the diagonal's
        values = self.P.data[slots.flatten()[at]] * factor.flatten()[at]
        matrix = CSR(indptr, self._row[columns.flatten()[at]], values, nodes.numel())
        return Hop(nodes, matrix, scale, whole[0] if whole else None)

    def reached(self, rows: Tensor, fanout: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The ends of at most ``fanout`` entries of every row: which of the rows, and the node at the other end. The
        row's own node may be among them, more than once."""
        each = torch.arange(rows.numel(), device=rows.device)
        if fanout >= self._most:
            entries, indptr = row_entries(self.P, rows)
            return each.repeat_interleave(indptr.diff().long(), output_size=entries.numel()), self._columns(entries)
        _, columns = self._slots(rows, fanout, generator)
        return each.repeat_interleave(fanout + 1, output_size=columns.numel()), columns.flatten()

    def _slots(self, rows: Tensor, fanout: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Entries of P by row and slot [rows, fanout + 1], -1 where a slot is empty, and the nodes they read; an empty
        slot reads the row's own."""
        uniform = torch.rand(fanout, rows.numel(), dtype=torch.float64, device=rows.device, generator=generator)
        return draw_slots(self._about, self.P.indices, rows, uniform)

    def _columns(self, entries: Tensor) -> Tensor:
        return self.P.indices[entries].long()

    def _of(self, fanout: int) -> tuple[Tensor, Tensor]:
        """Entries kept of every node's row, and their factor d / k; made once for a fan-out."""
        if fanout not in self._known:
            _, d, loop = self._about.unbind(1)
            number = (d.clamp(max=fanout) + (loop < NO_DIAGONAL)).to(torch.int32)
            self._known[fanout] = number, (d / d.clamp(1, fanout)).clamp_(min=1).to(self.P.dtype)
        return self._known[fanout]

    def _everything(self, rows: Tensor) -> Hop:
        entries, indptr = row_entries(self.P, rows)
        columns = self._columns(entries)
        nodes = joined(rows, columns, self.P.num_rows)
        self._row[nodes] = torch.arange(nodes.numel(), dtype=torch.int32, device=nodes.device)
        matrix = CSR(indptr, self._row[columns], self.P.data[entries], nodes.numel())
        return Hop(nodes, matrix, torch.ones_like(rows, dtype=self.P.dtype), entries.numel())


def distinct(d: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """k different numbers below d[i], uniformly, for every i at once, [len(d), k]."""
    uniform = torch.rand(k, d.numel(), dtype=torch.float64, device=d.device, generator=generator)
    return floyd(d, uniform)


def joined(rows: Tensor, others: Tensor, num_nodes: int) -> Tensor:
    """``rows``, then those of ``others`` that are not among them, each once and ascending."""
    mark = torch.zeros(num_nodes, dtype=torch.bool, device=rows.device)
    mark.index_fill_(0, others, True).index_fill_(0, rows, False)
    return torch.cat([rows, mark.nonzero().squeeze(1)])


def read(sizes: list[Tensor]) -> list[int]:
    """Numbers of the device, on the host: the one wait of a hop."""
    return torch.stack(sizes).tolist()


def places(mark: Tensor, number: int) -> Tensor:
    """Where ``mark`` holds, ascending, for a caller who knows how often: nothing waits."""
    if number == 0:  # no launch for nothing
        return torch.empty(0, dtype=torch.int64, device=mark.device)
    return torch.nonzero_static(mark, size=number).squeeze(1)
