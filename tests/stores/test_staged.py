"""The life of a row as the docstring of ``lmc.stores`` describes it: a pull sees every push before it, in any order.

On a CPU nothing needs staging; ``staged=True`` stages all the same, so that the order of events is tested without a
GPU: simulated streams do their work as early, or as late, as the events allow.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from helpers import chance
from lmc.kernels.row_transfers import RowCache, append
from lmc.stores import FileRows, Rows, StagedTable, host_zeros, overwrite
from lmc.stores.background import KEPT
from lmc.stores.staged import BundleMember, members
from lmc.stores.streams import Event, SimulatedStream, Work, numbers_ready

N, WIDTH = 12, 3
KINDS = ["host", "disk", *(pytest.param(f"{kind}-cuda", marks=pytest.mark.gpu) for kind in ("host", "disk", "large"))]


def make(kind: str, width: int | Sequence[int]) -> StagedTable:
    """A table of a kind, for the CPU or a GPU; "large" is a file that is too large to stay mapped."""
    kind, _, where = kind.partition("-")
    on = torch.device(where or "cpu")
    widths = [width] if isinstance(width, int) else width
    if kind == "host":
        return StagedTable(host_zeros(N, widths, torch.float64, on), staged=True)
    return StagedTable(FileRows(N, widths, torch.float64, on, resident=1 if kind == "large" else None), staged=True)


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


def push_in_a_step(table: StagedTable, rows: Rows, new: Tensor, reads: Rows | None = None) -> None:
    """A step that reads some rows, by default those that it pushes."""
    table.prefetch(rows if reads is None else reads)
    table.begin(fixed=False)
    table.push(rows, new)
    table.end()


def change_in_place(table: StagedTable, rows: Tensor, fixed: bool = False) -> object:
    """A step that adds one to some rows, in place; the address at which it found them."""
    table.prefetch(rows)
    table.begin(fixed=fixed)
    found, address = table.delivered(rows), table.address
    assert found is not None
    found += 1
    table.push(rows, found)
    table.end()
    return address


HALO = torch.tensor([1, 4, 5, 9])
CORE = slice(4, 8)
OTHERS = torch.tensor([9, 1])


@pytest.mark.parametrize("rows", [CORE, OTHERS, HALO], ids=["run", "indices", "same"])
@pytest.mark.parametrize("verb", ["push", "add"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_pull_of_fetched_rows_sees_every_write(table: StagedTable, rows: Rows, verb: str, when: str) -> None:
    """The write comes before the prefetch, or after it."""
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


def test_pulled_rows_do_not_change_when_the_table_does(table: StagedTable) -> None:
    table.prefetch(HALO)
    mine = table.pull(HALO)
    table.push(CORE, some(table, 4, seed=1))
    assert torch.equal(mine.cpu(), start()[HALO])
    assert not torch.equal(pulled(table, HALO), start()[HALO])


def test_several_pieces_are_fetched_at_once(table: StagedTable) -> None:
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


VERBS = ["push", "add", "change in place", "change the halo in place", "nothing"]
LAZY = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize("lazy", LAZY, ids=lambda pair: f"reads-{'late' if pair[0] else 'early'}")
@pytest.mark.parametrize("seed", range(12))
def test_any_training_steps_are_those_on_a_matrix(table: StagedTable, lazy: tuple[bool, bool], seed: int) -> None:
    """Steps that read, push and add as methods do, prefetched or not, with evaluations between them."""
    g = chance(seed)
    if table.host.device.type == "cpu":
        table._fetcher.stream.lazy, table._writes.stream.lazy = lazy
    want = start()
    on = table.host.device

    def some_rows() -> tuple[slice, Tensor]:
        """A core and a halo beside it, as a method reads them."""
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
        verb = VERBS[int(torch.randint(len(VERBS), (), generator=g))]
        if verb == "push":
            table.push(core, new)
            want[core] = new.cpu()
        elif verb == "add":
            table.add(core, new)
            table.add(there, more)
            want[core] += new.cpu()
            want[halo] += more.cpu()
        elif (mine := table.delivered(core, there)) is not None and verb != "nothing":
            c = core.stop - core.start
            if verb == "change in place":
                mine[:c] += 1
                table.push(core, mine[:c])
                want[core] += 1
            mine[c:] += 1
            table.push(there, mine[c:])
            want[halo] += 1
        again = torch.rand((), generator=g) < 0.1
        if again:  # a step that wants to see its own push
            assert torch.equal(pulled(table, core), want[core])
        table.end()
        following = batches[int(torch.randint(4, (), generator=g))]
        if torch.rand((), generator=g) < 0.15:
            assert torch.equal(table.data(), want)
        if torch.rand((), generator=g) < 0.15:  # a diagnostic reads other rows in between
            table.prefetch(slice(0, 3))
            assert torch.equal(pulled(table, slice(0, 3)), want[:3])
        table.prefetch(following[0], following[2])
    assert torch.equal(table.data(), want)


WIDTHS = (3, 5, 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_the_members_of_a_bundle_are_matrices(kind: str, seed: int) -> None:
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


def test_steps_that_push_the_same_rows_into_all_members_can_be_recorded() -> None:
    bundle = make("host", WIDTHS)
    tables = members(bundle)
    for some_of_them in (tables, tables[:2]):
        assert bundle.recordable
        bundle.prefetch(HALO)
        bundle.begin(fixed=True)
        for table in some_of_them:
            table.push(CORE, torch.ones(4, table.pull(HALO).shape[1]))
        bundle.end()
    assert not bundle.recordable


def test_a_step_finds_its_rows_at_one_of_four_addresses(table: StagedTable) -> None:
    others, addresses = torch.tensor([0, 2]), []
    for rows in (HALO, others, HALO, others, others, HALO, HALO, HALO, others):
        table.prefetch(rows)
        table.begin(fixed=True)
        assert table.pull(rows).data_ptr() == table._fetcher.current.cache.values.flat.data_ptr()
        addresses.append(table.address)
        table.end()
    assert len(set(addresses)) == KEPT + 1 == 4
    assert addresses[::4] == addresses[:1] * 3
    assert table.device_bytes[0] > 0


def test_the_addresses_stay_the_same_when_the_whole_table_is_read(table: StagedTable) -> None:
    addresses = set()
    for step in range(8):
        addresses.add(change_in_place(table, HALO, fixed=True))
        if step % 2:
            table.data()
    assert len(addresses) == 4
    assert torch.equal(table.data()[HALO], start()[HALO] + 8)


@pytest.mark.parametrize("kind", ["host", "disk"])
def test_rows_that_are_on_the_device_are_not_read_from_the_host(kind: str) -> None:
    """Rows of the last two fetches and of the last three pending writes."""
    made = make(kind, WIDTH)
    made.push(slice(0, N), start())
    want = start()
    for step, read in enumerate((torch.tensor([2]), HALO, torch.tensor([3, 4]))):
        new, rows = some(made, 2, seed=step), slice(6 + 2 * step, 8 + 2 * step)
        push_in_a_step(made, rows, new, reads=read)
        want[rows] = new
    made.host.packed[0][1:] = torch.nan  # only row 0 has to be read
    unread = {"host": -7, "disk": -8}[kind]  # new memory may hold numbers of the other case
    made.host.packed[0][10:] = unread
    rows = torch.tensor([0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11])
    made.prefetch(rows)
    made._fetcher.current.fetched.wait()
    assert not made._fetcher.current.cache.filled[0][9:].eq(unread).any()
    made.begin(fixed=False)
    assert torch.equal(made.pull(rows), want[rows])


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("kind", ["host", "disk"])
def test_what_later_steps_push_again_is_not_written_back(kind: str, in_place: bool) -> None:
    made = make(kind, WIDTH)
    made._writes.stream.lazy = False
    steps = [torch.tensor([1, 4, 5, 9]), torch.tensor([4, 10]), torch.tensor([9, 11]), torch.tensor([0])]
    on_host = [[], [], [1, 5], [1, 4, 5, 10]]
    for rows, written in zip(steps, on_host, strict=True):
        if in_place:
            change_in_place(made, rows)
        else:
            made.prefetch(rows)
            made.begin(fixed=False)
            made.add(rows, torch.ones(rows.numel(), WIDTH, dtype=torch.float64))
            made.end()
        assert made.host.packed[0][:, 0].nonzero().squeeze(1).tolist() == written
    assert made.data()[:, 0].tolist() == [1, 1, 0, 0, 2, 1, 0, 0, 0, 2, 1, 1]


def test_of_rows_that_a_step_pushes_twice_the_last_values_are_written(table: StagedTable) -> None:
    """Also where a later step pushes some of them again, so that these are left out."""
    want = start()
    for step, rows in enumerate((HALO, OTHERS, HALO, OTHERS, HALO)):
        new, more = some(table, rows.numel(), seed=step), some(table, 4, seed=step + 10)
        table.prefetch(rows)
        table.begin(fixed=False)
        table.push(rows, new)
        table.push(CORE, more)
        table.end()
        want[rows] = new.cpu()
        want[CORE] = more.cpu()
    assert torch.equal(table.data(), want)


def test_more_fetches_than_steps_leave_pending_writes_alone(table: StagedTable) -> None:
    """Rows that were changed in place are pending in caches that further fetches would fill."""
    want = start()
    for _ in range(3):
        change_in_place(table, HALO)
        want[HALO] += 1
    for k in range(6):
        table.prefetch(slice(k, k + 3))
        if k % 2:
            assert torch.equal(pulled(table, slice(k, k + 3)), want[k : k + 3])
    change_in_place(table, HALO)
    want[HALO] += 1
    assert torch.equal(table.data(), want)


def test_more_fetches_than_steps_leave_alone_what_older_writes_leave_out(table: StagedTable) -> None:
    """Older writes look up in the caches of newer fetches which rows they leave out."""
    want, (a, b, c) = start(), (slice(0, 3), slice(3, 6), slice(6, 9))
    for step, (rows, fetches) in enumerate([(a, []), (b, []), (c, [c, c, c, a]), (b, []), (c, [])]):
        new = some(table, 3, seed=step)
        for other in fetches:
            table.prefetch(other)
        push_in_a_step(table, rows, new)
        want[rows] = new.cpu()
    assert torch.equal(table.data(), want)


def test_a_step_may_fetch_and_push_nothing(table: StagedTable) -> None:
    want, empty = start(), torch.empty(0, dtype=torch.int64)
    for step, rows in enumerate((CORE, empty, CORE, empty, CORE)):
        new = some(table, want[rows].shape[0], seed=step)
        push_in_a_step(table, rows, new)
        want[rows] = new.cpu()
    assert torch.equal(table.data(), want)


def test_a_fetch_waits_for_what_had_to_be_written_before_it() -> None:
    made = make("host", WIDTH)
    for _ in range(3):
        change_in_place(made, HALO)
    last, made._fetcher.stream = made._writes.newest, (reads := Spy())
    for _ in range(2):
        made.prefetch(OTHERS)
    assert made._writes.newest is None
    assert last is not None
    assert last.written in reads.after[-1]


def test_a_cache_that_is_being_filled_is_no_source() -> None:
    made = make("host", WIDTH)
    made.prefetch(HALO)
    made.pull(HALO)
    assert [fetch.rows for fetch in made._fetcher._delivered] == [(HALO,)]
    for _ in range(KEPT + 1):
        made.prefetch(OTHERS)
    assert made._fetcher._delivered == []


def test_a_step_that_fetched_nothing_is_delivered_nothing(table: StagedTable) -> None:
    push_in_a_step(table, CORE, some(table, 4, seed=1), reads=HALO)
    table.begin(fixed=False)
    assert table.delivered(HALO) is None


def test_a_cache_knows_which_values_of_a_row_are_the_newest() -> None:
    cache = host_zeros(N, [WIDTH], torch.float64, torch.device("cpu")).cache(4)
    for rows in (torch.tensor([1, 2]), torch.tensor([2, 3])):
        append(cache, rows, cache.values.empty(2, torch.device("cpu")))
    assert cache.newest().tolist() == [True, False, True, True]


def test_what_is_written_is_forgotten() -> None:
    made = make("host", WIDTH)
    change_in_place(made, HALO)
    first = weakref.ref(made._writes.newest)
    for _ in range(2 * KEPT):
        change_in_place(made, HALO)
    gc.collect()
    assert first() is None


def test_a_fetch_that_is_older_than_the_pending_writes_is_no_source(table: StagedTable) -> None:
    """Steps that push without having fetched anything."""
    want = start()
    table.prefetch(HALO)
    for step, rows in enumerate((CORE, slice(0, 2), slice(2, 4), slice(10, 12), slice(8, 10))):
        new = some(table, rows.stop - rows.start, seed=step)
        table.begin(fixed=False)
        if not step:
            assert torch.equal(pulled(table, HALO), want[HALO])
        table.push(rows, new)
        table.end()
        want[rows] = new.cpu()
    table.prefetch(HALO)
    table.begin(fixed=False)
    assert torch.equal(pulled(table, HALO), want[HALO])


def test_a_pull_after_the_end_of_a_step_sees_what_the_step_pushed(table: StagedTable) -> None:
    want, new = start(), some(table, 4, seed=1)
    push_in_a_step(table, CORE, new, reads=HALO)
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
            assert not table.recordable
            if pulls:
                assert torch.equal(pulled(table, HALO), want[HALO])
        table.push(rows, new)
        table.end()
        want[rows] = new.cpu()
    table.begin(fixed=False)
    assert torch.equal(pulled(table, HALO), want[HALO])
    table.end()
    assert torch.equal(table.data(), want)


@pytest.mark.parametrize("first", ["push", "add"])
def test_a_second_write_of_the_same_rows_in_a_step_sees_the_first(table: StagedTable, first: str) -> None:
    want, a, b = start(), some(table, 4, seed=1), some(table, 4, seed=2)
    table.prefetch(HALO)
    table.begin(fixed=False)
    getattr(table, first)(HALO, a)
    table.add(HALO, b)
    table.end()
    want[HALO] = (want[HALO] if first == "add" else 0) + a.cpu() + b.cpu()
    assert torch.equal(table.data(), want)


def test_a_push_after_a_change_in_place_leaves_the_delivered_rows_alone(table: StagedTable) -> None:
    table.prefetch(HALO)
    table.begin(fixed=False)
    found, other = table.delivered(HALO), some(table, 4, seed=1)
    assert found is not None
    found += 1
    table.push(HALO, found)
    table.push(HALO, other)
    assert torch.equal(found.cpu(), start()[HALO] + 1)
    table.end()
    assert torch.equal(table.data()[HALO], other.cpu())


class Spy(SimulatedStream):
    """A simulated stream that keeps the events which its work was given to wait for."""

    def __init__(self) -> None:
        super().__init__(lazy=False)
        self.after: list[list[Event]] = []

    def submit(self, work: Work, after: Sequence[Event], reads: Sequence[Rows] = ()) -> Event:
        self.after.append(list(after))
        return super().submit(work, after, reads)


def test_a_fetch_and_a_write_wait_for_the_events_of_the_state_table() -> None:
    made = make("host", WIDTH)
    reads, writes = made._fetcher.stream, made._writes.stream = Spy(), Spy()
    for step in range(6):
        rows = torch.arange(3 * step % 9, 3 * step % 9 + 3)
        previous, pending = made._fetcher.current, [*reversed(made._writes.older), made._writes.newest]
        written = made._writes.written
        made.prefetch(rows)
        fetch = made._fetcher.current
        assert fetch is not None
        assert written in reads.after[-1]
        assert numbers_ready(rows) in reads.after[-1]
        if previous is not None:
            assert previous.delivered in reads.after[-1]
        assert all(write.packed in reads.after[-1] for write in pending[:-1])
        made.begin(fixed=False)
        made.add(rows, torch.ones(3, WIDTH, dtype=torch.float64))
        made.end()
        if step >= 2:
            sent, later = pending[-2], pending[-1]
            assert sent is not None
            assert later is not None
            assert later.replaces is not None
            assert {sent.packed, fetch.fetched, later.replaces[1]} <= set(writes.after[-1])
            assert [cache.slots for cache in sent.left_out] == [later.replaces[0].slots, fetch.cache.slots]
        if step >= 3:
            assert made._writes.written is pending[0].written


def test_what_a_fixed_step_pushes_is_at_the_same_address_in_every_epoch() -> None:
    made, addresses = make("host", WIDTH), set()
    for rows in (HALO, OTHERS) * 3:
        made.prefetch(rows)
        made.begin(fixed=True)
        made.push(rows, torch.ones(rows.numel(), WIDTH, dtype=torch.float64))
        addresses.add(made.log.writes[0].values.flat.data_ptr())
        made.end()
    assert len(addresses) == 1


def cached(made: StagedTable, rows: Tensor, value: float) -> RowCache:
    """A cache with these rows, all of one value."""
    cache = made.host.cache(rows.numel())
    append(cache, rows, made.host.packed.with_values(torch.full((rows.numel() * WIDTH,), value, dtype=torch.float64)))
    return cache


def test_a_write_may_be_launched_before_the_host_has_stored_the_last_one() -> None:
    made = make("disk", WIDTH)
    assert made._io is not None
    left_out = cached(made, torch.tensor([4]), 0.0)
    stored = [
        made._io.write_back(made._io.next_stage(), cached(made, torch.tensor(rows), value), [], (left_out,))
        for rows, value in (([1, 4, 5], 1.0), ([4, 7], 2.0))
    ]
    for store in stored:
        store()
    assert made.data()[:, 0].tolist() == [0, 1, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0]


def test_a_write_is_launched_once_the_last_but_one_is_stored() -> None:
    made, order = make("disk", WIDTH), []

    class Noted(Event):
        def resolve(self) -> None:
            order.append("stored")

    assert made._io is not None
    next_stage = made._io.next_stage
    made._io.next_stage = lambda: order.append("launched") or next_stage()  # type: ignore[method-assign,func-returns-value]
    made._writes._last_but_one = Noted()
    push_in_a_step(made, HALO, some(made, 4, seed=1))
    made.data()
    assert order[:2] == ["stored", "launched"]
