"""What FastGCN and LADIES share: one sample of nodes for a whole layer, weighted by importance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmc.errors import check_at_least
from lmc.graph import CSR, Aggregation
from lmc.graph.csr import row_entries
from lmc.methods.protocol import BatchSource, ProblemView, check_linear
from lmc.methods.seeded import EXACT_WITH_ALL_NEIGHBOURS, UNBIASED_AGGREGATION, LayeredMethod, SampledTraits
from lmc.models import Model
from lmc.sampling import ColumnNorms, importance_weights


@dataclass(frozen=True)
class LayerWiseTraits(SampledTraits):
    """The traits that both methods share."""

    step_rows: str = "batch_size + L * layer_size"
    accepts: str = "linear aggregation"
    facts: frozenset[str] = frozenset({EXACT_WITH_ALL_NEIGHBOURS, UNBIASED_AGGREGATION})
    draws_concurrently: bool = True


@dataclass(frozen=True)
class LayerWise(LayeredMethod):
    """The rows of a layer all read the same ``layer_size`` nodes, drawn with replacement with probabilities q:

        P[v, u] / (layer_size * q_u)   for every time that u was drawn

    so that the mean is P.

    Departure: the diagonal of P is not sampled. The rows of the layer above are among the inputs anyway (models read
    them), so P_vv counts as it is, and no row is left without any message.

    Args:
        layer_size: nodes drawn for a layer; where there are no more candidates than that, all of them are read and
            nothing is estimated.
    """

    layer_size: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, layer_size=self.layer_size)

    def check(self, model: Model) -> None:
        check_linear(model, self.traits.title, "weighs the terms of a sum", "GraphSAGE")

    def probabilities(self, source: BatchSource, entries: Tensor) -> Tensor:
        """q, not normalised, of every node [n], for rows whose entries in P are ``entries``."""
        raise NotImplementedError

    def normalised(self, source: BatchSource, rows: Tensor, matrix: CSR) -> CSR:
        """The sampled rows of P after the method's own normalisation, where it has one."""
        return matrix

    def prepare(self, problem: ProblemView, seed: int) -> Any:
        return ColumnNorms(problem.P)

    def sample(
        self, source: BatchSource, hop: int, rows: Tensor, chance: torch.Generator
    ) -> tuple[Tensor, Aggregation]:
        P = source.problem.P
        entries, indptr = row_entries(P, rows)
        weights = importance_weights(self.probabilities(source, entries), self.layer_size, chance)
        drawn = (weights != 0).index_fill_(0, rows, False)
        nodes = torch.cat([rows, drawn.nonzero().squeeze(1)])
        matrix = reweighted(P, entries, indptr, nodes, weights)
        return nodes, Aggregation.exact(self.normalised(source, rows, matrix))


def reweighted(P: CSR, entries: Tensor, indptr: Tensor, nodes: Tensor, weights: Tensor) -> CSR:
    """Rows of P, given by their entries, over the columns ``nodes``, of which they are the first: every column but the
    diagonal times its weight, without the entries that are zero then."""
    local = torch.full((P.num_cols,), -1, dtype=torch.int32, device=P.device)
    local[nodes] = torch.arange(nodes.numel(), dtype=torch.int32, device=P.device)
    columns = P.indices[entries]
    block = CSR(indptr, local[columns], None, nodes.numel())
    diagonal = block.indices == block.row_index()
    values = P.data[entries] * weights[columns].where(~diagonal, 1)
    return CSR(indptr, block.indices, values, nodes.numel()).filtered((values != 0) & (block.indices >= 0))
