"""Subgraphs of a CSR matrix, cut out on its device without a loop over nodes."""

from __future__ import annotations

import torch
from torch import Tensor

from lmc.graph.csr import CSR, row_entries
from lmc.kernels.pinned import take


class Extractor:
    """Cuts blocks out of one symmetric matrix.

    It stores one int32 per node, the node's row in the current block, so that the cost of a block depends on the
    entries it reads and not on the size of the graph.
    """

    def __init__(self, P: CSR) -> None:
        self.P = P
        self._row = torch.full((P.num_rows,), -1, dtype=torch.int32, device=P.device)

    def halo(self, core: Tensor) -> Tensor:
        """N(V_B) \\ V_B: the neighbours of ``core`` that are not in it, ascending."""
        entries, _ = row_entries(self.P, core)
        mark = torch.zeros(self.P.num_rows, dtype=torch.bool, device=self.P.device)
        mark[take(self.P.indices, entries)] = True
        mark[core] = False
        return mark.nonzero().squeeze(1)

    def block(self, rows: Tensor, cols: Tensor) -> CSR:
        """P[rows, cols], with rows and columns in the given order."""
        entries, indptr = row_entries(self.P, rows)
        self._row[cols] = torch.arange(cols.numel(), dtype=torch.int32, device=cols.device)
        local = self._row[take(self.P.indices, entries)]
        self._row[cols] = -1
        block = CSR(indptr, local, take(self.P.data, entries), cols.numel())
        inside = local >= 0
        at = inside.nonzero().squeeze(1)  # the host waits for the GPU here, and only here
        return block if at.numel() == local.numel() else block.filtered(inside, at)

    def induced(self, nodes: Tensor) -> CSR:
        """P[nodes, nodes], symmetric as P is."""
        block = self.block(nodes, nodes)
        return CSR(block.indptr, block.indices, block.values, block.num_cols, symmetric=self.P.symmetric)
