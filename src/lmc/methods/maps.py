"""What the maps of IMC are fitted with: K = (Q^T Q + lambda I)^-1 and lambda J of batches.

Q are the rows of the last sweep, for the fitted rows of a batch: every k-th row, with one k for all batches, where an
average batch has more rows than a map of r columns needs. Columns of Q are scaled to unit mean square (inside of K).
lambda is ``ridge`` times the mean of the Gram matrix' diagonal (:func:`inverse`), and grows where a batch has few
fitted rows per column.

A sweep stores both for every fixed batch, by layer, as the numbers ``K{l}`` [batches, r, r] and ``prior{l}``
[batches, r]. Where batches overlap, it stores ``scale{l}`` [r], with which a step can compute them. Layers of one width
are computed together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.kernels.copies import column_of
from lmc.kernels.packed import num_rows
from lmc.kernels.products import coarse_mm, exact_mm, lower_inverse
from lmc.kernels.sums import column_sums
from lmc.methods.protocol import ExactPasses, ProblemView
from lmc.stores import Rows

SLOTS = 64
"""Gram matrices that are inverted at a time."""

ROWS_PER_COLUMN = 20
"""Fitted rows of a batch per column of Q. With fewer, lambda grows with the square of the ratio of this number to the
rows that there are. If the average batch is larger, rows are left out of the fit until this number remains."""

LEAST = 1e-3
"""The least mean of the diagonal of a scaled Gram matrix that lambda follows. That of an average batch is about the
number of its fitted rows. The map of a batch whose rows are nearly all zero at the sweep is then J, and K is finite."""


def columns_of(numbers: Mapping[str, Tensor], l: int) -> int:
    """r, the columns of Q of layer l. The table itself is not asked: on a slower tier that writes back all its rows."""
    prior = numbers.get(f"prior{l}")
    return (numbers[f"scale{l}"] if prior is None else prior).shape[-1]


def by_width(numbers: Mapping[str, Tensor], layers: Iterable[int]) -> list[list[int]]:
    """The layers whose Q have as many columns: their Gram matrices are inverted together."""
    widths = {l: columns_of(numbers, l) for l in layers}
    return [[l for l in widths if widths[l] == width] for width in dict.fromkeys(widths.values())]


def mean_size(problem: ProblemView, numbers: Mapping[str, Tensor]) -> float:
    """The core rows of a batch, on average."""
    return problem.num_nodes / numbers["explained"].shape[1]


def stride(problem: ProblemView, numbers: Mapping[str, Tensor], l: int) -> int:
    """k: maps are fitted to every k-th row. It is the largest k with which an average batch keeps ROWS_PER_COLUMN rows
    for each column."""
    return max(1, int(mean_size(problem, numbers) / (ROWS_PER_COLUMN * columns_of(numbers, l))))


def gram_matrices(rows: Iterable[Tensor], dtype: torch.dtype) -> Tensor:
    """Q^T Q of every Q of ``rows``."""
    return torch.stack([coarse_mm(Q.t(), Q).to(dtype) for Q in rows])


def read_basis(exact: ExactPasses, l: int, batches: Sequence[Rows]) -> Tensor:
    """The Gram matrices Q[l]^T Q[l] of the fitted rows of batches of these rows, [batches, r, r]. Where batches
    overlap, the scale of the columns is stored too."""
    numbers, table = exact.numbers, exact.tables["Q"][l]
    k, r, dtype = stride(exact.problem, numbers, l), columns_of(numbers, l), exact.problem.accumulate_dtype
    if f"scale{l}" in numbers:
        squares = torch.stack([column_sums(table.pull(rows), squared=True) for rows in exact.chunks]).sum(0)
        numbers[f"scale{l}"].copy_(_scale(exact, squares))
    fitted = (table.pull(rows)[::k] for rows in batches)
    return gram_matrices(fitted, dtype) if batches else torch.empty(0, r, r, dtype=dtype, device=exact.problem.device)


def scales(numbers: Mapping[str, Tensor], layers: list[int]) -> Tensor | None:
    """The stored scales of these layers, [layers, r]; None where batches do not overlap."""
    found = [numbers[f"scale{l}"] for l in layers if f"scale{l}" in numbers]
    return torch.stack(found) if found else None


def _scale(exact: ExactPasses, squares: Tensor) -> Tensor:
    """What scales the columns of Q to unit mean square over all nodes, from their sums of ``squares``."""
    return (exact.total(squares) / exact.problem.num_nodes).clamp_min(1e-12).rsqrt()


@dataclass(frozen=True)
class Fit:
    """How maps are fitted.

    Args:
        ridge: lambda over the mean of the Gram matrix' diagonal, for batches with enough rows
            (:data:`ROWS_PER_COLUMN`).
        towards_sweep: lambda pulls the map towards J. False: towards 0, if Q does not hold the rows of the sweep.
    """

    ridge: float
    towards_sweep: bool

    def store(self, exact: ExactPasses, grams: Mapping[int, Tensor], batches: Sequence[Rows]) -> None:
        """Store K and lambda J of batches of these rows.

        Args:
            grams: their Gram matrices, by layer (:func:`read_basis`).
        """
        for layers in by_width(exact.numbers, grams) if batches else ():
            self._store(exact, layers, torch.cat([grams[l] for l in layers]), batches)

    def _store(self, exact: ExactPasses, layers: list[int], grams: Tensor, batches: Sequence[Rows]) -> None:
        """Store them for layers of one width."""
        numbers = exact.numbers
        scale = scales(numbers, layers)
        if scale is None:  # of fitted rows alone: a factor that all columns have in common cancels in K
            squares = grams.diagonal(dim1=-2, dim2=-1).unflatten(0, (len(layers), -1)).sum(1)
            scale = _scale(exact, squares)
        scale = scale.repeat_interleave(len(batches), 0)
        k = stride(exact.problem, numbers, layers[0])
        sizes = [num_rows(rows) / k for _ in layers for rows in batches]
        groups = [slice(i, i + SLOTS) for i in range(0, len(sizes), SLOTS)]
        found = zip(*(self.inverses(grams[some], scale[some], sizes[some]) for some in groups), strict=True)
        for name, parts in zip(("K", "prior"), found, strict=True):
            for l, of_layer in zip(layers, torch.cat(parts).split(len(batches)), strict=True):
                numbers[f"{name}{l}"].copy_(of_layer)

    def inverses(self, grams: Tensor, scale: Tensor, sizes: Sequence[float]) -> tuple[Tensor, Tensor]:
        """K and the diagonal of lambda J of batches with these Gram matrices of so many fitted rows."""
        few = [ROWS_PER_COLUMN * grams.shape[-1] / size for size in sizes]
        K, prior = inverse(grams, scale, column_of([self.ridge * max(1.0, each**2) for each in few], scale))
        return K, prior if self.towards_sweep else torch.zeros_like(prior)


@torch.no_grad()
def inverse(grams: Tensor, scale: Tensor, ridge: float | Tensor) -> tuple[Tensor, Tensor]:
    """K = D (D G D + lambda I)^-1 D of Gram matrices G [k, r, r], with D = diag(scale), [r] or [k, r]; and the diagonal
    of lambda D^-2, [k, r].

    lambda is the ridge, one number or [k, 1], x the mean of the diagonal of D G D, or x :data:`LEAST` where that is
    larger. The Cholesky factor L is computed in float64, since the condition of D G D is about r / ridge.
    """
    d = scale.double()
    G = grams * d.unsqueeze(-2) * d.unsqueeze(-1)
    diagonal = G.diagonal(dim1=-2, dim2=-1)
    added = diagonal.mean(-1, keepdim=True).clamp_min(LEAST) * ridge
    diagonal += added
    L = torch.linalg.cholesky_ex(G).L.to(grams.dtype)  # its condition is the root of that of D G D
    half = lower_inverse(L) * scale.unsqueeze(-2)  # L^-1 D
    return exact_mm(half.mT, half), (added / d.square()).to(grams.dtype)
