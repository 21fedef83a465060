"""Dropout: the probability of the mask, the scale, the gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import chance
from lmc.kernels.dropout import dropout

RATES = [0.5, 0.3, 0.05, 0.9]
SHAPE = (500, 400)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """A CPU runs the plain version, a GPU the kernel."""
    return request.param


def dropped(p: float, device: str = "cpu", seed: int = 0, shape: tuple[int, int] = SHAPE) -> Tensor:
    ones = torch.ones(shape, dtype=torch.float64, device=device)
    return dropout(ones, p, torch.Generator(device).manual_seed(seed)).cpu()


def used_rate(p: float) -> float:
    """The rate after rounding to 8 or 16 bits."""
    levels = 2**8 if (p * 2**8).is_integer() else 2**16
    return round(p * levels) / levels


@pytest.mark.parametrize("p", RATES)
def test_kept_share_is_one_minus_p(device: str, p: float) -> None:
    kept = (dropped(p, device) != 0).double().mean().item()
    n = SHAPE[0] * SHAPE[1]
    assert abs(kept - (1 - p)) < 4 * (p * (1 - p) / n) ** 0.5


@pytest.mark.parametrize("p", RATES)
def test_every_element_that_shares_a_random_word_is_kept_with_the_same_probability(device: str, p: float) -> None:
    shares = (dropped(p, device) != 0).view(-1, 8).double().mean(0)
    n = SHAPE[0] * SHAPE[1] / 8
    assert float((shares - (1 - p)).abs().max()) < 4.5 * (p * (1 - p) / n) ** 0.5


@pytest.mark.parametrize("p", RATES)
def test_neighbouring_elements_are_independent(device: str, p: float) -> None:
    kept = (dropped(p, device) != 0).double().flatten() - (1 - p)
    n = kept.numel() - 1
    covariance = float((kept[1:] * kept[:-1]).mean())
    assert abs(covariance) < 4.5 * p * (1 - p) / n**0.5


@pytest.mark.parametrize("p", RATES)
def test_mean_is_preserved(device: str, p: float) -> None:
    n = SHAPE[0] * SHAPE[1]
    assert abs(dropped(p, device).mean().item() - 1) < 4 * (p / (1 - p) / n) ** 0.5


@pytest.mark.parametrize("p", RATES)
def test_kept_values_are_scaled_by_the_rate_in_use(p: float) -> None:
    kept = dropped(p).unique()
    assert kept.tolist() == [0.0, pytest.approx(1 / (1 - used_rate(p)), rel=1e-15)]
    assert abs(used_rate(p) - p) <= 2**-17


def test_half_doubles_exactly() -> None:
    x = torch.randn(30, 7, generator=chance(1), dtype=torch.float64)
    out = dropout(x, 0.5, chance(2))
    assert torch.equal(out[out != 0], 2 * x[out != 0])


@pytest.mark.parametrize("p", RATES)
def test_same_generator_state_gives_the_same_mask(device: str, p: float) -> None:
    assert torch.equal(dropped(p, device, seed=3), dropped(p, device, seed=3))
    assert not torch.equal(dropped(p, device, seed=3), dropped(p, device, seed=4))


def test_one_generator_gives_a_new_mask_each_time() -> None:
    g, x = chance(0), torch.ones(20, 20)
    assert not torch.equal(dropout(x, 0.5, g), dropout(x, 0.5, g))


@pytest.mark.parametrize("p", RATES)
def test_gradient_uses_the_same_mask_and_scale(device: str, p: float) -> None:
    x = torch.ones(130, 70, dtype=torch.float64, device=device, requires_grad=True)
    out = dropout(x, p, torch.Generator(device).manual_seed(1))
    v = torch.randn(130, 70, generator=chance(2), dtype=torch.float64).to(device)
    (got,) = torch.autograd.grad(out, x, v)
    torch.testing.assert_close(got, v * out.detach(), rtol=1e-15, atol=0)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (0, 4), (8, 8)])
@pytest.mark.parametrize("p", [0.5, 0.3])
def test_any_number_of_elements(device: str, p: float, shape: tuple[int, int]) -> None:
    assert dropped(p, device, shape=shape).shape == shape


def test_rate_zero_changes_nothing_and_draws_nothing() -> None:
    g, x = chance(0), torch.ones(3, 3)
    before = g.get_state()
    assert dropout(x, 0.0, g) is x
    assert torch.equal(g.get_state(), before)


def test_a_rate_just_below_one_gives_finite_values(device: str) -> None:
    # every rate in [0, 1) is allowed, and this one rounds to 1
    out = dropped(1 - 2**-20, device, shape=(40, 40))
    assert bool(out.isfinite().all())


def test_no_global_generator_is_touched_when_one_is_given() -> None:
    before = torch.get_rng_state()
    dropped(0.5)
    assert torch.equal(torch.get_rng_state(), before)
