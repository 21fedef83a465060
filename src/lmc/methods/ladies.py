"""LADIES: "Layer-Dependent Importance Sampling for Training Deep and Large Graph Convolutional Networks"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lmc.engine.run import Run
from lmc.graph import CSR
from lmc.methods.layer_wise import LayerWise


@dataclass(frozen=True)
class LADIES(LayerWise):
    """Every layer samples from the neighbours of the layer above, with q_u in proportion to |P[rows, u]|^2.

    Args:
        normalise: scale every sampled row to the sum that the row of P has, the paper's normalisation: far less
            variance for a little bias. False leaves the unbiased estimate.
    """

    normalise: bool = True

    name: ClassVar[str] = "ladies"
    title: ClassVar[str] = "LADIES"
    paper: ClassVar[str] = "Layer-Dependent Importance Sampling for Training Deep and Large GCNs"
    outside: ClassVar[str] = "from one importance sample of the layer's neighbours per layer"

    def chances(self, run: Run, entries: Tensor) -> Tensor:
        return run.prepared.of(entries)

    def weigh(self, run: Run, rows: Tensor, matrix: CSR) -> CSR:
        if not self.normalise:
            return matrix
        row = matrix.row_index()
        others = matrix.indices != row
        sampled = matrix.data.new_zeros(rows.numel()).index_add_(0, row, matrix.data.where(others, 0))
        scale = torch.where(sampled > 0, run.prepared.sums[rows] / sampled, 1.0)
        values = matrix.data * scale[row].where(others, 1)
        return CSR(matrix.indptr, matrix.indices, values, matrix.num_cols)
