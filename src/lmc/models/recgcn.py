"""RecGCN: the recurrent GNN of "Provably Convergent Subgraph-wise Sampling for Fast GNN Training".

It is "Implicit Graph Neural Networks" with an affine input map b(X). By that paper's Perron-Frobenius condition,
Z = P relu(Z) W^T + C has one solution, which is found by iteration, where lambda_pf(P) * lambda_pf(|W|) < 1, and
lambda_pf(|W|) <= |W|_p for the induced norms. For p = 1 and infinity |W|_p is the largest sum of |W_ij| over a column
or a row, so W is projected onto a ball column by column or row by row.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from lmc.errors import check_within, typed
from lmc.graph import CSR, spmm
from lmc.models.activation import Activation
from lmc.models.base import Layer, configure
from lmc.models.equilibrium import Recurrent
from lmc.models.passes import Operator, Pass
from lmc.models.rows import Embedding, Linear
from lmc.solvers import Solver
from lmc.solvers import solver as solver_of

POWER_TOLERANCE = 1e-6
"""The relative accuracy at which the power iteration ends."""
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
    """A recurrent GCN: Z = P H W^T + b(X), H = relu(Z), b(X) = X B^T + c; logits = H C^T + e.

    The layer is iterated to its fixed point, so a node receives messages from every node it is connected with. The
    fixed point is well-posed where lambda_pf(P) |W|_p < 1. :meth:`project` projects W onto that set and has to be
    called after every optimiser step. ``lmc.fit`` calls it; a training loop of your own has to.

    Args:
        in_width: feature width. On a graph without features X is the identity, and the rows of B^T are embeddings.
        hidden: width of the state.
        out_width: number of classes.
        dropout: rate on H before the output layer.
        input_dropout: rate on the features; True: the same rate.
        p: the norm that is bounded, "inf" (rows of W) or "1" (its columns).
        kappa: in (0, 1); the bound is kappa / lambda_pf(P). With kappa closer to 1 distant nodes have more influence,
            and the number of iterations grows like 1 / (1 - kappa).
        solver: of the fixed points: "picard", "anderson", or a record of :mod:`lmc.solvers`.
        tol: relative residual to solve to; None: the solver's own.
        start: the initial W, "random" (Glorot), or "identity": kappa times the identity. The bound makes the
            eigenvalues of a random W small, so that at first it passes on little from more than a few hops away. The
            identity begins with the longest memory that kappa admits.
        input: "features", or "embedding": for a graph without features, b(X) is one learned row per node, without c.
        seed: of the initial parameters.
    """

    lambda_pf: Tensor

    @typed
    def __init__(
        self, in_width: int, hidden: int, out_width: int, dropout: float = 0.0, *,
        input_dropout: float | bool = False, p: Literal["1", "inf"] = "inf", kappa: float = 0.95,
        solver: str | Solver = "picard", tol: float | None = None, start: Literal["random", "identity"] = "random",
        input: Literal["features", "embedding"] = "features", seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        configure(self, in_width, out_width, dropout, input_dropout, hidden=hidden)
        check_within("(0, 1)", "at 1 the fixed point may not exist", kappa=kappa)
        self.p, self.kappa, self._start = p, float(kappa), start
        chosen = solver_of(solver)
        self.solver = chosen if tol is None else replace(chosen, tol=tol)
        self.lin_in = Embedding(in_width, hidden) if input == "embedding" else Linear(in_width, hidden)
        self.act_in = None
        self.layers = nn.ModuleList([RecLayer(hidden)])
        self.lin_out = Linear(hidden, out_width)
        # lambda_pf of the graph's P; before prepare() measures it, that of the GCN normalisation
        self.register_buffer("lambda_pf", torch.ones(()))
        self.reset_parameters(seed)

    def reset_parameters(self, seed: int) -> None:
        super().reset_parameters(seed)
        if self._start == "identity":
            with torch.no_grad():
                self.W.copy_(self.kappa * torch.eye(self.W.shape[0]))
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
        bounded = self.W if self.p == "inf" else self.W.t()
        bounded.copy_(onto_l1_ball(bounded, radius))


@torch.no_grad()
def perron(P: CSR, max_steps: int = 1000) -> Tensor:
    """An upper bound of lambda_pf(P), P >= 0, by power iteration; one number on P's device.

    max_i (P x)_i / x_i bounds lambda_pf from above for every positive x (Collatz and Wielandt), so the result is an
    upper bound after any number of steps. The iteration starts from diag(P)^-1/2, which is the eigenvector of the GCN
    normalisation.
    """
    rows, loops = P.row_index(), torch.zeros(P.num_rows, dtype=torch.float64, device=P.device)
    on_diagonal = rows == P.indices
    loops[rows[on_diagonal]] = P.data[on_diagonal].double()
    x = loops.rsqrt().where(loops > 0, 1.0).unsqueeze(1)
    P = CSR(P.indptr, P.indices, P.data.double(), P.num_cols)
    bound = torch.tensor(torch.inf, dtype=torch.float64, device=P.device)
    for _ in range(max_steps):
        y = spmm(P, x)
        bound = torch.minimum(bound, (y / x).max())
        if bool(bound - y.norm() / x.norm() <= POWER_TOLERANCE * bound):
            break
        x = (y / y.max()).clamp_min(1e-30)  # the bound needs x > 0, also where a row of P is zero
    return bound


def onto_l1_ball(rows: Tensor, radius: Tensor) -> Tensor:
    """The nearest matrix whose rows have |row|_1 <= radius; rows inside are returned as they are.

    "Efficient Projections onto the l1-Ball for Learning in High Dimensions": soft-threshold at the t for which the
    row's sum is the radius, which is found from the sorted magnitudes.
    """
    size = rows.abs()
    ordered, _ = size.sort(dim=1, descending=True)
    over = ordered.cumsum(1) - radius
    count = torch.arange(1, rows.shape[1] + 1, device=rows.device, dtype=rows.dtype)
    last = (ordered * count > over).sum(1, keepdim=True).clamp_min(1)  # entries that stay non-zero
    t = over.gather(1, last - 1) / last
    shrunk = rows.sign() * (size - t).clamp_min(0)
    return rows.where(size.sum(1, keepdim=True) <= radius, shrunk)
