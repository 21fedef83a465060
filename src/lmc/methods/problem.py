"""What every method is given: a graph and a model on one device, and the pieces a pass is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from lmc.errors import ConfigError
from lmc.graph import CSR, Extractor, Graph, gcn_norm, sparse_product, spmm
from lmc.models import Model, Operator, Pass

Cut = Literal["before", "after"]


@dataclass(frozen=True, eq=False)
class Problem:
    """min over the model's parameters of L = 1/|V_L| * sum over labelled i of loss_i.

    Args:
        graph: the graph in run order, on the training device.
        model: the model, on the same device.
        blocks: cuts blocks out of P, the aggregation matrix normalised on the WHOLE graph.
        X: what the first layer reads: the features, or P X where ``aggregated``.
        aggregated: the first aggregation is constant and was done once.
        cut: where a layer's state lies: before its activation, or after it as the paper's equations read.
    """

    graph: Graph
    model: Model
    blocks: Extractor
    X: Tensor | CSR
    aggregated: bool
    cut: Cut

    @classmethod
    def of(
        cls,
        graph: Graph,
        model: Model,
        device: torch.device,
        aggregate: bool = True,
        cut: Cut = "before",
        swap_dropout: bool = False,
    ) -> Problem:
        """Move graph and model to ``device`` and do once what need not be done again.

        With ``swap_dropout``, P X is computed once even where the model drops features out before they are
        aggregated; the dropout then falls on P X.
        """
        if cut not in ("before", "after"):
            raise ConfigError(f'expected cut "before" or "after" (got {cut!r})')
        model.to(device)
        dtype = next(model.parameters()).dtype
        graph = graph.to(device)
        P = gcn_norm(graph.adj, dtype)
        X = graph.x.to(dtype=dtype)
        aggregated = aggregate and (model.constant_input or (swap_dropout and model.aggregates_features))
        if aggregated:
            X = sparse_product(P, X) if isinstance(X, CSR) else spmm(P, X)
        return cls(graph, model, Extractor(P), X, aggregated, cut)

    @property
    def P(self) -> CSR:
        return self.blocks.P

    @property
    def device(self) -> torch.device:
        return self.P.device

    @property
    def dtype(self) -> torch.dtype:
        return self.P.dtype

    def inputs(self, rows: slice | Tensor) -> Tensor | CSR:
        """What the encoder reads for these rows."""
        if isinstance(self.X, CSR):
            return self.X.select_rows(rows)
        return self.X[rows] if isinstance(rows, slice) else self.X.index_select(0, rows)

    def advance(self, l: int, s: Tensor | CSR, P: Operator, p: Pass, h0: Tensor | CSR) -> Tensor:
        """The state of layer l from that of layer l - 1, l = 1..L; state 0 is the encoded input."""
        layer = self.model.layer(l)
        if self.cut == "after":
            return layer.activate(layer(s, P, p, h0), p)
        if l > 1:
            assert isinstance(s, Tensor)
            s = self.model.layer(l - 1).activate(s, p)
        return layer(s, P, p, h0)

    def finish(self, s: Tensor, p: Pass) -> Tensor:
        """Logits from the state of layer L."""
        h = self.model.layer(self.model.num_layers).activate(s, p) if self.cut == "before" else s
        return self.model.decode(h, p)

    def row_losses(self, logits: Tensor, y: Tensor, labelled: Tensor) -> Tensor:
        """loss_i / |V_L| of every row, zero where it is not labelled; multi-label rows take the mean over labels."""
        if self.graph.multi_label:
            each = F.binary_cross_entropy_with_logits(logits, y.to(logits.dtype), reduction="none")
            losses = each.mean(1) * labelled
        else:
            losses = F.cross_entropy(logits, y.where(labelled, -100), reduction="none", ignore_index=-100)
        return losses / self.graph.num_labelled
