"""Products whose precision does not depend on torch's settings or on autocast."""

from __future__ import annotations

import pytest
import torch

from lmc.kernels.beside import beside
from lmc.kernels.products import coarse_mm, exact_mm, lower_inverse


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


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("r", [5, 70, 200, 256])
def test_the_inverse_of_a_triangle_is_computed_in_blocks(r: int, device: str) -> None:
    """200 is divided three times into halves, down to 25, 256 too, 70 once, since 35 is odd, and 5 not at all."""
    source = torch.Generator(device).manual_seed(0)
    L = torch.randn(3, r, r, dtype=torch.float64, generator=source, device=device).tril() / r**0.5
    L.diagonal(dim1=-2, dim2=-1).abs_().add_(1)
    found = lower_inverse(L)
    torch.testing.assert_close(found @ L, torch.eye(r, dtype=torch.float64, device=device).expand_as(L))
    assert torch.equal(found, found.tril())


@pytest.mark.gpu
def test_work_beside_the_current_stream_sees_what_came_before_and_is_done_when_it_is_read() -> None:
    device = torch.device("cuda", 0)
    x = torch.zeros(4000, 4000, device=device)
    for number in range(1, 6):
        x.fill_(number)
        y = beside(device, lambda: (x @ x).sum())
        torch.cuda._sleep(1_000_000)
        assert float(y()) == pytest.approx(4000.0**3 * number**2, rel=1e-5)
