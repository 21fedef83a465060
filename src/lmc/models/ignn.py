"""IGNN: "Implicit Graph Neural Networks"."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lmc.errors import typed
from lmc.graph import CSR, Aggregation, sparse_product, spmm
from lmc.models.base import operators_of
from lmc.models.passes import Operator, Pass
from lmc.models.recgcn import RecGCN
from lmc.models.rows import Linear
from lmc.solvers import Solver


class IGNN(RecGCN):
    """RecGCN with the input map b(X) = P X Omega^T and without biases: Z = P H W^T + b(X), logits = relu(Z) C^T.

    In the paper's letters, X = phi(W X A + b_Omega(U)) with b_Omega(U) = Omega U A, and a linear output map. It differs
    from :class:`RecGCN` in that the features are aggregated once and that neither map has a bias. After every optimiser
    step :meth:`project` projects W onto the ball |W|_inf <= kappa / lambda_pf(P), as the paper does. Trained by
    ``FullBatch`` it is the published method. P X is computed once on the whole graph, so every method that trains
    RecGCN trains this model too.

    Args: as those of :class:`RecGCN`; dropout of the features is applied to P X.
    """

    encodes_aggregates = True

    @typed
    def __init__(
        self, in_width: int, hidden: int, out_width: int, dropout: float = 0.0, *,
        input_dropout: float | bool = False, kappa: float = 0.95, solver: str | Solver = "picard",
        tol: float | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(
            in_width, hidden, out_width, dropout, input_dropout=input_dropout, kappa=kappa, solver=solver, tol=tol
        )
        self.lin_in = Linear(in_width, hidden, bias=False)
        self.lin_out = Linear(hidden, out_width, bias=False)
        self.reset_parameters(seed)

    def forward(
        self, x: Tensor | CSR, P: Tensor | Operator | Sequence[Operator], p: Pass | Tensor | None = None, *,
        edge_weight: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        (operator, *_), p = operators_of(self, x, P, p if edge_weight is None else edge_weight)
        if isinstance(operator, Aggregation):
            x = sparse_product(operator.forward, x) if isinstance(x, CSR) else spmm(operator.forward, x)
        return super().forward(x, operator, p)
