"""Mean and second moments of rows that come in pieces."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lmc.kernels.products import coarse_mm
from lmc.kernels.sums import column_sums


class RowMoments:
    """The mean of rows, and their covariance or variance. Differences from means are squared, so that nothing cancels.

    Args:
        mean: a tensor of the shape and the type of the mean, [k].
        covariance: the covariance [k, k] is computed; else the variance of every column, [k].
    """

    def __init__(self, mean: Tensor, covariance: bool) -> None:
        self._size, self._mean = 0, torch.zeros_like(mean)
        self._about = mean.new_zeros(mean.numel(), mean.numel()) if covariance else torch.zeros_like(mean)

    def add(self, rows: Tensor) -> None:
        """Add a piece of the rows."""
        part = rows.to(self._mean.dtype)
        shift, share = column_sums(part) / len(part) - self._mean, len(part) / (self._size + len(part))
        part = part - (self._mean + shift)
        within = coarse_mm(part.t(), part) if self._about.dim() == 2 else column_sums(part, squared=True)
        self._about += _with_square(within, shift, self._size * share)
        self._mean += shift * share
        self._size += len(part)

    def of_all(self, n: int, total: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Both over the rows of all ranks, n of them.

        Args:
            total: gives the sum of a tensor over all ranks.
        """
        mean = total(self._mean * self._size) / n
        return mean, total(_with_square(self._about, self._mean - mean, self._size)) / n


def _with_square(about: Tensor, shift: Tensor, weight: float) -> Tensor:
    """``about`` += weight x the square of ``shift``, its outer product for a covariance."""
    return about.addr_(shift, shift, alpha=weight) if about.dim() == 2 else about.addcmul_(shift, shift, value=weight)
