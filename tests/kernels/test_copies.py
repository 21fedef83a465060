"""Copies have the values of the original and memory of their own."""

from __future__ import annotations

import pytest
import torch

from lmc.kernels.copies import copied
from lmc.stores import Device

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_copy_has_the_same_values(device: str, dtype: torch.dtype) -> None:
    values = torch.randn(7, 5, device=device).to(dtype)
    values[0] = torch.tensor([0.0, -0.0, torch.inf, torch.nan, 1e-38])
    before = values.clone()
    new = copied(values)
    into = torch.full((9, 5), 3.0, dtype=dtype, device=device)
    copied(values, out=into[1:8])
    values.zero_()
    for found in (new, into[1:8]):
        torch.testing.assert_close(found, before, rtol=0, atol=0, equal_nan=True)
        assert found[0, 1].signbit()
    assert bool((into[[0, 8]] == 3).all())


@pytest.mark.gpu
def test_rows_of_the_host_are_copied_to_the_gpu_and_back() -> None:
    values = torch.randn(4, 3)
    there = copied(values, out=torch.empty(4, 3, device="cuda"))
    assert torch.equal(copied(there, out=torch.empty(4, 3)), values)


@pytest.mark.parametrize("device", DEVICES)
def test_one_row_is_copied_to_all_rows_of_a_table(device: str) -> None:
    table, row = Device().table(6, 3, torch.float64, torch.device(device)), torch.arange(3.0, device=device)
    table.push(slice(1, 5), row)
    assert table.data().tolist() == [[0, 0, 0], *([[0, 1, 2]] * 4), [0, 0, 0]]
