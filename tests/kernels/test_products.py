"""Inverses of triangular matrices."""

from __future__ import annotations

import pytest
import torch

from helpers import chance
from lmc.kernels.products import lower_inverse


@pytest.mark.parametrize("r", [1, 7, 32, 33, 100])
def test_lower_triangular_matrices_are_inverted(r: int) -> None:
    A = torch.randn(3, r, 2 * r, generator=chance(r), dtype=torch.float64)
    L = torch.linalg.cholesky(A @ A.mT)
    before = L.clone()
    torch.testing.assert_close(lower_inverse(L), torch.linalg.inv(L), rtol=1e-11, atol=1e-12)
    assert torch.equal(L, before)
