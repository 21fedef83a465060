"""The one sparse product, and the aggregation operators that differentiate through it.

The adjoint of ``A @ x`` is ``A^T @ g``. The normalised adjacency of an undirected graph is symmetric, and so is the
block of it induced on any set of nodes. The backward product then uses the same arrays, and nothing is transposed in a
step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import scipy.sparse
import torch
from torch import Tensor

from lmc.graph.csr import CSR, from_rows, pointer_dtype


def spmm(A: CSR, x: Tensor, out: Tensor | None = None) -> Tensor:
    """``A @ x`` without autograd (cuSPARSE on a GPU, MKL on a CPU), written into ``out`` where it is given.

    The product has the dtype of the rows ``x``, to which the values of A are converted once.
    """
    if out is None:
        out = x.new_empty(A.num_rows, x.shape[1])
    # beta = 0 overwrites ``out``; `A @ x` would first fill the result with zeros
    return out.zero_() if A.nnz == 0 else _addmm(out, A, x, beta=0)


def accumulate(out: Tensor, A: CSR, x: Tensor) -> Tensor:
    """``out += A @ x`` in place, without autograd."""
    return out if A.nnz == 0 else _addmm(out, A, x, beta=1)


def _addmm(out: Tensor, A: CSR, x: Tensor, beta: int) -> Tensor:
    """``out = beta out + A @ x``; bfloat16 is summed in float32 and rounded once."""
    if A.indptr.dtype != torch.int32:
        for rows, piece in A.pieces():
            _addmm(out[rows], piece, x, beta)
        return out
    if x.dtype != torch.bfloat16:
        return torch.addmm(out, A.as_torch(x.dtype), x, beta=beta, out=out)
    # MKL has no bfloat16 product, and cuSPARSE divides long rows and rounds the partial sums
    total = out.float() if beta else torch.empty(out.shape, dtype=torch.float32, device=out.device)
    return out.copy_(torch.addmm(total, A.as_torch(torch.float32), x.float(), beta=beta, out=total))


def sparse_product(A: CSR, B: CSR) -> CSR:
    """``A @ B`` of two sparse matrices, by scipy on the CPU: for sparse features that are aggregated in advance."""
    a, b = (
        scipy.sparse.csr_matrix((m.data.cpu().numpy(), m.indices.cpu().numpy(), m.indptr.cpu().numpy()), m.shape)
        for m in (A, B)
    )
    c = a @ b
    indptr, indices, values = (torch.from_numpy(part).to(A.device) for part in (c.indptr, c.indices, c.data))
    return CSR(indptr.to(pointer_dtype(c.nnz)), indices.to(torch.int32), values, c.shape[1])


def hstack(A: CSR, B: CSR) -> CSR:
    """[A | B]."""
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

    Args:
        forward: the matrix of the forward pass.
        backward: the matrix of the backward pass: the transpose, or a leading block of it for methods that discard
            adjoints. Rows of ``t`` beyond the rows of ``backward`` get a zero adjoint.
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
        """The adjoints of the inputs for adjoints ``v`` of the outputs."""
        back = self.backward
        q = spmm(back, v if back.num_cols == v.shape[0] else v[: back.num_cols])
        if back.num_rows == self.num_inputs:
            return q
        padded = q.new_zeros(self.num_inputs, q.shape[1])
        padded[: back.num_rows] = q
        return padded

    def __call__(self, t: Tensor, clean: Tensor | None = None) -> Tensor:
        """P t; ``clean``, the rows before dropout, is for operators that store rows."""
        return _Product.apply(t, self)

    def complete(self, *rows: Tensor) -> tuple[Aggregation, tuple[Tensor, ...]]:
        """The aggregation over rows that are all here, and these rows: the given ones, unless other ranks have more."""
        return self, rows


class Exact(Aggregation):
    """An aggregation with its true adjoint, whose matrix is transposed when the transpose is first needed. A sampled
    operator of the first layer never needs it."""

    def __init__(self, matrix: CSR) -> None:
        object.__setattr__(self, "forward", matrix)

    @property
    def backward(self) -> CSR:
        return self.forward.t()


@dataclass(frozen=True, eq=False)
class WithStoredHalo(Aggregation):
    """An aggregation with the stored states of its last rows, the halo, for layers that complete halo rows."""

    stored_halo: Tensor


@dataclass(frozen=True, eq=False)
class Around:
    """The rows of an operator that changes what the aggregation ``P`` gives."""

    P: Aggregation

    @property
    def num_inputs(self) -> int:
        return self.P.num_inputs

    @property
    def num_outputs(self) -> int:
        return self.P.num_outputs


@dataclass(frozen=True)
class Precomputed:
    """The operator of a layer whose input rows are aggregated already (P X, computed once): it returns them."""

    num_outputs: int

    @property
    def num_inputs(self) -> int:
        return self.num_outputs

    def __call__(self, t: Tensor, clean: Tensor | None = None) -> Tensor:
        return t
