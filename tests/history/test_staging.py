"""Rows that are read ahead and written back behind: in whatever order things happen, a pull sees every push before it.

On a CPU nothing needs staging; ``behind=True`` makes the tables do it all the same, so that the order of events is
tested without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers import chance
from lmc.errors import ConfigError
from lmc.history import Auto, Device, Disk, DiskTable, HostTable, Pinned, Rows, StagedTable, overwrite
from lmc.history import auto as auto_module
from lmc.history.disk import RESIDENT
from lmc.history.staged import PENDING, overlap

N, WIDTH = 12, 3
CPU = torch.device("cpu")

Make = Callable[[], StagedTable]


@pytest.fixture(params=["host", "disk", pytest.param("host-cuda", marks=pytest.mark.gpu),
                        pytest.param("disk-cuda", marks=pytest.mark.gpu)])  # fmt: skip
def table(request: pytest.FixtureRequest) -> StagedTable:
    kind, _, where = request.param.partition("-")
    cls = HostTable if kind == "host" else DiskTable
    made: StagedTable = cls(N, WIDTH, torch.float64, torch.device(where or "cpu"), behind=True)
    made.push(slice(0, N), start().to(where or "cpu"))
    return made


def start() -> Tensor:
    return torch.randn(N, WIDTH, generator=chance(9), dtype=torch.float64)


def some(table: StagedTable, num: int, seed: int) -> Tensor:
    return torch.randn(num, WIDTH, generator=chance(seed), dtype=torch.float64).to(table.pull(slice(0, 1)).device)


def pulled(table: StagedTable, rows: Rows) -> Tensor:
    return table.pull(rows).cpu()


HALO = torch.tensor([1, 4, 5, 9])
CORE = slice(4, 8)
OTHERS = torch.tensor([9, 1])


@pytest.mark.parametrize("rows", [CORE, OTHERS, HALO], ids=["run", "indices", "same"])
@pytest.mark.parametrize("verb", ["push", "add"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_write_before_the_pull_is_in_the_staged_rows(table: StagedTable, rows: Rows, verb: str, when: str) -> None:
    """Before: the step that is under way pushed what the next one was not yet sent for; after: it was already."""
    want = start()
    new = some(table, want[rows].shape[0], seed=1)
    if when == "after":
        table.prefetch(HALO)
    getattr(table, verb)(rows, new)
    if when == "before":
        table.prefetch(HALO)
    want[rows] = new.cpu() if verb == "push" else want[rows] + new.cpu()
    assert torch.equal(pulled(table, HALO), want[HALO])
    assert torch.equal(table.data(), want)


def test_what_was_pulled_does_not_change_under_its_owner(table: StagedTable) -> None:
    table.prefetch(HALO)
    mine = table.pull(HALO)
    table.push(CORE, some(table, 4, seed=1))
    assert torch.equal(mine.cpu(), start()[HALO])
    assert not torch.equal(pulled(table, HALO), start()[HALO])


def test_rows_untouched_by_a_push_are_pulled_twice_from_one_staging(table: StagedTable) -> None:
    rows = torch.tensor([0, 2])
    table.prefetch(rows)
    first = table.pull(rows)
    table.push(CORE, some(table, 4, seed=1))
    assert table.pull(rows) is first


def test_several_kinds_of_rows_are_staged_at_once(table: StagedTable) -> None:
    table.prefetch(CORE, HALO)
    new = some(table, 2, seed=2)
    table.add(OTHERS, new)
    want = start()
    want[OTHERS] += new.cpu()
    assert torch.equal(pulled(table, slice(4, 8)), want[CORE])
    assert torch.equal(pulled(table, HALO), want[HALO])


def test_writes_do_not_pile_up(table: StagedTable) -> None:
    for k in range(10 * PENDING):
        table.add(CORE, some(table, 4, seed=k))
        assert len(table._older) + len(table._newer) <= 2 * PENDING
    want = start()
    for k in range(10 * PENDING):
        want[CORE] += some(table, 4, seed=k).cpu()
    assert torch.equal(table.data(), want)


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_events_is_that_of_a_matrix(table: StagedTable, seed: int) -> None:
    g = chance(seed)
    want = start()
    asked: list[Rows] = []

    def rows() -> Rows:
        if torch.rand((), generator=g) < 0.5:
            a, b = sorted(torch.randperm(N + 1, generator=g)[:2].tolist())
            return slice(a, b)
        return torch.randperm(N, generator=g)[: int(torch.randint(1, N, (), generator=g))]

    for event in torch.randint(5, (60,), generator=g).tolist():
        if event == 0:
            asked = [rows() for _ in range(2)]
            table.prefetch(*asked)
        elif event in (1, 2):
            where = rows()
            new = some(table, want[where].shape[0], seed=event)
            if event == 1:
                table.push(where, new)
                want[where] = new.cpu()
            else:
                table.add(where, new)
                want[where] += new.cpu()
        elif event == 3 and asked:
            for where in asked:
                assert torch.equal(pulled(table, where), want[where])
        else:
            where = rows()
            assert torch.equal(pulled(table, where), want[where])
    assert torch.equal(table.data(), want)


@pytest.mark.parametrize("rows", [slice(3, 9), torch.tensor([7, 2, 5, 3]), torch.tensor([], dtype=torch.int64)])
@pytest.mark.parametrize("written", [slice(5, 7), torch.tensor([3, 8, 7]), torch.tensor([], dtype=torch.int64)])
def test_overlap_is_where_two_sets_of_rows_meet(rows: Rows, written: Rows) -> None:
    everyone = torch.arange(N)
    mine, theirs = everyone[rows].tolist(), everyone[written].tolist()
    here, there = overlap(rows, written)
    assert [(mine[i], theirs[j]) for i, j in zip(here, there, strict=True)] == [(r, r) for r in mine if r in theirs]


def test_a_file_lies_where_it_was_told_to_and_leaves_nothing(tmp_path: Path) -> None:
    made = Disk(tmp_path / "new").table(5, 4, torch.float32, CPU)
    made.push(slice(0, 5), torch.ones(5, 4))
    assert (tmp_path / "new").is_dir()
    assert list((tmp_path / "new").iterdir()) == []
    assert float(made.data().sum()) == 20


def test_a_folder_without_room_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ConfigError, match=r"expected a folder with .* GB of room .* Disk\(path=\.\.\.\)"):
        Disk(tmp_path / "file").table(5, 4, torch.float32, CPU)


def test_pages_of_a_file_are_handed_back_and_nothing_is_lost() -> None:
    n, width = 3 * RESIDENT // 1024, 256  # a table three times what may stay mapped
    made = DiskTable(n, width, torch.float32, CPU)
    for first in range(0, n, n // 24):
        rows = slice(first, min(n, first + n // 24))
        made.push(rows, torch.full((rows.stop - rows.start, width), float(first)))
    assert _resident(made) < 1.5 * RESIDENT
    assert torch.equal(
        made.pull(slice(0, n)), (torch.arange(n) // (n // 24) * (n // 24)).float()[:, None].expand(n, width)
    )


def _resident(made: DiskTable) -> int:
    """Bytes of the table's mapping in memory, as Linux tells."""
    address = f"{made.data().data_ptr():x}"
    here, found = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0] and ":" not in line.split()[0]:
            here = line.startswith(address + "-")
        elif here and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


@pytest.mark.parametrize("kind", [Device(), Pinned(), Disk()], ids=lambda tier: tier.name)
def test_a_table_is_overwritten_in_place(kind: Device | Pinned | Disk) -> None:
    made = kind.table(N, WIDTH, torch.float64, CPU)
    where = made.data().data_ptr()
    overwrite(made, start())
    assert torch.equal(made.data(), start())
    overwrite(made)
    assert not made.data().any()
    assert made.data().data_ptr() == where


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
    monkeypatch.setattr(auto_module, "free_memory", lambda where: free[where.type] * 2**20)
    assert Auto().choose(2**20, torch.device(device)).name == tier
