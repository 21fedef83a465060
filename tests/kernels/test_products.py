"""Products whose precision does not depend on torch's settings or on autocast."""

from __future__ import annotations

import pytest
import torch

from lmc.kernels.products import coarse_mm, exact_mm


def error(device: str, product: object) -> float:
    """How far a product of two float32 matrices is from that in float64, over its size."""
    a, b = (torch.randn(128, 128, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    want = a.double() @ b.double()
    got = product(a.to(device), b.to(device))  # type: ignore[operator]
    assert got.dtype == torch.float32
    return float((got.cpu().double() - want).norm() / want.norm())


@pytest.mark.parametrize("product", [coarse_mm, exact_mm])
def test_autocast_does_not_narrow_a_product(product: object) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert error("cpu", product) < 1e-6
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.gpu
def test_exact_products_are_float32_where_torch_multiplies_in_tf32() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert error("cuda", exact_mm) < 1e-6 < 1e-5 < error("cuda", torch.mm)
        assert error("cuda", coarse_mm) > 1e-5
    finally:
        torch.set_float32_matmul_precision(before)
    assert error("cuda", coarse_mm) > 1e-5 > 1e-6 > error("cuda", torch.mm)
