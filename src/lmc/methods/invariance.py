"""The map of IMC in one step: messages from outside of a batch as a linear function of the rows inside.

With Q the rows of the last sweep at the rows B of the batch, t the rows to sum and h the same rows before dropout,

    C = K (Q^T h + lambda J),   K = (Q^T Q + lambda I)^-1
    m = P t + S C                                         S = M - P Q, or M C + P (t - Q C) from M

and backward, with adjoints v of m,

    g = P^T v,   dt = g,   dC = S^T v = M^T v - Q^T g,   dh = Q K dC

Where a batch norm follows whose statistics depend on C, their adjoint is added to dC.

:mod:`lmc.methods.imc` derives these equations and computes Q, S and M, :mod:`lmc.methods.maps` K and lambda J.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lmc.graph import Around, Precomputed, accumulate, spmm
from lmc.kernels.beside import beside
from lmc.kernels.products import add_coarse_mm, coarse_mm, exact_mm
from lmc.kernels.sums import column_sums
from lmc.models.activation import every
from lmc.models.rows import as_rows, outer
from lmc.models.statistics import Distribution

SAMPLE = 1024
"""The unexplained share is measured on about this many rows of a batch."""


class _Invariant(torch.autograd.Function):
    """m = P t + S C, and C itself."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, h: Tensor, op: Invariance) -> tuple[Tensor, Tensor]:
        outside = beside(t.device, lambda: op.map(h))
        m = op.sum(t, outside)
        C = outside()
        ctx.op, ctx.kept = op, (h, C)  # until they are measured
        op.measure(h, C, joined=any(ctx.needs_input_grad))
        ctx.set_materialize_grads(False)
        return m, C.view_as(C)  # a view, since this node keeps C and may not keep its own result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (v, of_map), op = grads, ctx.op
        g = op.P.adjoint(v) if op.whole_sums else None

        def map_adjoint() -> Tensor:
            dC = op.outside_adjoint(v, g)
            return op.map_adjoint(dC if of_map is None else dC + of_map)

        dh = beside(v.device, map_adjoint)
        return op.P.adjoint(v) if g is None else g, dh(), None


class _InvariantLinear(torch.autograd.Function):
    """m W^T + b without m: the products run on the narrow side, P (t W^T) + S (C W^T) + b.

    With D = S^T v, g = P^T v:  dW = D^T C + g^T t,  dt = g W,  dC = D W.
    """

    @staticmethod
    def forward(ctx: Any, t: Tensor, h: Tensor, W: Tensor, b: Tensor | None, op: Invariance) -> Tensor:
        W = as_rows(W, t)
        outside = beside(t.device, lambda: (C := op.map(h), C @ W.t()))
        s = op.sum(t @ W.t(), lambda: outside()[1])
        C = outside()[0]
        ctx.op, ctx.kept = op, h  # until it is measured
        ctx.save_for_backward(t, W, C)
        op.measure(h, C, joined=any(ctx.needs_input_grad))
        return s if b is None else s.add_(as_rows(b, t))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None]:
        (v,), op = grads, ctx.op
        t, W, C = ctx.saved_tensors
        g = op.P.adjoint(v) if op.whole_sums else None

        def outside() -> tuple[Tensor, Tensor]:
            D = op.outside_adjoint(v, g)
            return op.map_adjoint(D @ W.to(D.dtype)), D.t() @ C.to(D.dtype)

        adjoints = beside(v.device, outside)
        g = op.P.adjoint(v) if g is None else g
        dt, inside, db = g @ W, outer(g, t), column_sums(v) if ctx.needs_input_grad[3] else None
        dh, dW = adjoints()
        return dt, dh, dW.add_(inside), db, None


@dataclass(frozen=True, eq=False)
class Swept:
    """What the map of one layer reads of the last sweep.

    Args:
        Q: the rows of the sweep, for the fitted rows.
        K: the inverse of the Gram matrix with its ridge, [r, r].
        prior: the diagonal of lambda J, [r].
        real: whether a fitted row is that of a node, [fitted rows, 1]; None where no row is padding.
        all_rows: where M is read, the rows of the sweep for all rows of the batch.
    """

    Q: Tensor
    K: Tensor
    prior: Tensor
    real: Tensor | None
    all_rows: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Invariance(Around):
    """The operator of one layer in one step. Its map is fitted to every ``stride``-th row of the batch.

    Args:
        read: gives what the map reads of the last sweep.
        pull_sums: gives S, or with ``whole_sums`` M, of the rows of the batch.
        explained: where |h - Q C| and |h| of some fitted rows of every batch are stored, from which :func:`unexplained`
            follows, and the place of this batch there; None: nothing is stored.
        whole_moments: mean and covariance over all nodes of the rows of P Q, or of [P Q, Q], [1 + r, r] or
            [1 + 2 r, 2 r]; None: no batch norm reads them.
    """

    read: Callable[[], Swept]
    pull_sums: Callable[[], Tensor]
    stride: int
    whole_sums: bool
    explained: tuple[Tensor, Tensor] | None
    whole_moments: Tensor | None

    def __call__(self, t: Tensor, clean: Tensor | None = None) -> Tensor:
        # the node of autograd keeps a copy: if it kept this operator, which keeps a result of the node, both would
        # outlive the step until the garbage collector runs
        m, vars(self)["C"] = _Invariant.apply(t, self._fitted(t, clean), replace(self))
        return m

    def distribution(self) -> Distribution | None:
        """That of P Q C, or of P Q C and Q C: the map predicts Q C for the rows of all nodes."""
        found = self.whole_moments
        if found is None or "C" not in vars(self):
            return None
        C = vars(self)["C"].to(found.dtype)
        means = found[:1].split(C.shape[0], 1)
        return Distribution(tuple(mean @ C for mean in means), C, found[1:])

    def linear_first(self, W: Tensor, b: Tensor | None, t: Tensor, clean: Tensor | None) -> Tensor | None:
        """(P t) W^T + b with the weights first; None where statistics of all nodes are asked for, which need C."""
        return None if self.whole_moments is not None else _InvariantLinear.apply(t, self._fitted(t, clean), W, b, self)

    def _fitted(self, t: Tensor, clean: Tensor | None) -> Tensor:
        """The rows h that the map is fitted to; in the others, the adjoint of the map is zero."""
        return every(t if clean is None else clean, self.stride)

    @cached_property
    def swept(self) -> Swept:
        return self.read()

    @cached_property
    def sums(self) -> Tensor:
        return self.pull_sums()

    def map(self, h: Tensor) -> Tensor:
        """C = K (Q^T h + lambda J) of the fitted rows h, in their dtype."""
        moments = coarse_mm(self.swept.Q.t(), h)
        moments.diagonal().add_(self.swept.prior[: h.shape[1]])
        return exact_mm(self.swept.K, moments).to(h.dtype)

    def measure(self, h: Tensor, C: Tensor, joined: bool) -> None:
        """Store what C explains of about ``SAMPLE`` rows, beside the rest of the step.

        Args:
            joined: if True, the backward pass of this layer waits for the measurement; otherwise this call does.
        """
        if self.explained is None:
            return
        explained, place = self.explained
        some, real = slice(None, None, max(1, h.shape[0] // SAMPLE)), self.swept.real

        def stored() -> None:
            rows = h[some] if real is None else h[some] * real[some]
            missed = torch.addmm(rows, self.swept.Q[some], C, alpha=-1)
            sizes = torch.stack([torch.linalg.vector_norm(each, dtype=explained.dtype) for each in (missed, rows)])
            explained.index_copy_(0, place, sizes.unsqueeze(0))

        join = beside(h.device, stored)
        if not joined:
            join()

    def sum(self, t: Tensor, map: Callable[[], Tensor]) -> Tensor:
        """P t + S C with C = map(), which may be computed meanwhile; from M it is M C + P (t - Q C).

        S is read after the sparse product and before the map is waited for, so that the cache still has it when it is
        multiplied.
        """
        if not self.whole_sums:
            inside = spmm(self.P.forward, t.to(self.swept.Q.dtype))
            S = self.sums
            return add_coarse_mm(inside, S, map())
        M, Q = self.sums, self.swept.all_rows
        assert Q is not None
        C = map()
        inside = coarse_mm(Q, C, minus_from=t.to(Q.dtype))  # under autocast t has another type
        return accumulate(coarse_mm(M, C), self.P.forward, inside)

    def outside_adjoint(self, v: Tensor, g: Tensor | None) -> Tensor:
        """S^T v; from M and g = P^T v where S is not stored."""
        product, Q = coarse_mm(self.sums.t(), v), self.swept.all_rows
        return product if Q is None or g is None else coarse_mm(Q.t(), g, minus_from=product)

    def map_adjoint(self, dC: Tensor) -> Tensor:
        """dh = Q K dC of the fitted rows."""
        return coarse_mm(self.swept.Q, exact_mm(self.swept.K, dC))


@dataclass(frozen=True, eq=False)
class KnownSums(Around):
    """The first layer on features x: they never change, so that C = I and m = M + P (t - x), with the rows t that a
    layer drops out itself.

    Args:
        M: P X, on which the dropout of the features falls.
    """

    M: Tensor

    def __call__(self, t: Tensor, clean: Tensor | None = None) -> Tensor:
        return self.M if clean is None or clean is t else self.M + self.P(t - clean)


@dataclass(frozen=True, eq=False)
class KnownInputs(Precomputed):
    """The first layer on P X, whose mean and covariance over all nodes, [1 + k, k], are constant."""

    moments: Tensor

    def distribution(self) -> Distribution:
        """That of P X."""
        directions = torch.eye(self.moments.shape[1], dtype=self.moments.dtype, device=self.moments.device)
        return Distribution((self.moments[:1],), directions, self.moments[1:])


def unexplained(explained: Tensor) -> float:
    """The share |h - Q C|^2 / |h|^2 over all batches and layers.

    Numbers are added up in the order of their sizes, so that ranks, which list batches in other orders, get the same.
    """
    missed, size = explained.square().flatten(0, 1).sort(0).values.sum(0).tolist()
    return missed / max(size, 1e-30)
