"""Leaving edges out at random."""

from __future__ import annotations

import torch

from lmc.graph import CSR


class Thinner:
    """Leaves undirected edges of one pattern out, each with the same chance; both directions go together."""

    def __init__(self, adj: CSR) -> None:
        self.adj = adj
        n, row, col = adj.num_rows, adj.row_index(), adj.indices.long()
        up, down = (row < col).nonzero().squeeze(1), (row > col).nonzero().squeeze(1)
        # entry _up[k] and entry _down[k] are the two directions of edge k
        self._up = up[(row[up] * n + col[up]).argsort()]
        self._down = down[(col[down] * n + row[down]).argsort()]

    def __call__(self, p: float, generator: torch.Generator) -> CSR:
        """The pattern without a share ``p`` of its edges."""
        device = self.adj.device
        stays = torch.rand(self._up.numel(), device=device, generator=generator) >= p
        keep = torch.zeros(self.adj.nnz, dtype=torch.bool, device=device)
        keep[self._up], keep[self._down] = stays, stays
        thin = self.adj.filtered(keep)
        return CSR(thin.indptr, thin.indices, None, thin.num_cols, symmetric=True)
