"""The tier that "auto" chooses for the memory that is free."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from lmc.stores import Auto, Device, Disk, Pinned
from lmc.stores import tiers as tiers_module


@pytest.mark.parametrize(
    ("free", "device", "tier"),
    [
        ({"cpu": 10, "cuda": 0}, "cpu", "device"),
        ({"cpu": 1, "cuda": 0}, "cpu", "disk"),
        ({"cpu": 10, "cuda": 10}, "cuda", "device"),
        ({"cpu": 10, "cuda": 1}, "cuda", "host"),
        ({"cpu": 1, "cuda": 1}, "cuda", "disk"),
    ],
)
def test_auto_takes_the_fastest_tier_with_room(
    free: dict[str, int], device: str, tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers_module, "free_memory", lambda where: free[where.type] * 2**20)
    assert Auto().choose(2**20, torch.device(device)).name == tier


@pytest.mark.parametrize(
    ("free", "bundles"),
    [
        ({"cpu": 100, "cuda": 100}, [("device", 1), ("device", 1), ("device", 1)]),
        ({"cpu": 100, "cuda": 10}, [("host", 3)]),
        ({"cpu": 40, "cuda": 10}, [("host", 2), ("host", 1)]),  # six tenths of what is free, for each table anew
        ({"cpu": 10, "cuda": 10}, [("disk", 3)]),
    ],
)
def test_auto_bundles_what_fits_on_a_tier(
    free: dict[str, int], bundles: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, int]] = []

    def noted(tier: Device | Pinned | Disk, num_rows: int, widths: Sequence[int], *_: object) -> list[str]:
        made.append((tier.name, len(widths)))
        return [tier.name] * len(widths)

    monkeypatch.setattr(tiers_module, "free_memory", lambda where: free[where.type])
    monkeypatch.setattr(tiers_module, "tables_of", noted)
    assert len(Auto().tables(1, [10, 10, 10], torch.int8, torch.device("cuda"))) == 3
    assert made == bundles
