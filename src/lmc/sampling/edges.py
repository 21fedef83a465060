"""Random removal of edges."""

from __future__ import annotations

import torch

from lmc.graph import CSR


class Thinner:
    """Removes undirected edges of one pattern, each with the same probability; both directions are removed together."""

    def __init__(self, adj: CSR) -> None:
        self.adj = adj
        n, row, col = adj.num_rows, adj.row_index(), adj.indices.long()
        up, down = (row < col).nonzero().squeeze(1), (row > col).nonzero().squeeze(1)
        # the entries _up[k] and _down[k] are the two directions of edge k
        self._up = up[(row[up] * n + col[up]).argsort()]
        self._down = down[(col[down] * n + row[down]).argsort()]

    def __call__(self, p: float, generator: torch.Generator) -> CSR:
        """The pattern without a share ``p`` of its edges."""
        device = self.adj.device
        kept = torch.rand(self._up.numel(), device=device, generator=generator) >= p
        keep = torch.zeros(self.adj.nnz, dtype=torch.bool, device=device)
        keep[self._up], keep[self._down] = kept, kept
        thin = self.adj.filtered(keep)
        return CSR(thin.indptr, thin.indices, None, thin.num_cols, symmetric=True)
