"""IMC, invariant message compensation: steps without a halo; and TOP, the method it descends from.

Messages from outside of a batch are nearly a linear function of the rows inside of it ("Accurate and Scalable Graph
Neural Networks via Message Invariance", which is TOP). IMC keeps that function up to date: every few epochs a *sweep*,
one exact forward pass over the whole graph, stores for every layer the rows Q that it aggregates and their sums

    M = P Q

In a step on the core rows B, with t the rows to sum, h the same rows before dropout, and P restricted to B x B,

    C = K Q^T h,   K = (Q^T Q + lambda I)^-1        the map from the rows of the sweep to today's rows
    m = P t + (M - P Q) C                           inside exactly, outside by the map
      = M C + P (t - Q C)                           the same with one sparse product

lambda is ``ridge`` times the mean of the Gram matrix' diagonal. The gradient flows through C, so the adjoints that come
from outside are compensated by the same formula:

    g = P^T v,   dt = g,   dC = M^T v - Q^T g,   dh = Q K dC

A step touches core rows alone: no halo is computed, read or written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmc.errors import ConfigError
from lmc.graph import CSR, Aggregation, Around, accumulate, spmm
from lmc.kernels.products import coarse_mm
from lmc.methods.protocol import ExactPasses, HistoryMethod, Layout, ProblemView, Setup, Step, Traits, Widths, operators
from lmc.models import Model, Operator
from lmc.models.rows import as_rows, outer
from lmc.sampling import generator
from lmc.stores import Rows

BASES = ("auto", "T", "T+X1", "random")

SLOTS = 64
"""Gram matrices that are inverted at a time."""

UNEXPLAINED = 0.01
"""The share |h - Q C|^2 / |h|^2 of a batch from which on ``sweep_every="auto"`` sweeps."""


class _Invariant(torch.autograd.Function):
    """m = M C + P (t - Q C)."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, h: Tensor, op: Invariance) -> Tensor:
        ctx.op = op
        C = op.map(h)
        m = coarse_mm(op.M, C)
        return accumulate(m, op.P.forward, t - coarse_mm(op.Q, C))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (v,), op = grads, ctx.op
        g = op.P.adjoint(v)
        return g, op.map_adjoint(coarse_mm(op.M.t(), v) - coarse_mm(op.Q.t(), g)), None


class _InvariantLinear(torch.autograd.Function):
    """m W^T + b without m: the products run on the narrow side, M (C W^T) + P (t W^T - Q (C W^T)) + b.

    With D = M^T v - Q^T g, g = P^T v:  dW = D^T C + g^T t,  dt = g W,  dC = D W.
    """

    @staticmethod
    def forward(ctx: Any, t: Tensor, h: Tensor, W: Tensor, b: Tensor | None, op: Invariance) -> Tensor:
        W = as_rows(W, t)
        C = op.map(h)
        ctx.op = op
        ctx.save_for_backward(t, W, C)
        CW = C @ W.t()
        s = coarse_mm(op.M, CW) if b is None else coarse_mm(op.M, CW).add_(as_rows(b, t))
        return accumulate(s, op.P.forward, t @ W.t() - coarse_mm(op.Q, CW))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None]:
        (v,), op = grads, ctx.op
        t, W, C = ctx.saved_tensors
        g = op.P.adjoint(v)
        D = coarse_mm(op.M.t(), v) - coarse_mm(op.Q.t(), g)
        dW = D.t() @ C.to(D.dtype) + outer(g, t)
        db = v.sum(0, dtype=D.dtype) if ctx.needs_input_grad[3] else None
        return g @ W, op.map_adjoint(D @ W.to(D.dtype)), dW, db, None


@dataclass(frozen=True, eq=False)
class Invariance(Around):
    """The operator of one layer in one step.

    Args:
        Q, M: the rows of the last sweep and their sums, for the core rows, [|B|, r].
        K: the inverse of the Gram matrix, [r, r].
        residual: where the share of h that Q does not explain is stored, |h - Q C|^2 / |h|^2; None: nowhere.
    """

    Q: Tensor
    M: Tensor
    K: Tensor
    residual: Tensor | None

    def __call__(self, t: Tensor, clean: Tensor | None = None) -> Tensor:
        return _Invariant.apply(t, t if clean is None else clean, self)

    def linear_first(self, W: Tensor, b: Tensor | None, t: Tensor, clean: Tensor | None) -> Tensor:
        """(P t) W^T + b with the weights first."""
        return _InvariantLinear.apply(t, t if clean is None else clean, W, b, self)

    def map(self, h: Tensor) -> Tensor:
        """C = K Q^T h, in the dtype of the rows."""
        Qh = coarse_mm(self.Q.t(), h)
        C = self.K @ Qh
        if self.residual is not None:
            # lambda |C|^2 is left out: it is far below the residuals that a sweep waits for
            self.residual.copy_(1 - (Qh * C).sum() / h.square().sum(dtype=Qh.dtype).clamp_min(1e-30))
        return C.to(h.dtype)

    def map_adjoint(self, dC: Tensor) -> Tensor:
        """dh = Q K dC."""
        return coarse_mm(self.Q, (self.K @ dC).to(self.Q.dtype))


@dataclass(frozen=True, eq=False)
class KnownSums(Around):
    """The first layer on features: the rows Q = X never change, so that C = I and m = M + P (t - x)."""

    M: Tensor

    def __call__(self, t: Tensor, clean: Tensor | None = None) -> Tensor:
        return self.M if clean is None or clean is t else self.M + self.P(t - clean)


@torch.no_grad()
def inverse(grams: Tensor, ridge: float) -> Tensor:
    """K = (G + lambda I)^-1 of Gram matrices [..., r, r], lambda = ridge x the mean of the diagonal of G.

    The inverse is computed in float64, since the condition of G is about 1 / ridge.
    """
    G = grams.double()
    diagonal = G.diagonal(dim1=-2, dim2=-1)
    diagonal += (ridge * diagonal.mean(-1, keepdim=True)).clamp_min(1e-30)
    return torch.cholesky_inverse(torch.linalg.cholesky_ex(G).L).to(grams.dtype)


@dataclass(frozen=True)
class IMC(HistoryMethod):
    """Messages from outside as a linear function of the rows inside, which follows the parameters.

    Args:
        sweep_every: epochs between two sweeps, steps between them as in "50steps", "auto", or 0 for no sweep after the
            first. "auto" sweeps before an epoch where the share of the rows that the last sweep does not explain has
            exceeded :data:`UNEXPLAINED`.
        ridge: lambda over the mean of the Gram matrix' diagonal.
        basis: the columns of Q: "T", the rows that the layer aggregates; "T+X1", with the first aggregation P X beside
            them, projected to at most as many columns; "auto", the latter where P X is constant; or "random", the rows
            of a model with random parameters.
    """

    sweep_every: int | str = "auto"
    ridge: float = 1e-3
    basis: str = "auto"

    traits: ClassVar[Traits] = Traits(
        "imc", "IMC", outside="by a linear map of the core rows in both directions, fitted to the last sweep",
        accepts="linear aggregation", reads=("rows",), bundles=(frozenset({"Q", "M"}),), grad_from_all_rows=True,
        batch_norm="renormalised", sweeps=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        self.period  # noqa: B018 - refuses a wrong one
        if not self.ridge > 0:
            raise ConfigError(f"expected a positive ridge (got {self.ridge})")
        if self.basis not in BASES:
            raise ConfigError(f"expected basis in {list(BASES)} (got {self.basis!r})")

    @property
    def setup(self) -> Setup:
        """Dropout on the features falls on P X, since their messages from outside are not computed in a step."""
        return Setup(swap_dropout=True)

    @property
    def period(self) -> tuple[int, str]:
        """(3, "epochs"), (50, "steps"), (0, "epochs") for never, or (0, "auto")."""
        every = self.sweep_every
        if every == "auto":
            return 0, "auto"
        if isinstance(every, int) and every >= 0:
            return every, "epochs"
        found = re.fullmatch(r"(\d+)(steps?|epochs?)?", str(every))
        if found is None:
            raise ConfigError(f'expected sweep_every as in 3, "50steps" or "auto" (got {every!r})')
        return int(found[1]), "steps" if (found[2] or "").startswith("step") else "epochs"

    def check(self, model: Model) -> None:
        if not model.linear:
            raise ConfigError(
                f"expected a model with a linear aggregation (got {type(model).__name__}, whose aggregation depends on "
                "the rows): IMC maps sums of messages; use LMC4Conv"
            )

    def layout(self, problem: ProblemView, core: Tensor) -> Layout:
        P = Aggregation.exact(problem.blocks.induced(core))
        return Layout(core[:0], operators(problem, core.numel(), P))

    def tables(self, problem: ProblemView) -> Widths:
        """Q and M for every aggregation that is neither constant nor one of features; M = P X for one of features."""
        extra = self._projected_width(problem)
        widths = {l: width + min(width, extra) for l, width in problem.model.message_widths.items()}
        tables = {"Q": widths, "M": dict(widths)}
        if 1 not in widths and not problem.aggregated:
            if isinstance(problem.graph.x, CSR):
                raise ConfigError(
                    "expected dense features for IMC where the first aggregation is not constant (got sparse ones): "
                    "use CMC, or features without dropout"
                )
            tables["M"][1] = problem.graph.num_features
        return tables

    def _projected_width(self, problem: ProblemView) -> int:
        """The columns of P X that may join the basis; 0: none."""
        wanted = self.basis == "T+X1" or (self.basis == "auto" and problem.aggregated)
        return problem.graph.num_features if wanted and problem.aggregated else 0

    def numbers(self, problem: ProblemView, num_batches: int) -> dict[str, Tensor]:
        """K of every fixed batch, by layer, and the share of its rows that the sweep does not explain."""
        residual = torch.zeros(problem.model.num_layers + 1, num_batches, dtype=problem.accumulate_dtype)
        if self.redraw:
            return {"residual": residual}
        widths, dtype = self.tables(problem)["Q"], problem.accumulate_dtype
        return {"residual": residual} | {
            f"K{l}": torch.zeros(num_batches, r, r, dtype=dtype) for l, r in widths.items()
        }

    def operator(self, step: Step, l: int) -> Operator:
        P, batch = step.batch.operators[l - 1], step.batch
        if l not in step.tables["M"] or batch.num_core == step.problem.graph.num_nodes:
            return P
        assert isinstance(P, Aggregation)
        M = step.tables["M"][l].pull(batch.rows)
        if l not in step.tables["Q"]:
            return KnownSums(P, M)
        Q = step.tables["Q"][l].pull(batch.rows)
        K = inverse(outer(Q, Q), self.ridge) if self.redraw else step.numbers[f"K{l}"][batch.slot]
        return Invariance(P, Q, M, K, step.numbers["residual"][l, batch.slot] if step.keep else None)

    def due(self, numbers: dict[str, Tensor], epoch: int, step: int, num_batches: int) -> bool:
        every, unit = self.period
        if unit == "auto":
            return step == 0 and (epoch == 0 or float(numbers["residual"].max()) > UNEXPLAINED)
        if every == 0:
            return epoch == step == 0
        return (epoch * num_batches + step) % every == 0 if unit == "steps" else step == 0 and epoch % every == 0

    @torch.no_grad()
    def fill(self, exact: ExactPasses) -> None:
        """The sweep."""
        Q = exact.tables["Q"]
        squares = {l: exact.numbers["residual"].new_zeros(table.data().shape[1]) for l, table in Q.items()}
        for l, rows, t in exact.messages(random=self.basis == "random"):
            q = torch.cat([t, self._first_sums(exact.problem, rows, squares[l].numel() - t.shape[1])], 1)
            squares[l] += q.square().sum(0, dtype=squares[l].dtype)
            Q[l].push(rows, q)
        n = exact.problem.graph.num_nodes
        for l, table in Q.items():
            scale = (squares[l] / n).clamp_min(1e-12).rsqrt()  # columns of unit mean square
            for rows in exact.chunks:
                table.push(rows, table.pull(rows) * scale)
            for first in range(0, len(exact.cores), SLOTS):
                rows_of = [table.pull(core) for core in exact.cores[first : first + SLOTS]]
                K = inverse(torch.stack([outer(Q_core, Q_core) for Q_core in rows_of]), self.ridge)
                exact.numbers[f"K{l}"][first : first + SLOTS] = K
        self.regraph(exact)
        exact.numbers["residual"].zero_()

    def _first_sums(self, problem: ProblemView, rows: Rows, width: int) -> Tensor:
        """``width`` columns of X1 = P X; a random projection where it has more."""
        x1, k = problem.inputs(rows), problem.graph.num_features
        if isinstance(x1, Tensor) and width == k:
            return x1[:, :k]
        source = generator(torch.device("cpu"), 0, "projection", k, width)
        R = torch.zeros(x1.shape[1], width, dtype=torch.float64)  # a model may read X beside P X
        R[:k] = (
            torch.eye(k) if width == k else torch.randn(k, width, generator=source, dtype=torch.float64) / width**0.5
        )
        R = R.to(problem.device, x1.dtype)
        return spmm(x1, R) if isinstance(x1, CSR) else x1 @ R

    def regraph(self, exact: ExactPasses) -> None:
        """M = P Q with the current P."""
        for l, sums in exact.tables["M"].items():
            if l in exact.tables["Q"]:
                exact.fill_sums(l, exact.tables["Q"][l], sums)
            else:
                exact.fill_feature_sums(sums)


@dataclass(frozen=True)
class TOP(IMC):
    """TOP as published: the basis is computed once, from random parameters, and the map is a plain pseudo-inverse."""

    sweep_every: int | str = 0
    ridge: float = 1e-6
    basis: str = "random"

    traits: ClassVar[Traits] = Traits(
        "top", "TOP", outside="by a linear map of the core rows in both directions, fitted once at random parameters",
        accepts="linear aggregation", reads=("rows",), bundles=(frozenset({"Q", "M"}),), grad_from_all_rows=True,
        batch_norm="renormalised", sweeps=True,
    )  # fmt: skip
