"""RecGCN: the recurrent GNN of "Provably Convergent Subgraph-wise Sampling for Fast GNN Training".

It is "Implicit Graph Neural Networks" with an affine input map b(X).
"""

from __future__ import annotations

from typing import Literal, cast

import torch
from torch import Tensor, nn

from lmc.errors import ConfigError
from lmc.graph import CSR
from lmc.models.activation import Activation
from lmc.models.base import Layer, configure
from lmc.models.passes import Operator, Pass
from lmc.models.recurrent import Recurrent, with_tolerance
from lmc.models.rows import Linear
from lmc.models.wellposed import onto_l1_ball, perron
from lmc.solvers import Solver

POWER_STEPS = 50
"""Steps of the power iteration on a sampled matrix. Its result is an upper bound after any number of steps."""


class RecLayer(Layer):
    """One message-passing step of the recurrence: s = P h W^T + b(X)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lin = Linear(width, width, bias=False)
        self.out_width, self.activation, self.dropout = width, Activation(width, None), 0.0

    def forward(self, h: Tensor | CSR, P: Operator, p: Pass, h0: Tensor | CSR) -> Tensor:
        assert isinstance(h0, Tensor)
        return self.lin.aggregate(P, h, p) + h0[: P.num_outputs]


class RecGCN(Recurrent):
    """Z = P H W^T + b(X), H = relu(Z), b(X) = X B^T + c; logits = H C^T + e.

    The layer is iterated to its fixed point, so a node receives messages from every node it is connected with. The
    fixed point is well-posed where lambda_pf(P) |W|_p < 1. :meth:`project` projects W onto that set and has to be
    called after every optimiser step. ``lmc.fit`` calls it; a training loop of your own has to.

    Args:
        in_width: feature width. For a graph without features use the identity: the rows of B^T are learned embeddings.
        hidden: width of the state.
        out_width: number of classes.
        dropout: rate on H before the output layer.
        input_dropout: rate on the features; True: the same rate.
        p: the norm that is bounded, "inf" (rows of W) or "1" (its columns).
        kappa: in (0, 1); the bound is kappa / lambda_pf(P). With kappa closer to 1 distant nodes have more influence,
            and the number of iterations grows like 1 / (1 - kappa).
        solver: of the fixed points: "picard", "anderson", or a record of :mod:`lmc.solvers`.
        tol: relative residual to solve to; None: the solver's own.
        seed: of the initial parameters.
    """

    lambda_pf: Tensor

    def __init__(
        self, in_width: int, hidden: int, out_width: int, dropout: float = 0.0, *,
        input_dropout: float | bool = False, p: Literal["1", "inf"] = "inf", kappa: float = 0.95,
        solver: str | Solver = "picard", tol: float | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        configure(self, in_width, out_width, dropout, input_dropout, hidden=hidden)
        if p not in ("1", "inf"):
            raise ConfigError(f'expected p "1" or "inf" (got {p!r})')
        if not 0 < kappa < 1:
            raise ConfigError(f"expected kappa in (0, 1) (got {kappa}): at 1 the fixed point may not exist")
        self.p, self.kappa = p, float(kappa)
        self.solver = with_tolerance(solver, tol)
        self.lin_in = Linear(in_width, hidden)
        self.act_in = None
        self.layers = nn.ModuleList([RecLayer(hidden)])
        self.lin_out = Linear(hidden, out_width)
        # lambda_pf of the graph's P; before prepare() measures it, that of the GCN normalisation
        self.register_buffer("lambda_pf", torch.ones(()))
        self.reset_parameters(seed)

    @property
    def lin(self) -> Linear:
        return cast(RecLayer, self.layer(1)).lin

    def reset_parameters(self, seed: int) -> None:
        super().reset_parameters(seed)
        self.project()

    def prepare(self, P: CSR) -> None:
        """Measure lambda_pf(P), and project."""
        self.lambda_pf.copy_(perron(P))
        self.project()

    def well_posed(self, block: CSR) -> CSR:
        """``block``, scaled so that its lambda_pf is at most that of the whole graph, which bounds W."""
        scale = (self.lambda_pf / perron(block, max_steps=POWER_STEPS)).clamp(max=1).to(block.dtype)
        return CSR(block.indptr, block.indices, block.data * scale, block.num_cols)

    @torch.no_grad()
    def project(self) -> None:
        """W <- the nearest matrix with |W|_p <= kappa / lambda_pf(P)."""
        radius = self.kappa / self.lambda_pf
        if self.p == "inf":
            self.W.copy_(onto_l1_ball(self.W, radius))
        else:
            self.W.copy_(onto_l1_ball(self.W.t(), radius).t())
