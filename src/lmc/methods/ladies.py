"""LADIES: "Layer-Dependent Importance Sampling for Training Deep and Large Graph Convolutional Networks"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmc.errors import ConfigError
from lmc.graph import CSR
from lmc.methods.layer_wise import LayerWise, LayerWiseTraits
from lmc.methods.protocol import BatchSource, ProblemView, Traits


@dataclass(frozen=True)
class LADIES(LayerWise):
    """Every layer reads one sample of the neighbours of its rows, drawn with q_u proportional to |P[rows, u]|^2.

    Args:
        normalise: scale every sampled row to the sum that the row of P has, the paper's normalisation: it has much less
            variance for a little bias. False leaves the unbiased estimate.
    """

    normalise: bool = True

    traits: ClassVar[Traits] = LayerWiseTraits(
        "ladies", "LADIES", outside="from one importance sample of the layer's neighbours per layer",
    )  # fmt: skip

    def prepare(self, problem: ProblemView, seed: int) -> Any:
        if self.normalise:
            P = problem.P
            others = P.data.where(P.row_index() != P.indices, 0)
            if bool((others < 0).any()) and bool((others > 0).any()):
                raise ConfigError(
                    "expected entries of P beside the diagonal that are all of at least 0 for LADIES, or all of at "
                    "most 0 (got both): a row is scaled to its sum; use normalise=False"
                )
        return super().prepare(problem, seed)

    def probabilities(self, source: BatchSource, entries: Tensor) -> Tensor:
        q: Tensor = source.prepared.of(entries)
        return q

    def normalised(self, source: BatchSource, rows: Tensor, matrix: CSR) -> CSR:
        if not self.normalise:
            return matrix
        row = matrix.row_index()
        others = matrix.indices != row
        sampled = matrix.data.new_zeros(rows.numel()).index_add_(0, row, matrix.data.where(others, 0))
        scale = torch.where(sampled != 0, source.prepared.sums[rows] / sampled, 1.0)
        values = matrix.data * scale[row].where(others, 1)
        return CSR(matrix.indptr, matrix.indices, values, matrix.num_cols)
