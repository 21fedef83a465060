"""The ONE sparse product, with its autograd.

``product(A, x)`` is ``A @ x``; its adjoint is ``A^T @ g``. The normalised adjacency of an undirected graph is
symmetric, and so is the part of it induced on any set of nodes, so the backward product mostly runs over the
same arrays: nothing is transposed per step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import scipy.sparse
import torch
from torch import Tensor

from lmc.graph.csr import CSR, from_rows


def spmm(A: CSR, x: Tensor, out: Tensor | None = None) -> Tensor:
    """``A @ x`` without autograd: cuSPARSE on a GPU, MKL on a CPU; into ``out`` where it is given.

    The product has the type of its rows ``x``, to which the values of A are converted, once.
    """
    if out is None:
        out = x.new_empty(A.num_rows, x.shape[1])
    # beta = 0: the product overwrites; `A @ x` would fill the result with zeros first
    return out.zero_() if A.nnz == 0 else _addmm(out, A, x, beta=0)


def accumulate(out: Tensor, A: CSR, x: Tensor) -> Tensor:
    """``out += A @ x`` in place, without autograd."""
    return out if A.nnz == 0 else _addmm(out, A, x, beta=1)


def _addmm(out: Tensor, A: CSR, x: Tensor, beta: int) -> Tensor:
    """``out = beta out + A @ x``; bfloat16 is summed in float32 and rounded once."""
    if x.dtype != torch.bfloat16:
        return torch.addmm(out, A.as_torch(x.dtype), x, beta=beta, out=out)
    # MKL has no such product, and cuSPARSE rounds the sums of the pieces it cuts long rows into
    wide = out.float() if beta else torch.empty(out.shape, dtype=torch.float32, device=out.device)
    return out.copy_(torch.addmm(wide, A.as_torch(torch.float32), x.float(), beta=beta, out=wide))


def sparse_product(A: CSR, B: CSR) -> CSR:
    """``A @ B`` of two sparse matrices, on the CPU, once (scipy): for sparse features aggregated in advance."""
    a, b = (
        scipy.sparse.csr_matrix((m.data.cpu().numpy(), m.indices.cpu().numpy(), m.indptr.cpu().numpy()), m.shape)
        for m in (A, B)
    )
    c = a @ b
    arrays = (torch.from_numpy(part).to(A.device) for part in (c.indptr, c.indices, c.data))
    indptr, indices, values = arrays
    return CSR(indptr.to(torch.int32), indices.to(torch.int32), values, c.shape[1])


def hstack(A: CSR | Tensor, B: CSR | Tensor) -> CSR | Tensor:
    """[A | B]: two matrices of one kind side by side."""
    if isinstance(A, Tensor) and isinstance(B, Tensor):
        return torch.cat([A, B], 1)
    assert isinstance(A, CSR)
    assert isinstance(B, CSR)
    rows = torch.cat([A.row_index(), B.row_index()])
    order = rows.sort(stable=True).indices
    cols = torch.cat([A.indices, B.indices + A.num_cols])
    values = torch.cat([A.data, B.data])
    return from_rows(rows[order], cols[order], values[order], (A.num_rows, A.num_cols + B.num_cols))


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, op: Aggregation) -> Tensor:
        ctx.op = op
        return spmm(op.forward, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.op.adjoint(grads[0]), None


@dataclass(frozen=True, eq=False)
class Aggregation:
    """The operator P of a layer: ``P(t)`` sums the messages ``t`` of each row's neighbours.

    ``forward`` is the matrix of the forward pass. ``backward`` is that of the backward pass: the transpose, or a
    leading block of it for methods that discard adjoints. Rows of ``t`` beyond its own get a zero adjoint.
    """

    forward: CSR
    backward: CSR

    @classmethod
    def exact(cls, matrix: CSR) -> Aggregation:
        """The operator whose backward pass is the true adjoint."""
        return Exact(matrix)

    @property
    def num_inputs(self) -> int:
        return self.forward.num_cols

    @property
    def num_outputs(self) -> int:
        return self.forward.num_rows

    def adjoint(self, v: Tensor) -> Tensor:
        """What the backward pass sends to the inputs for adjoints ``v`` of the outputs."""
        back = self.backward
        q = spmm(back, v if back.num_cols == v.shape[0] else v[: back.num_cols])
        if back.num_rows == self.num_inputs:
            return q
        padded = q.new_zeros(self.num_inputs, q.shape[1])
        padded[: back.num_rows] = q
        return padded

    def __call__(self, t: Tensor, clean: Tensor | None = None) -> Tensor:
        """P t; ``clean``, the rows before dropout, is for operators that keep rows."""
        return _Product.apply(t, self)


class Exact(Aggregation):
    """An aggregation with its true adjoint, whose matrix is transposed only when it is asked for: a sampled operator
    that reads the features never is."""

    def __init__(self, matrix: CSR) -> None:
        object.__setattr__(self, "forward", matrix)

    @property
    def backward(self) -> CSR:
        return self.forward.t()


@dataclass(frozen=True, eq=False)
class WithStoredHalo(Aggregation):
    """An aggregation that also brings the stored states of its trailing rows, the halo, for layers that need them."""

    stored_halo: Tensor


@dataclass(frozen=True)
class Precomputed:
    """The operator of a layer whose input rows are aggregated already (P X computed once): it does nothing."""

    num_outputs: int

    @property
    def num_inputs(self) -> int:
        return self.num_outputs

    def __call__(self, t: Tensor, clean: Tensor | None = None) -> Tensor:
        return t
