"""Sequences of pull, push, add and prefetch on every tier, compared with a plain tensor."""

from __future__ import annotations

import functools
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from torch import Tensor

from campaigns.harness import Tally, Wrong
from lmc.stores import Auto, Device, Disk, FileRows, Pinned, Rows, StagedTable, Table, host_zeros, overwrite, tables_of
from lmc.stores.staged import members
from lmc.stores.transfers import same_rows

TITLE = "tables of all tiers"
CASES, PER_BLOCK = 36, 18
EXAMPLES = 20
"""Sequences of operations in a case."""
N, WIDTHS, CPU = 7, (3, 2), torch.device("cpu")

KINDS = ("device", "host", "disk", "auto", "host bundle", "disk bundle", "staged host", "staged disk", "small disk")
"""The tables under test. Staged ones run the transfers of a GPU, with simulated streams, on this CPU."""

VALUES = st.integers(-8, 8).map(float)  # sums of these are exact in every order
INDICES = st.lists(st.integers(0, N - 1), unique=True, max_size=N).map(lambda rows: torch.tensor(rows).long())
RANGES = st.tuples(st.integers(0, N), st.integers(0, N)).map(lambda ends: slice(min(ends), max(ends)))
ROWS = st.one_of(INDICES, RANGES)


def made(kind: str) -> list[Table]:
    """Tables of zeros of the widths ``WIDTHS``."""
    dtype = torch.float64
    if kind.startswith("staged"):
        rows = host_zeros(N, WIDTHS, dtype, CPU) if kind.endswith("host") else FileRows(N, WIDTHS, dtype, CPU)
        return members(StagedTable(rows, staged=True))
    if kind == "small disk":  # so little stays mapped that every operation is divided into chunks
        return members(StagedTable(FileRows(N, WIDTHS, dtype, CPU, resident=1), tier="disk"))
    store = {"device": Device(), "host": Pinned(), "disk": Disk(), "auto": Auto()}[kind.split()[0]]
    if kind.endswith("bundle"):
        return tables_of(store, N, WIDTHS, dtype, CPU)
    return [store.table(N, width, dtype, CPU) for width in WIDTHS]


def num_rows(rows: Rows) -> int:
    """The number of rows."""
    return rows.stop - rows.start if isinstance(rows, slice) else rows.numel()


class TableMachine(RuleBasedStateMachine):
    """Any sequence of operations on two tables gives what it gives on plain tensors."""

    kind = KINDS[0]

    @initialize()
    def start(self) -> None:
        self.tables = made(self.kind)
        self.plain = [torch.zeros(N, width, dtype=torch.float64) for width in WIDTHS]
        self.announced: tuple[Rows, ...] = ()
        self.in_step = False
        self.written: list[Rows] = []

    def distinct(self, rows: Rows) -> bool:
        """Whether a step may write these rows: those that it writes are distinct, or they are the same object."""
        if self.in_step and not any(same_rows(rows, other) for other in self.written):
            taken = {int(row) for other in self.written for row in torch.arange(N)[other]}
            if taken & set(torch.arange(N)[rows].tolist()):
                return False
            self.written.append(rows)
        return True

    def values(self, data: Any, rows: Rows, table: int) -> Tensor:
        """Values for some rows, drawn."""
        size = num_rows(rows) * WIDTHS[table]
        drawn = data.draw(st.lists(VALUES, min_size=size, max_size=size))
        return torch.tensor(drawn, dtype=torch.float64).view(num_rows(rows), WIDTHS[table])

    @rule(rows=ROWS, table=st.integers(0, 1))
    def pull(self, rows: Rows, table: int) -> None:
        self.compare(self.tables[table].pull(rows), self.plain[table][rows], f"pull of {rows}")

    @rule(rows=ROWS, table=st.integers(0, 1), data=st.data())
    def push(self, rows: Rows, table: int, data: Any) -> None:
        if not self.distinct(rows):
            return
        values = self.values(data, rows, table)
        self.tables[table].push(rows, values.clone())
        self.plain[table][rows] = values

    @rule(rows=ROWS, table=st.integers(0, 1), data=st.data())
    def add(self, rows: Rows, table: int, data: Any) -> None:
        if not self.distinct(rows):
            return
        values = self.values(data, rows, table)
        self.tables[table].add(rows, values.clone())
        self.plain[table][rows] += values

    @rule(rows=st.lists(ROWS, min_size=1, max_size=2))
    def prefetch(self, rows: list[Rows]) -> None:
        taken = torch.cat([torch.arange(N)[r] for r in rows])
        if taken.unique().numel() < taken.numel():  # the rows of a step are distinct
            rows = rows[:1]
        self.announced = tuple(rows)
        for table in self.tables:
            table.prefetch(*rows)

    @precondition(lambda self: self.announced)
    @rule(table=st.integers(0, 1), which=st.integers(0, 1))
    def pull_announced(self, table: int, which: int) -> None:
        rows = self.announced[which % len(self.announced)]
        self.compare(self.tables[table].pull(rows), self.plain[table][rows], f"pull of prefetched {rows}")

    @precondition(lambda self: self.announced)
    @rule(table=st.integers(0, 1), which=st.integers(0, 1), adds=st.booleans(), data=st.data())
    def write_announced(self, table: int, which: int, adds: bool, data: Any) -> None:
        rows = self.announced[which % len(self.announced)]
        (self.add if adds else self.push)(rows=rows, table=table, data=data)

    @precondition(lambda self: self.kind.startswith("staged") and not self.in_step)
    @rule(fixed=st.booleans())
    def begin(self, fixed: bool) -> None:
        self.in_step, self.written = True, []
        self.tables[0].bundle.begin(fixed)  # type: ignore[attr-defined]

    @precondition(lambda self: self.announced and self.kind.startswith("staged") and not self.in_step)
    @rule(again=st.booleans(), rows=st.lists(ROWS, min_size=1, max_size=2), data=st.data())
    def whole_step(self, again: bool, rows: list[Rows], data: Any) -> None:
        """A training step: fetch, begin, read and write the announced rows, end."""
        self.prefetch(rows=list(self.announced) if again else rows)
        self.begin(fixed=data.draw(st.booleans()))
        for table in range(2):
            for which in range(len(self.announced)):
                self.pull_announced(table=table, which=which)
                if data.draw(st.booleans()):
                    self.write_announced(table=table, which=which, adds=data.draw(st.booleans()), data=data)
        self.end()

    @precondition(lambda self: self.in_step)
    @rule()
    def end(self) -> None:
        self.in_step = False
        self.tables[0].bundle.end()  # type: ignore[attr-defined]

    @precondition(lambda self: not self.in_step)
    @rule(table=st.integers(0, 1))
    def clear(self, table: int) -> None:
        overwrite(self.tables[table])
        self.plain[table].zero_()

    @precondition(lambda self: not self.in_step)
    @rule(table=st.integers(0, 1))
    def read_all(self, table: int) -> None:
        self.compare(self.tables[table].data(), self.plain[table], "data")

    def teardown(self) -> None:
        if hasattr(self, "tables"):
            if self.in_step:
                self.end()
            for table in (0, 1):
                self.compare(self.tables[table].data(), self.plain[table], "data at the end")

    def compare(self, got: Tensor, want: Tensor, what: str) -> None:
        if not torch.equal(got, want):
            raise Wrong(f"{self.kind}: {what} gives {got.tolist()}, expected {want.tolist()}")


def run(number: int, tally: Tally) -> None:
    """Many sequences of operations from one seed, all on one kind of table."""
    kind = KINDS[number % len(KINDS)]
    machine: Any = seeded(number)(type("Seeded", (TableMachine,), {"kind": kind}))
    budget = settings(
        max_examples=EXAMPLES, stateful_step_count=25, database=None, deadline=None, print_blob=False,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate],
    )  # fmt: skip
    ended = 0
    teardown = machine.teardown

    @functools.wraps(teardown)
    def counted(self: Any) -> None:
        nonlocal ended
        ended += 1
        teardown(self)

    machine.teardown = counted
    whole = Tally()
    whole.attempt(f"{kind}, seed {number}", lambda: run_state_machine_as_test(machine, settings=budget), "right")
    tally.add(Tally(ended, ended - len(whole.wrong), 0, whole.wrong))
