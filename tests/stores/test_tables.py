"""One suite for every tier: a table behaves like a matrix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import chance
from lmc.errors import ConfigError
from lmc.stores import Auto, Device, Disk, Pinned, Rows, Store, Table, overwrite, store

N, WIDTH = 9, 4
ROWS: list[Rows] = [slice(2, 6), slice(0, N), torch.tensor([7, 1, 4]), torch.tensor([], dtype=torch.int64)]
ROW_NAMES = ["run", "all", "indices", "none"]


@pytest.fixture(params=[Device(), Pinned(), Disk(), Auto()], ids=lambda tier: tier.name)
def tier(request: pytest.FixtureRequest) -> Store:
    return request.param


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU here")
    return torch.device(request.param)


@pytest.fixture
def table(tier: Store, device: torch.device) -> Table:
    return tier.table(N, WIDTH, torch.float64, device)


def values(num: int = N, seed: int = 0) -> Tensor:
    return torch.randn(num, WIDTH, generator=chance(seed), dtype=torch.float64)


def on(device: torch.device, rows: Rows) -> Rows:
    return rows if isinstance(rows, slice) else rows.to(device)


def everything(table: Table) -> Tensor:
    return table.data().cpu().clone()


def test_a_new_table_holds_zeros(table: Table) -> None:
    assert torch.equal(everything(table), torch.zeros(N, WIDTH, dtype=torch.float64))


@pytest.mark.parametrize("rows", ROWS, ids=ROW_NAMES)
def test_pull_gives_the_rows_on_the_device(table: Table, device: torch.device, rows: Rows) -> None:
    table.push(slice(0, N), values().to(device))
    got = table.pull(on(device, rows))
    assert got.device.type == device.type
    assert torch.equal(got.cpu(), values()[rows])


@pytest.mark.parametrize("rows", ROWS, ids=ROW_NAMES)
def test_push_overwrites_only_these_rows(table: Table, device: torch.device, rows: Rows) -> None:
    table.push(slice(0, N), values().to(device))
    want = values()
    new = values(want[rows].shape[0], seed=1)
    table.push(on(device, rows), new.to(device))
    want[rows] = new
    assert torch.equal(everything(table), want)


def test_add_adds_only_to_these_rows(table: Table, device: torch.device) -> None:
    rows, more = torch.tensor([7, 1, 4]), values(3, seed=1)
    table.push(slice(0, N), values().to(device))
    table.add(rows.to(device), more.to(device))
    want = values()
    want[rows] += more
    assert torch.equal(everything(table), want)


def test_push_copies_the_values(table: Table, device: torch.device) -> None:
    new = values().to(device)
    table.push(slice(0, N), new)
    new.zero_()
    assert torch.equal(everything(table), values())


@pytest.mark.parametrize("rows", ROWS[:3], ids=ROW_NAMES[:3])
def test_what_is_pushed_is_stored_without_its_gradient(table: Table, device: torch.device, rows: Rows) -> None:
    new = values(values()[rows].shape[0]).to(device).requires_grad_()
    table.push(on(device, rows), new)
    assert torch.equal(everything(table)[rows], new.detach().cpu())
    assert not table.data().requires_grad


def test_pulled_indices_are_a_copy(table: Table, device: torch.device) -> None:
    table.push(slice(0, N), values().to(device))
    table.pull(torch.tensor([7, 1, 4], device=device)).zero_()
    assert torch.equal(everything(table), values())


@pytest.mark.parametrize("rows", ROWS, ids=ROW_NAMES)
def test_prefetched_rows_are_the_rows(table: Table, device: torch.device, rows: Rows) -> None:
    table.push(slice(0, N), values().to(device))
    asked = on(device, rows)
    table.prefetch(asked)
    assert torch.equal(table.pull(asked).cpu(), values()[rows])
    assert torch.equal(table.pull(asked).cpu(), values()[rows])


def test_pull_of_other_rows_than_the_prefetched_ones(table: Table, device: torch.device) -> None:
    table.push(slice(0, N), values().to(device))
    table.prefetch(torch.tensor([0, 1], device=device))
    other = torch.tensor([5, 3], device=device)
    assert torch.equal(table.pull(other).cpu(), values()[other.cpu()])


@pytest.mark.parametrize("change", ["push", "add"])
def test_a_change_after_prefetch_is_seen_by_pull(table: Table, device: torch.device, change: str) -> None:
    rows = torch.tensor([2, 6], device=device)
    table.push(slice(0, N), values().to(device))
    table.prefetch(rows)
    new = values(2, seed=1)
    want = new if change == "push" else values()[rows.cpu()] + new
    getattr(table, change)(rows, new.to(device))
    assert torch.equal(table.pull(rows).cpu(), want)


@pytest.mark.parametrize(("name", "kind"), [("device", Device), ("host", Pinned), ("disk", Disk), ("auto", Auto)])
def test_a_tier_has_a_name(name: str, kind: type) -> None:
    assert isinstance(store(name), kind)
    assert store(name).name == name


def test_a_store_object_passes_through() -> None:
    mine = Pinned()
    assert store(mine) is mine


def test_an_unknown_tier_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"\['auto', 'device', 'disk', 'host'\], or disk:FOLDER \(got 'tape'\)"):
        store("tape")


@pytest.mark.parametrize("kind", [Device(), Pinned(), Disk()], ids=lambda tier: tier.name)
def test_a_table_is_overwritten_in_place(kind: Device | Pinned | Disk) -> None:
    made = kind.table(N, WIDTH, torch.float64, torch.device("cpu"))
    where = made.data().data_ptr()
    overwrite(made, values())
    assert torch.equal(made.data(), values())
    overwrite(made)
    assert not made.data().any()
    assert made.data().data_ptr() == where
