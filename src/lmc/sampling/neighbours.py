"""Node-wise sampling: a few neighbours of every row, drawn on the device from the CSR.

A row of P is estimated without bias: the entry on the diagonal is kept as it is (the row itself is always there), and
of the d other entries k = min(fanout, d) are drawn uniformly without replacement and weighted by d / k:

    sum over the drawn j of (d / k) P_ij t_j  +  P_ii t_i        has the mean        sum over all j of P_ij t_j

The draw is Floyd's: k rounds for all rows at once, whose cost does not depend on the degrees.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.graph import CSR
from lmc.graph.csr import pointers, row_entries


@dataclass(frozen=True, eq=False)
class Picked:
    """Entries picked from rows of P, row after row.

    Args:
        entries: positions in ``P.indices``.
        indptr: row pointers into them.
        factor: what each is multiplied by, d / k; 1 on the diagonal.
    """

    entries: Tensor
    indptr: Tensor
    factor: Tensor


class Neighbours:
    """Picks entries from rows of one matrix; it keeps three numbers per node."""

    def __init__(self, P: CSR) -> None:
        self.P = P
        row = P.row_index()
        diagonal = (P.indices == row).nonzero().squeeze(1)
        self._loop = torch.full((P.num_rows,), -1, dtype=torch.int64, device=P.device)
        self._loop[row[diagonal]] = diagonal - P.indptr[row[diagonal]]
        self._others = P.degrees().long() - (self._loop >= 0).long()
        self._most = int(self._others.max())
        self._row = torch.zeros(P.num_rows, dtype=torch.int32, device=P.device)

    def pick(self, rows: Tensor, fanout: int, generator: torch.Generator) -> Picked:
        """The diagonal and at most ``fanout`` other entries of every row."""
        if fanout >= self._most:
            entries, indptr = row_entries(self.P, rows)
            return Picked(entries, indptr, torch.ones_like(entries, dtype=self.P.dtype))
        d, loop, start = self._others[rows], self._loop[rows], self.P.indptr[rows].long()
        drawn = distinct(d, fanout, generator)  # [rows, fanout], numbers below d
        k = d.clamp(max=fanout)
        # the d others are numbered around the diagonal
        offsets = drawn + ((loop >= 0)[:, None] & (drawn >= loop[:, None]))
        round_ = torch.arange(fanout, device=rows.device)
        chosen = torch.cat([(loop >= 0)[:, None], round_ < k[:, None]], 1)
        at = chosen.flatten().nonzero().squeeze(1)  # once: on a GPU it waits for the count
        entries = torch.cat([loop[:, None], offsets], 1).add_(start[:, None]).flatten()[at]
        scale = (d / k.clamp(min=1)).to(self.P.dtype)
        factor = scale[at // (fanout + 1)].masked_fill_(at % (fanout + 1) == 0, 1.0)
        return Picked(entries, pointers(chosen.sum(1)), factor)

    def columns(self, picked: Picked) -> Tensor:
        """The node at the other end of every picked entry, int64."""
        return self.P.indices[picked.entries].long()

    def matrix(self, rows: Tensor, picked: Picked) -> tuple[Tensor, CSR]:
        """The nodes the picked entries read, ``rows`` first, and the estimate of P[rows, nodes]."""
        columns = self.columns(picked)
        nodes = joined(rows, columns, self.P.num_rows)
        self._row[nodes] = torch.arange(nodes.numel(), dtype=torch.int32, device=nodes.device)
        values = self.P.data[picked.entries] * picked.factor
        return nodes, CSR(picked.indptr, self._row[columns], values, nodes.numel())


def distinct(d: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """k different numbers below d[i], uniformly, for every i at once, [len(d), k].

    Floyd's algorithm: round j draws one of the first d - k + j + 1 numbers; one that was drawn before gives way to the
    newest. Where d <= k the numbers are 0..d-1, and the rest of the row is to be ignored.
    """
    rounds = torch.arange(k, device=d.device)[:, None]
    newest = (d - k + rounds).clamp_(min=0)
    uniform = torch.rand(newest.shape, dtype=torch.float64, device=d.device, generator=generator)
    drawn = torch.minimum((uniform * (newest + 1)).long(), newest)
    for j in range(1, k):
        again = (drawn[:j] == drawn[j]).any(0)
        drawn[j] = torch.where(again, newest[j], drawn[j])
    return torch.where(d <= k, rounds, drawn).t()


def joined(rows: Tensor, others: Tensor, num_nodes: int) -> Tensor:
    """``rows``, then those of ``others`` that are not among them, each once and ascending."""
    mark = torch.zeros(num_nodes, dtype=torch.bool, device=rows.device)
    mark[others] = True
    mark[rows] = False
    return torch.cat([rows, mark.nonzero().squeeze(1)])
