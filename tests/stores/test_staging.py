"""Rows that are read ahead and written back behind: in whatever order things happen, a pull sees every push before it.

On a CPU nothing needs staging; ``staged=True`` makes the tables do it all the same, so that the order of events is
tested without a GPU: lanes there work as early, or as late, as they are allowed to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers import chance
from lmc.errors import ConfigError
from lmc.kernels.packed import Packed
from lmc.kernels.pinned import pin
from lmc.kernels.row_transfers import RowCache, append, gather, overlay, scatter
from lmc.stores import Auto, Device, Disk, DiskTable, HostTable, Pinned, Rows, StagedTable, overwrite
from lmc.stores import auto as auto_module
from lmc.stores.bundle import BundleMember, members
from lmc.stores.disk import RESIDENT, _mapped

N, WIDTH = 12, 3
CPU = torch.device("cpu")

Make = Callable[[], StagedTable]


KINDS = ["host", "disk", *(pytest.param(f"{kind}-cuda", marks=pytest.mark.gpu) for kind in ("host", "disk", "hands"))]


def make(kind: str, width: int | Sequence[int]) -> StagedTable:
    """A table of a kind, for the CPU or a GPU; "hands": a file that is too large to stay mapped."""
    kind, _, where = kind.partition("-")
    on = torch.device(where or "cpu")
    if kind == "host":
        return HostTable(N, width, torch.float64, on, staged=True)
    return DiskTable(N, width, torch.float64, on, staged=True, resident=1 if kind == "hands" else None)


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest) -> StagedTable:
    made = make(request.param, WIDTH)
    made.push(slice(0, N), start().to(made.host.device))
    return made


def start() -> Tensor:
    return torch.randn(N, WIDTH, generator=chance(9), dtype=torch.float64)


def some(table: StagedTable, num: int, seed: int) -> Tensor:
    return torch.randn(num, WIDTH, generator=chance(seed), dtype=torch.float64).to(table.host.device)


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


def test_several_kinds_of_rows_are_staged_at_once(table: StagedTable) -> None:
    table.prefetch(CORE, HALO)
    new = some(table, 2, seed=2)
    table.add(OTHERS, new)
    want = start()
    want[OTHERS] += new.cpu()
    assert torch.equal(pulled(table, slice(4, 8)), want[CORE])
    assert torch.equal(pulled(table, HALO), want[HALO])


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


LATE = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize("late", LATE, ids=lambda pair: f"reads-{'late' if pair[0] else 'early'}")
@pytest.mark.parametrize("seed", range(12))
def test_any_training_steps_are_those_on_a_matrix(table: StagedTable, late: tuple[bool, bool], seed: int) -> None:
    """Steps that read, push and add as methods do, sent for ahead or not, with evaluations between them."""
    g = chance(seed)
    table._fetcher.stream.lazy, table._writes.stream.lazy = late
    want = start()
    on = table.host.device

    def some_rows() -> tuple[slice, Tensor]:
        """A core, and a halo beside it, as a method asks for them; the same object for the same batch."""
        a, b = sorted(torch.randperm(N + 1, generator=g)[:2].tolist())
        outside = torch.tensor([r for r in range(N) if not a <= r < b], dtype=torch.int64)
        halo = outside[torch.randperm(outside.numel(), generator=g)[: int(torch.randint(0, N, (), generator=g))]]
        return slice(a, b), halo.sort().values

    batches = [(core, halo, halo.to(on)) for core, halo in (some_rows() for _ in range(4))]
    following = batches[0]
    table.prefetch(following[0], following[2])
    for step in range(25):
        core, halo, there = following
        table.begin(fixed=bool(step % 2))
        assert torch.equal(pulled(table, there), want[halo])
        assert torch.equal(pulled(table, core), want[core])
        new, more = some(table, core.stop - core.start, seed=step), some(table, halo.numel(), seed=step + 100)
        verb = ["push", "add", "work in place", "nothing"][int(torch.randint(4, (), generator=g))]
        if verb == "push":
            table.push(core, new)
            want[core] = new.cpu()
        elif verb == "add":
            table.add(core, new)
            table.add(there, more)
            want[core] += new.cpu()
            want[halo] += more.cpu()
        elif verb == "work in place" and (mine := table.delivered(core, there)) is not None:
            c = core.stop - core.start
            mine += 1
            table.push(core, mine[:c])
            table.push(there, mine[c:])
            want[core] += 1
            want[halo] += 1
        again = torch.rand((), generator=g) < 0.1
        if again:  # a step that wants to see its own push
            assert torch.equal(pulled(table, core), want[core])
        table.end()
        following = batches[int(torch.randint(4, (), generator=g))]
        if torch.rand((), generator=g) < 0.15:
            assert torch.equal(table.data(), want)
        if torch.rand((), generator=g) < 0.15:  # a diagnostic asks for others in between
            table.prefetch(slice(0, 3))
            assert torch.equal(pulled(table, slice(0, 3)), want[:3])
        table.prefetch(following[0], following[2])
    assert torch.equal(table.data(), want)


WIDTHS = (3, 5, 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_tables_that_travel_together_are_matrices_each(kind: str, seed: int) -> None:
    """Whether a step pushes into all of them, at the same rows and in place or not, or into some."""
    g, bundle = chance(seed), make(kind, WIDTHS)
    on, tables = bundle.host.device, members(bundle)
    want = [torch.randn(N, width, generator=g, dtype=torch.float64) for width in WIDTHS]
    for table, mine in zip(tables, want, strict=True):
        overwrite(table, mine)

    def chosen(share: float) -> bool:
        return bool(torch.rand((), generator=g) < share)

    halos = [torch.tensor([0, 1, 9]), torch.tensor([3, 10, 11]), torch.tensor([2, 4])]
    there = [halo.to(on) for halo in halos]
    for step in range(30):
        k = int(torch.randint(3, (), generator=g))
        core, halo = (slice(5, 8), halos[k])
        bundle.prefetch(core, there[k])
        bundle.begin(fixed=chosen(0.5))
        in_place, partial, at_halo = [0.0, 0.5, 1.0][step % 3], chosen(0.3), chosen(0.5)
        for table, mine in zip(tables, want, strict=True):
            assert isinstance(table, BundleMember)
            assert torch.equal(table.pull(there[k]).cpu(), mine[halo])
            if partial and chosen(0.5):
                continue
            found = table.delivered(core, there[k])
            if found is not None and chosen(in_place):
                found += step
                table.push(core, found[:3])
                table.push(there[k], found[3:])
                mine[core] += step
                mine[halo] += step
                continue
            table.push(core, torch.full_like(mine[core], step).to(on))
            mine[core] = step
            if at_halo:
                table.add(there[k], torch.ones_like(mine[halo]).to(on))
                mine[halo] += 1
        bundle.end()
        if chosen(0.2):
            assert torch.equal(tables[1].data(), want[1])
    for table, mine in zip(tables, want, strict=True):
        assert torch.equal(table.data(), mine)


def test_steps_that_push_into_all_planes_alike_can_be_recorded() -> None:
    bundle = HostTable(N, WIDTHS, torch.float64, CPU, staged=True)
    tables = members(bundle)
    for some_of_them in (tables, tables[:2]):
        assert bundle.recordable
        bundle.prefetch(HALO)
        bundle.begin(fixed=True)
        for table in some_of_them:
            table.push(CORE, torch.ones(4, table.pull(HALO).shape[1]))
        bundle.end()
    assert not bundle.recordable


def test_a_step_finds_its_rows_at_one_of_two_places(table: StagedTable) -> None:
    others, places = torch.tensor([0, 2]), []
    for rows in (HALO, others, HALO, others, others, HALO):
        table.prefetch(rows)
        table.begin(fixed=True)
        assert table.pull(rows).data_ptr() == table._fetcher.current.cache.values.flat.data_ptr()
        places.append(table.address)
        table.end()
    assert len(set(places)) == 2
    assert places[::2] == places[:1] * 3
    assert table.device_bytes[0] > 0


def test_places_stay_the_same_when_somebody_looks_at_the_table(table: StagedTable) -> None:
    places = set()
    for step in range(8):
        table.prefetch(HALO)
        table.begin(fixed=True)
        found = table.delivered(HALO)
        assert found is not None
        found += 1
        table.push(HALO, found)
        places.add(table.address)
        table.end()
        if step % 2:
            table.data()
    assert len(places) == 2
    assert torch.equal(table.data()[HALO], start()[HALO] + 8)


@pytest.mark.gpu
def test_a_file_that_fits_is_read_by_the_gpu_itself_where_the_system_lets_it() -> None:
    made, by_hand = make("disk-cuda", WIDTH), make("hands-cuda", WIDTH)
    if not pin(torch.frombuffer(_mapped(4096, None), dtype=torch.int8), made.host.device, made, read_only=True):
        pytest.skip("this system does not lock the pages of a file")
    assert made.host.kernels_read
    assert not made.host.kernels_write
    assert not by_hand.host.kernels_read


@pytest.mark.parametrize("kind", [HostTable, DiskTable])
def test_rows_that_are_on_the_device_do_not_travel(kind: type[HostTable] | type[DiskTable]) -> None:
    """Those of the step before, and of what the last two steps pushed, are not read from the host table."""
    made = kind(N, WIDTH, torch.float64, CPU, staged=True)
    made.push(slice(0, N), start())
    made.prefetch(HALO)
    made.begin(fixed=False)
    made.push(slice(6, 8), some(made, 2, seed=1))
    made.end()
    made.prefetch(HALO)
    made.begin(fixed=False)
    made.push(slice(10, 12), some(made, 2, seed=2))
    made.end()
    want = start()
    want[6:8], want[10:12] = some(made, 2, seed=1), some(made, 2, seed=2)
    made.host.packed[0][[1, 4, 5, 6, 7, 9, 10, 11]] = torch.nan  # 0 is all that has to be read
    rows = torch.tensor([0, 1, 5, 6, 7, 9, 10, 11])
    made.prefetch(rows)
    made.begin(fixed=False)
    assert torch.equal(made.pull(rows), want[rows])


def test_what_is_pushed_again_by_the_next_step_is_not_sent() -> None:
    made = HostTable(N, WIDTH, torch.float64, CPU, staged=True)
    made._writes.stream.lazy = False
    first, second = torch.tensor([1, 4, 5, 9]), torch.tensor([4, 9, 10])
    for k, rows in enumerate((first, second, torch.tensor([0]))):
        made.prefetch(rows)
        made.begin(fixed=False)
        made.add(rows, torch.full((rows.numel(), WIDTH), k + 1.0, dtype=torch.float64))
        made.end()
        if k == 1:
            assert made.host.packed[0][:, 0].tolist() == [0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert made.data()[:, 0].tolist() == [3, 1, 0, 0, 3, 1, 0, 0, 0, 3, 2, 0]


def test_a_shelf_knows_its_rows_whatever_was_there_before() -> None:
    place = torch.full((N,), 7, dtype=torch.int32)
    shelf = RowCache(torch.arange(8), filled(8, 0.0), place)
    append(shelf, torch.tensor([3, 9]), filled(2, 1.0))
    append(shelf, slice(9, 11), filled(2, 2.0))
    out = filled(4, 0.0)
    overlay(out, torch.tensor([3, 7, 9, 10]), shelf)
    for plane in out:
        assert plane[:, 0].tolist() == [1, 0, 2, 2]


def filled(
    num: int,
    value: float,
    widths: Sequence[int] = (WIDTH, 2),
    dtype: torch.dtype = torch.float32,
    on: torch.device = CPU,
) -> Packed:
    return Packed.over(torch.full((num * sum(widths),), value, dtype=dtype, device=on), widths)


@pytest.mark.gpu
@pytest.mark.parametrize("widths", [(3,), (40,), (256,), (300,), (256, 40, 256), (3, 300)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_kernels_are_the_reference(widths: tuple[int, ...], dtype: torch.dtype) -> None:
    n, cuda = 1000, torch.device("cuda")
    made = HostTable(n, widths, dtype, cuda)
    assert made.host.kernels_write, "page-locking failed"
    values = Packed.over(torch.randn(n * sum(widths), generator=chance(1)).to(dtype), widths)
    for k, plane in enumerate(values):
        made.push(slice(0, n), plane, k)
    rows = torch.randperm(n, generator=chance(2))[:500]
    out = [filled(510, 0.0, widths, dtype, on).rows(7, 500) for on in (CPU, cuda)]
    for on, into, host in ((CPU, out[0], values), (cuda, out[1], made.host.packed)):
        shelves = []
        for first in (0, 200):
            place = torch.zeros(n, dtype=torch.int32, device=on)
            empty = filled(300, 0.0, widths, dtype, on)
            shelf = RowCache(torch.zeros(300, dtype=torch.int64, device=on), empty, place)
            append(shelf, slice(first, first + 100), filled(120, float(first), widths, dtype, on).rows(10, 100))
            more = torch.arange(600 + first, 700 + first, 3, device=on)
            append(shelf, more, filled(more.numel(), first + 1.0, widths, dtype, on))
            shelves.append(shelf)
        place = torch.zeros(n, dtype=torch.int32, device=on)
        gather(host, rows.to(on), into, (shelves[0], shelves[1]), place)
        assert torch.equal(place.cpu()[rows], torch.arange(500, dtype=torch.int32))
        overlay(into.rows(0, 100), rows[100:200].to(on), shelves[0])
    for mine, want in zip(out[1], out[0], strict=True):
        assert torch.equal(mine.cpu(), want)
    scatter(out[1], rows.to(cuda), made.host.packed)
    wanted = [made.data(k).clone() for k in range(len(widths))]
    for mine, want in zip(wanted, out[0], strict=True):
        assert torch.equal(mine[rows], want)
    left = ~shelves[1].find(rows.to(cuda))[1].cpu()
    for want, plane in zip(wanted, out[1], strict=True):
        plane += 2
        want[rows[left]] = plane.cpu()[left]
    scatter(out[1], rows.to(cuda), made.host.packed, excluded=shelves[1])
    for k, want in enumerate(wanted):
        assert torch.equal(made.data(k), want)


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
    made = DiskTable(n, width, torch.float32, CPU, resident=RESIDENT)
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


@pytest.mark.parametrize(
    ("free", "bundles"),
    [
        ({"cpu": 100, "cuda": 100}, [("device", 1), ("device", 1), ("device", 1)]),
        ({"cpu": 100, "cuda": 10}, [("host", 3)]),
        ({"cpu": 40, "cuda": 10}, [("host", 2), ("host", 1)]),  # six tenths of what is free, asked anew
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

    monkeypatch.setattr(auto_module, "free_memory", lambda where: free[where.type])
    monkeypatch.setattr(auto_module, "tables_of", noted)
    assert len(Auto().tables(1, [10, 10, 10], torch.int8, torch.device("cuda"))) == 3
    assert made == bundles


def test_large_files_share_what_may_stay_mapped() -> None:
    n, width = RESIDENT // 1024, 256
    tables = [DiskTable(n + 1, width, torch.float32, CPU, resident=RESIDENT) for _ in range(4)]
    for first in range(0, n, n // 8):
        for k, made in enumerate(tables):
            made.push(slice(first, first + n // 8), torch.full((n // 8, width), float(k)))
    assert sum(_resident(made) for made in tables) < 1.5 * RESIDENT
    for k, made in enumerate(tables):
        assert made.pull(slice(0, n)).eq(k).all()


def test_a_pull_after_the_end_of_a_step_sees_what_the_step_pushed(table: StagedTable) -> None:
    want, new = start(), some(table, 4, seed=1)
    table.prefetch(HALO)
    table.begin(fixed=False)
    table.push(CORE, new)
    table.end()
    want[CORE] = new.cpu()
    assert not table.in_flight
    assert torch.equal(pulled(table, HALO), want[HALO])


@pytest.mark.parametrize("pulls", [False, True])
def test_a_prefetch_within_a_step_sees_what_the_step_pushes_later(table: StagedTable, pulls: bool) -> None:
    want = start()
    for step, rows in enumerate((slice(0, 3), slice(3, 6), CORE)):
        new = some(table, rows.stop - rows.start, seed=step)
        table.prefetch(slice(9, 11))
        table.begin(fixed=False)
        if rows is CORE:
            table.prefetch(HALO)
            if pulls:
                assert torch.equal(pulled(table, HALO), want[HALO])
        table.push(rows, new)
        table.end()
        want[rows] = new.cpu()
    table.begin(fixed=False)
    assert torch.equal(pulled(table, HALO), want[HALO])
    table.end()
    assert torch.equal(table.data(), want)
