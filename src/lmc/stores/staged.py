"""Tables outside of the training device's memory, whose rows are fetched ahead of a step and written back behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from lmc.kernels.availability import triton_available
from lmc.kernels.packed import Rows
from lmc.stores.background import Fetcher, WriteBack
from lmc.stores.base import DeviceTable, Table
from lmc.stores.host import HostIO, HostRows
from lmc.stores.streams import numbers_on_host, numbers_ready, open_stream
from lmc.stores.transfers import StepLog, same_rows


class StagedTable:
    """A table, or a bundle of tables that steps read and write at the same rows, over rows on the host.

    A training step is enclosed by :meth:`begin` and :meth:`end`; a write outside of them is done at once. ``staged``:
    fetch ahead and write back behind; by default where the training device is a GPU.
    """

    def __init__(self, host: HostRows, staged: bool | None = None, tier: str = "host") -> None:
        self.tier, self.host = tier, host
        self.staged = host.device.type == "cuda" if staged is None else staged
        self.recordable = True
        """Whether no step so far read or wrote in an order that made it wait; such a step cannot be recorded."""
        self.log = StepLog(host)
        self._io = HostIO(host) if self.staged and not host.kernels_write else None
        reads = open_stream(host.device, "reads", threaded=not host.kernels_read)
        writes = open_stream(host.device, "writes", threaded=not host.kernels_write, lazy=True)
        self._fetcher, self._writes = Fetcher(host, self._io, reads), WriteBack(host, self._io, writes)
        self._in_step = False

    # ---- a table

    def pull(self, rows: Rows, member: int = 0) -> Tensor:
        fetch = self._fetcher.usable(self._writes)
        found = None if fetch is None else fetch.piece(rows)
        if found is not None and self.log.unwritten(found[0], member):
            self._fetcher.deliver(fetch)
            return found[1][member]
        self._settle()
        return self.host.pull(rows, member)

    def push(self, rows: Rows, values: Tensor, member: int = 0) -> None:
        self._write(rows, values.detach(), member, adds=False)

    def add(self, rows: Rows, values: Tensor, member: int = 0) -> None:
        self._write(rows, values.detach(), member, adds=True)

    def prefetch(self, *rows: Rows) -> None:
        if self.staged:
            if self._in_step:  # the fetch would miss what the step has yet to push
                self._settle()
            self._fetcher.start(rows, self._writes)

    def data(self, member: int = 0) -> Tensor:
        self._settle()  # the caller may write into the rows, which a fetch would not see
        self.host.synchronize()
        return self.host.packed[member]

    # ---- around a step

    def expect(self, *rows: Rows) -> None:
        """Announce row numbers, just computed on the current stream, that will be read or written soon."""
        for r in rows:
            numbers_ready(r)
            if self._io is not None:
                numbers_on_host(r)

    @property
    def in_flight(self) -> bool:
        """Whether there is a fetch that the next step can use."""
        return self._fetcher.usable(self._writes) is not None or not self.staged

    def begin(self, fixed: bool) -> None:
        """Begin a step: deliver the fetched rows. With ``fixed`` it leaves its rows at the same address in every epoch,
        so that it can be recorded."""
        if self.staged:
            self._in_step, self.log.fixed = True, fixed
            self._fetcher.deliver(self._fetcher.usable(self._writes))

    def end(self) -> None:
        """End a step, which is launched: write back what it pushed."""
        if self.staged:
            if not self.log.complete:
                self._settle()
            self._in_step = False
            self._writes.add(self.log.take(), self._fetcher.current)

    @property
    def address(self) -> tuple[int, int] | None:
        """Where the step under way finds its rows: a pointer and a capacity; one of a few in a training loop."""
        fetch = self._fetcher.current
        if fetch is None or fetch.delivered is None:
            return None
        return fetch.cache.values.flat.data_ptr(), fetch.cache.capacity

    def delivered(self, *rows: Rows, member: int = 0) -> Tensor | None:
        """All values that were delivered to the step under way, if they are those of ``rows`` and none was pushed yet.
        The step may change them in place if it pushes all that it changes."""
        fetch = self._fetcher.usable(self._writes)
        pushed = any(member in write.members for write in self.log.writes)
        if not self._in_step or fetch is None or fetch.delivered is None or pushed or len(rows) != len(fetch.rows):
            return None
        same = all(same_rows(mine, other) for mine, other in zip(fetch.rows, rows, strict=True))
        return fetch.cache.filled[member] if same else None

    @property
    def device_bytes(self) -> tuple[int, int]:
        """Bytes on the training device for rows in transfer, and for the indices that locate them."""
        caches = [*self._fetcher.caches, *self._writes.caches]
        rows = sum(cache.rows.nbytes + cache.values.nbytes for cache in caches) + self.log.nbytes
        return rows, sum(cache.slots.nbytes for cache in caches)

    @property
    def recording_bytes(self) -> int:
        """Bytes more that recorded steps need for what they push, unless they change the delivered rows in place."""
        newest = self._writes.newest
        return 0 if self.log.in_place or newest is None else newest.cache.filled.nbytes

    # ---- writes, and reads that the fetch does not cover

    def _write(self, rows: Rows, values: Tensor, member: int, adds: bool) -> None:
        if self._in_step and values.device.type == self.host.device.type:
            fetch = self._fetcher.usable(self._writes)
            self._fetcher.deliver(fetch)
            if self.log.note(rows, values, member, adds, fetch):
                return
        self._settle()
        self.host.push(rows, values, member, adds)

    def _settle(self) -> None:
        """Bring the host table up to date with every write, and drop the fetch."""
        self.recordable = self.recordable and not self._in_step
        complete, writes = self.log.complete, self.log.take()
        if complete and writes:
            self._writes.add(writes, self._fetcher.current)
            writes = []
        self._writes.flush()
        self._fetcher.drop()
        for write in writes:
            for member in write.members:
                self.host.push(write.rows, write.values[member], member, adds=False)


class BundleMember:
    """One table of a bundle. A prefetch fetches the rows of all members."""

    def __init__(self, bundle: StagedTable, index: int) -> None:
        self.bundle, self.tier, self.staged = bundle, bundle.tier, bundle.staged
        self.prefetch = bundle.prefetch
        self.pull, self.push = partial(bundle.pull, member=index), partial(bundle.push, member=index)
        self.add, self.data = partial(bundle.add, member=index), partial(bundle.data, member=index)
        self.delivered = partial(bundle.delivered, member=index)


def members(bundle: StagedTable) -> list[Table]:
    """The tables of a bundle."""
    return [BundleMember(bundle, k) for k in range(len(bundle.host.packed))]


def staged_tables(tables: Iterable[Table | None]) -> list[StagedTable]:
    """The staged tables among ``tables``; a bundle counts once, whichever of its members are given."""
    found = (table.bundle if isinstance(table, BundleMember) else table for table in tables)
    return list(dict.fromkeys(table for table in found if isinstance(table, StagedTable)))


@dataclass(frozen=True, eq=False)
class InPlace:
    """The memory of some tables, which a step on a GPU reads and writes instead of pulling and pushing copies.

    The rows ``core``, then ``halo``, are at ``rows`` of each tensor. ``delivered``: the tensors are copies that were
    delivered to this step.
    """

    tables: tuple[Table, ...]
    tensors: tuple[Tensor, ...]
    rows: Tensor
    core: Rows
    halo: Tensor
    delivered: bool

    def core_of(self, tensor: Tensor) -> Tensor | None:
        """The core rows of one of the tensors, where they are consecutive."""
        if self.delivered:
            return tensor[: self.rows.numel() - self.halo.numel()]
        return tensor[self.core] if isinstance(self.core, slice) else None

    def write_back(self, with_halo: Table) -> None:
        """The step has changed the core rows, and the halo rows of ``with_halo``."""
        if not self.delivered:  # the tensors are the tables
            return
        c = self.rows.numel() - self.halo.numel()
        for table, tensor in zip(self.tables, self.tensors, strict=True):
            table.push(self.core, tensor[:c])
            if table is with_halo:
                table.push(self.halo, tensor[c:])


def in_place(tables: tuple[Table, ...], core: Rows, halo: Tensor, ext: Tensor) -> InPlace | None:
    """The memory of the tables at core and halo; None where a step has to pull and push."""
    if not triton_available(ext):
        return None
    if all(isinstance(table, DeviceTable) for table in tables):
        return InPlace(tables, tuple(table.data() for table in tables), ext, core, halo, delivered=False)
    staged = [table for table in tables if isinstance(table, StagedTable | BundleMember)]
    found = [table.delivered(core, halo) for table in staged]
    if len(staged) < len(tables) or any(tensor is None for tensor in found):
        return None
    rows = torch.arange(ext.numel(), device=ext.device)
    return InPlace(tables, tuple(t for t in found if t is not None), rows, core, halo, delivered=True)
