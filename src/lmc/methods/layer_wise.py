"""What FastGCN and LADIES share: one sample of nodes for a whole layer, importance-weighted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmc.engine.problem import Problem
from lmc.engine.run import Run
from lmc.graph import CSR, Aggregation
from lmc.graph.csr import row_entries
from lmc.methods.seeded import EXACT_WITH_ALL_NEIGHBOURS, UNBIASED_AGGREGATION, LayeredMethod, check_linear, check_whole
from lmc.models import Model
from lmc.sampling import ColumnNorms, importance_weights


@dataclass(frozen=True)
class LayerWise(LayeredMethod):
    """The rows of a layer all read the same ``layer_size`` nodes, drawn with replacement with chances q:

        P[v, u] / (layer_size * q_u)   for every time that u was drawn

    so that the mean is P. Departure: the diagonal of P is not sampled. The rows of the layer above are among the inputs
    anyway (models read them), so P_vv counts as it is; no row is left without any message.

    Args:
        layer_size: nodes drawn for a layer; no fewer than there are candidates: all of them, and nothing is estimated.
    """

    layer_size: int = 512

    step_rows: ClassVar[str] = "batch_size + L * layer_size"
    facts: ClassVar[frozenset[str]] = frozenset({EXACT_WITH_ALL_NEIGHBOURS, UNBIASED_AGGREGATION})
    accepts: ClassVar[str] = "linear aggregation"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(layer_size=self.layer_size)

    def check(self, model: Model) -> None:
        check_linear(model, type(self).title, "weighs the terms of a sum", "GraphSAGE")

    def chances(self, run: Run, entries: Tensor) -> Tensor:
        """q, not normalised, of every node [n], for rows whose entries in P are ``entries``."""
        raise NotImplementedError

    def weigh(self, run: Run, rows: Tensor, matrix: CSR) -> CSR:
        """The sampled rows of P, put right by the method's own normalisation where it has one."""
        return matrix

    def prepare(self, problem: Problem, seed: int) -> Any:
        return ColumnNorms(problem.P)

    def sample(self, run: Run, hop: int, rows: Tensor, chance: torch.Generator) -> tuple[Tensor, Aggregation]:
        P = run.problem.P
        entries, indptr = row_entries(P, rows)
        weights = importance_weights(self.chances(run, entries), self.layer_size, chance)
        drawn = (weights != 0).index_fill_(0, rows, False)
        nodes = torch.cat([rows, drawn.nonzero().squeeze(1)])
        matrix = reweighted(P, entries, indptr, nodes, weights)
        return nodes, Aggregation.exact(self.weigh(run, rows, matrix))


def reweighted(P: CSR, entries: Tensor, indptr: Tensor, nodes: Tensor, weights: Tensor) -> CSR:
    """Rows of P, given by their entries, over the columns ``nodes`` that they lead: every column but the diagonal times
    its weight, and what is zero then left out."""
    local = torch.full((P.num_cols,), -1, dtype=torch.int32, device=P.device)
    local[nodes] = torch.arange(nodes.numel(), dtype=torch.int32, device=P.device)
    columns = P.indices[entries]
    block = CSR(indptr, local[columns], None, nodes.numel())
    diagonal = block.indices == block.row_index()
    values = P.data[entries] * weights[columns].where(~diagonal, 1)
    return CSR(indptr, block.indices, values, nodes.numel()).filtered((values != 0) & (block.indices >= 0))
