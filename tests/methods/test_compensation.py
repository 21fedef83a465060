"""Equations (13) and (16), row by row, by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lmc.methods.compensation import compensate
from lmc.methods.lmc4conv import SCORES

CORE = 2
S = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], dtype=torch.float64)
H = torch.tensor([[10.0, 20.0], [30.0, 40.0]], dtype=torch.float64)
V = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]], dtype=torch.float64)
BETA = torch.tensor([[0.25], [0.5]], dtype=torch.float64)
INCOMING = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8]], dtype=torch.float64)


def run(
    H_halo: Tensor | None = H,
    adjoint: Callable[[Tensor], Tensor | None] = lambda v: V,
    forward: Tensor | float = BETA,
    backward: Tensor | float = BETA,
    in_place: bool = False,
) -> tuple[Tensor, Tensor]:
    """The mended states, and the adjoint of what they were made from."""
    leaf = S.clone().requires_grad_()
    out = compensate(
        leaf * 1.0,
        num_core=CORE,
        H_halo=H_halo,
        adjoint=adjoint,
        beta_forward=forward,
        beta_backward=backward,
        in_place=in_place,
    )
    (v,) = torch.autograd.grad(out, leaf, INCOMING)
    return out.detach(), v


@pytest.mark.parametrize("in_place", [False, True])
def test_forward_mixes_history_and_incomplete_state(in_place: bool) -> None:
    out, _ = run(in_place=in_place)
    # (13): 0.75 * 10 + 0.25 * 5, ... and 0.5 * 30 + 0.5 * 7, ...
    want = torch.tensor([[1.0, 2.0], [3.0, 4.0], [8.75, 16.5], [18.5, 24.0]], dtype=torch.float64)
    torch.testing.assert_close(out, want, rtol=1e-15, atol=0)


@pytest.mark.parametrize("in_place", [False, True])
def test_backward_mixes_history_and_incomplete_adjoint(in_place: bool) -> None:
    _, v = run(in_place=in_place)
    # (16): 0.75 * -1 + 0.25 * 0.5, ... and 0.5 * -3 + 0.5 * 0.7, ...
    want = torch.tensor([[0.1, 0.2], [0.3, 0.4], [-0.625, -1.35], [-1.15, -1.6]], dtype=torch.float64)
    torch.testing.assert_close(v, want, rtol=1e-14, atol=0)


def test_beta_of_the_forward_pass_does_not_scale_the_adjoint() -> None:
    # by the chain rule of (13) halo rows would get beta * incoming; V_hat replaces the adjoint instead
    for forward in (BETA, 0.0, 1.0):
        _, v = run(forward=forward, backward=1.0)
        assert torch.equal(v, INCOMING)


def test_beta_zero_is_the_history_alone() -> None:
    out, v = run(forward=0.0, backward=0.0)
    assert torch.equal(out[CORE:], H)
    assert torch.equal(v[CORE:], V)


def test_beta_one_is_the_incomplete_value_alone() -> None:
    ones = torch.ones(2, 1, dtype=torch.float64)
    out, v = run(forward=ones, backward=ones)
    assert torch.equal(out, S)
    assert torch.equal(v, INCOMING)


def test_core_rows_pass_untouched() -> None:
    out, v = run(forward=0.0, backward=0.0)
    assert torch.equal(out[:CORE], S[:CORE])
    assert torch.equal(v[:CORE], INCOMING[:CORE])


def test_one_number_is_the_same_beta_for_every_row() -> None:
    half = torch.full((2, 1), 0.5, dtype=torch.float64)
    for a, b in zip(run(forward=0.5, backward=0.5), run(forward=half, backward=half), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-15, atol=0)


def test_no_history_leaves_the_direction_as_it_is() -> None:
    out, v = run(H_halo=None, adjoint=lambda v: None)
    assert torch.equal(out, S)
    assert torch.equal(v, INCOMING)


def test_adjoint_is_called_once_with_the_core_rows() -> None:
    seen: list[Tensor] = []

    def keep(v: Tensor) -> Tensor:
        seen.append(v.clone())
        return V

    run(adjoint=keep)
    assert len(seen) == 1
    assert torch.equal(seen[0], INCOMING[:CORE])


def test_history_is_not_changed_by_mending() -> None:
    before = H.clone(), V.clone()
    run(in_place=True)
    assert torch.equal(H, before[0])
    assert torch.equal(V, before[1])


@pytest.mark.parametrize(
    ("score", "values"),
    [
        ("x", [0.5, 0.25, 1.0]),
        ("x^2", [0.25, 0.0625, 1.0]),
        ("2x-x^2", [0.75, 0.4375, 1.0]),
        ("1", [1.0, 1.0, 1.0]),
        ("sin(x)", [0.479425538604203, 0.24740395925452294, 0.8414709848078965]),
        ("sin", [0.479425538604203, 0.24740395925452294, 0.8414709848078965]),
    ],
)
def test_scores_at_hand_values(score: str, values: list[float]) -> None:
    x = torch.tensor([0.5, 0.25, 1.0], dtype=torch.float64)
    want = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(SCORES[score](x), want, rtol=1e-15, atol=0)


def test_there_are_the_five_scores_of_the_paper() -> None:
    assert set(SCORES) == {"x", "x^2", "2x-x^2", "1", "sin(x)", "sin"}
    assert SCORES["sin"] is SCORES["sin(x)"]
