"""``sync="step"``: ranks compute their batches side by side and exchange what changed after every step.

A step reads the tables as they were after the step before, on every rank. So W ranks do what one process does that
estimates W batches from the same tables and writes all of them afterwards:

    1. the rows that owners pushed after the step before arrive at their mirrors
    2. the step is computed as on one process; mirrors are halo rows
    3. owners start to push the core rows that others mirror, of all tables in one message
    4. gradients, losses and small numbers are added up over the ranks in one message

A method that keeps sums M = P T (CMC) needs one exchange more. The owner of a sum updates it from the differences of
the mirrored rows that arrive, and before a step the sums of its halo are fetched from their owners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from lmc.engine.distributed.exchange import Arrival, Exchange, Route
from lmc.engine.distributed.ownership import Schedule, Turn
from lmc.engine.distributed.world import World
from lmc.errors import ConfigError, DistributedError
from lmc.graph import CSR, Batch, spmm
from lmc.stores import DeviceTable

if TYPE_CHECKING:
    from lmc.engine.problem import Problem
    from lmc.engine.run import Run

KEPT = 1024
"""Lists of rows, and blocks of P, that are kept for batches that come again."""

Transfer = Literal["push", "fetch"]
"""After a step owners push the rows that it changed; before a step the sums of its halo are fetched from their
owners."""
Side = Literal["send", "receive"]
Positions = dict[tuple[int, int], Tensor]
"""Positions in the list of rows between this rank and another, by that rank and a part."""


class StepSync:
    """The exchange of a run after every step.

    Args:
        schedule: the batches of all ranks.
    """

    def __init__(self, run: Run, exchange: Exchange, schedule: Schedule) -> None:
        self.exchange, self.schedule, self.world = exchange, schedule, exchange.world
        self._run, self._problem, traits = run, run.problem, run.method.traits
        self._shared = Shared(run, schedule, exchange.world.rank)
        sums = {name for name, _, _ in traits.sums}
        reads = "halo" in traits.reads and self.world.options.sync == "step"
        names = [name for name in run.tables if reads and name not in sums]
        self._pushed = [(name, l) for name in names for l in run.tables[name]]
        self._sums = [(s, rows, transposed, l) for s, rows, transposed in traits.sums for l in run.tables.get(s, {})]
        numbers = (name for name in traits.row_numbers if name in run.numbers)
        self._row_numbers = [MemoryTable(run.numbers[name].unsqueeze(1)) for name in numbers]
        shard = exchange.shard
        part_of = shard.parts.to(exchange.device)
        self._lists: dict[tuple[Transfer, Side], Positions] = {
            ("push", "send"): _by_part(part_of[rows] for rows in exchange.sent_to),
            ("push", "receive"): _by_part(part_of[rows] for rows in exchange.mirrors_of),
        }
        if self._sums:
            self._lists["fetch", "send"], self._lists["fetch", "receive"] = self._fetch_lists()
        self._chosen = lru_cache(maxsize=KEPT)(self._choose)
        self._readers = lru_cache(maxsize=KEPT)(self._block)
        self._changed: list[tuple[int, ...]] = [()] * self.world.ranks
        self._arriving: tuple[Arrival, list[tuple[int, ...]]] | None = None
        self._fetched: Arrival | None = None
        self._first_table = min(map(min, filter(None, run.tables.values())), default=1)
        self._position: tuple[int, int] | None = None

    def agreement(self, ask: Callable[[], bool]) -> Callable[[], bool]:
        """A function that all ranks answer alike: whether ``ask`` was true on any of them before the last step. On a
        GPU it reads the answer of the step before, so that it does not wait for the running one."""
        self._shared.asks.append(ask)
        return partial(self._shared.agreed, len(self._shared.asks) - 1)

    def resumed(self, epoch: int, step: int) -> None:
        """Continue before this step: rows that were changed since the last push are pushed with the next one."""
        self.refreshed()
        done = epoch * self.schedule.steps + step
        for number in range(done - done % self.world.options.sync_every, done):
            turns = self.schedule.turns(*divmod(number, self.schedule.steps))
            self._changed = [_union(old, turn.parts) for old, turn in zip(self._changed, turns, strict=True)]

    def publish(self) -> None:
        """Overwrite the mirrors, and the numbers of other ranks, with those of their owners."""
        self.exchange.publish(*self._run.named_tables().values())
        self._shared.publish(self.world)

    def regraph(self, problem: Problem) -> None:
        """Update sums with the P of another graph on the same nodes from now on."""
        self.settle()
        self._problem = problem
        self._readers.cache_clear()

    def begin(self, epoch: int, step: int) -> None:
        """Called before the batch of a step is given out."""
        self._position = epoch, step
        self.world.where = f"epoch {epoch + 1}, step {step + 1}"
        if step == 0:
            check_replicas(self._run.problem.model, self)

    def before(self, batch: Batch) -> None:
        """Begin to bring the mirrors that a step on ``batch`` reads up to date; layers wait for them (:meth:`arrive`)
        where tables are read when a layer is computed, and not before."""
        if self._sums:
            self.settle()
            route = self._route("fetch", [turn.parts for turn in self._turns(batch)])
            tables = [self._run.tables[name][l] for name, _, _, l in self._sums]
            self._fetched = self.exchange.start(tables, route, self._wire, "fetched")
        if not self._reads_late():
            self.settle()

    def arrive(self, l: int) -> None:
        """Wait for the rows that layer l may read; the transfer goes on while the layers below the first table are
        computed."""
        if l >= self._first_table:
            self.settle()

    def _reads_late(self) -> bool:
        """Whether a step calls :meth:`arrive` before it reads tables: not where rows are staged or recorded."""
        run = self._run
        return run.problem.device.type == "cpu" and not run.pipeline.staging.active and not run.problem.model.recurrent

    def after(self, batch: Batch, grads: list[Tensor], loss: Tensor) -> tuple[list[Tensor], Tensor]:
        """Start to push what the step changed; returns gradients and loss, added up over the ranks."""
        self.settle()
        turns, (epoch, step) = self._turns(batch), self._position or (0, 0)
        self._changed = [_union(old, turn.parts) for old, turn in zip(self._changed, turns, strict=True)]
        every = self.world.options.sync_every
        if self._pushed and (epoch * self.schedule.steps + step + 1) % every == 0:
            tables = [*(self._run.tables[name][l] for name, l in self._pushed), *self._row_numbers]
            route = self._route("push", self._changed)
            self._arriving = self.exchange.start(tables, route, self._wire, "pushed"), self._changed
            self._changed = [()] * self.world.ranks
        return self._shared.reduce(self.world, batch, turns, grads, loss)

    def total(self, grads: list[Tensor]) -> list[Tensor]:
        """Gradients added up over the ranks; nothing else is exchanged."""
        return [g.to(p.dtype) for g, p in zip(_totals(self.world, grads, grads[0].dtype), grads, strict=True)]

    def settle(self) -> None:
        """Wait for the rows that were pushed and fetched, and write them to their mirrors."""
        fetched, self._fetched = self._fetched, None
        if fetched is not None:
            fetched.write()
        if self._arriving is None:
            return
        (arrival, parts), self._arriving = self._arriving, None
        for rank, (mirrors, arrived) in enumerate(arrival.finish()):
            found = dict(zip(self._pushed, arrived, strict=False))
            for number, values in zip(self._row_numbers, arrived[len(self._pushed) :], strict=True):
                number.push(mirrors, values)
            for sums, rows, transposed, l in self._sums if mirrors.numel() else ():
                stored = self._run.tables[rows][l].pull(mirrors)
                change = found[rows, l].to(self._run.problem.accumulate_dtype) - stored
                # sums += P change, for owned rows that read the mirrors whose rows have changed
                readers, P = self._readers(rank, parts[rank], self._problem.matrix_index[l - 1], transposed)
                self._run.tables[sums][l].add(readers, spmm(P, change))
            for (name, l), values in found.items():
                self._run.tables[name][l].push(mirrors, values)

    def refreshed(self) -> None:
        """Drop what is pending: the tables of all ranks are filled."""
        self.settle()
        self._changed = [()] * self.world.ranks

    @property
    def _wire(self) -> torch.dtype | None:
        return torch.bfloat16 if self.world.options.wire == "bfloat16" else None

    def _turns(self, batch: Batch) -> list[Turn]:
        """The batches of all ranks in the current step."""
        turns = None if self._position is None else self.schedule.turns(*self._position)
        if (
            turns is None
            or turns[self.world.rank].slot != batch.slot
            or (batch.num_core == 0) != (not turns[self.world.rank].parts)
        ):
            raise ConfigError(
                "expected the batch that run.batches() gave last (got another one): in a distributed run every batch "
                "is used before the next one is taken"
            )
        return turns

    def _route(self, transfer: Transfer, parts: Sequence[tuple[int, ...]]) -> Route:
        """The rows that the parts of every rank push, or those that they fetch."""
        me, exchange = self.world.rank, self.exchange
        mine = [parts[me]] * len(parts)
        senders, receivers = (mine, parts) if transfer == "push" else (parts, mine)
        send = zip(exchange.sent_to, range(len(parts)), senders, strict=True)
        receive = zip(exchange.mirrors_of, range(len(parts)), receivers, strict=True)
        return Route(
            [rows[self._chosen(transfer, "send", rank, of)] for rows, rank, of in send],
            [rows[self._chosen(transfer, "receive", rank, of)] for rows, rank, of in receive],
        )

    def _choose(self, transfer: Transfer, side: Side, rank: int, parts: tuple[int, ...]) -> Tensor:
        """Positions of the rows of several parts, each once and ascending, as both sides have them."""
        lists = self._lists[transfer, side]
        found = [lists[rank, part] for part in parts if (rank, part) in lists]
        if not found:
            return torch.empty(0, dtype=torch.int64, device=self.exchange.device)
        return torch.cat(found).unique()

    def _fetch_lists(self) -> tuple[Positions, Positions]:
        """Positions of the mirrors that each of this rank's parts reads, and what other ranks' parts read here."""
        mine = self.schedule.parts[self.world.rank]
        wanted = _mirrors_read(self._run, self.exchange, mine)
        rows = [[wanted[r, p].numel() for p in mine] for r in range(self.world.ranks)]
        sizes = torch.tensor(rows, device=self.exchange.device)
        theirs = [len(parts) for parts in self.schedule.parts]
        counts, work = self.world.exchange(sizes.flatten(), [len(mine)] * self.world.ranks, theirs)
        self.world.wait(work)
        each = [part.tolist() for part in counts.split(theirs)]
        positions = torch.cat([wanted[r, p] for r in range(self.world.ranks) for p in mine])
        found, work = self.world.exchange(positions, sizes.sum(1).tolist(), [sum(of_rank) for of_rank in each])
        self.world.wait(work)
        lists = found.split([size for of_rank in each for size in of_rank])
        keys = [(rank, part) for rank, parts in enumerate(self.schedule.parts) for part in parts]
        return dict(zip(keys, lists, strict=True)), wanted

    def _block(self, rank: int, parts: tuple[int, ...], matrix: int, transposed: bool) -> tuple[Tensor, CSR]:
        """The owned rows that read the mirrors of these parts, and the block of P, or of P^T, between the two."""
        problem = self._problem.of_layer(self._problem.matrix_index.index(matrix) + 1)
        blocks, back = problem.blocks, problem.transposed
        blocks, back = (back, blocks) if transposed else (blocks, back)
        mirrors = self.exchange.mirrors_of[rank][self._chosen("push", "receive", rank, parts)]
        readers = back.halo(mirrors)
        readers = readers[readers < self.exchange.shard.num_owned]
        return readers, blocks.block(readers, mirrors)


def _mirrors_read(run: Run, exchange: Exchange, parts: Sequence[int]) -> Positions:
    """Positions of the mirrors that each of these parts of this rank reads."""
    offsets, counts = run.clusters.offsets, exchange.all.receive_counts
    firsts = [exchange.shard.num_owned + sum(counts[:rank]) for rank in range(len(counts))]
    found: Positions = {}
    for part, first, last in zip(parts, offsets[:-1], offsets[1:], strict=True):
        halo = run.problem.halo(torch.arange(first, last, device=exchange.device))
        for rank, (start, count) in enumerate(zip(firsts, counts, strict=True)):
            found[rank, part] = halo[(halo >= start) & (halo < start + count)] - start
    return found


class MemoryTable(DeviceTable):
    """A matrix in memory as a table."""

    def __init__(self, rows: Tensor) -> None:
        self._memory, self._num_rows = rows, rows.shape[0]


class Shared:
    """What is the same on all ranks: gradients, losses, running statistics and columns of small numbers. They are added
    up in one message after a step.

    A number with one column per batch that the method reads as a whole (``traits.shared_numbers``) has the columns of
    this rank's batches first, and then those of the other ranks.
    """

    def __init__(self, run: Run, schedule: Schedule, rank: int) -> None:
        self._run, self._rank = run, rank
        self._buffers = [b for b in run.problem.model.buffers() if b.is_floating_point() or b.dim() == 0]
        replicated = (name for name in run.method.traits.replicated_numbers if name in run.numbers)
        self._buffers += [run.numbers[name] for name in replicated]
        counts, numbers = list(schedule.num_batches), run.numbers
        others = counts[:rank] + counts[rank + 1 :]
        starts = [counts[rank] + sum(others[:k]) for k in range(len(others))]
        self._first = [*starts[:rank], 0, *starts[rank:]]
        for name in run.method.traits.shared_numbers:
            own = numbers[name]
            numbers[name] = torch.cat([own, own[:, :1].repeat_interleave(sum(others), 1)], 1)
        self._names = run.method.traits.shared_numbers
        self._own = counts[rank]
        self.asks: list[Callable[[], bool]] = []
        self._votes: list[list[Tensor]] = [[], []]

    def agreed(self, number: int) -> bool:
        """Whether a rank answered a question with yes."""
        before, last = self._votes
        votes = before if last and last[0].is_cuda else last
        return number < len(votes) and bool(votes[number] > 0)

    def publish(self, world: World) -> None:
        """Overwrite the columns of other ranks with those that they have."""
        for name in self._names:
            numbers = self._run.numbers[name]
            for first, rows in zip(self._first, world.gather(numbers[:, : self._own].transpose(0, 1)), strict=True):
                numbers[:, first : first + rows.shape[0]] = rows.transpose(0, 1)

    def reduce(
        self, world: World, batch: Batch, turns: list[Turn], grads: list[Tensor], loss: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        """Add up over the ranks what a step gave."""
        numbers, active = self._run.numbers, [rank for rank, turn in enumerate(turns) if turn.parts]
        here = self._rank in active
        columns = [numbers[name][:, batch.slot] for name in self._names]
        blocks = [column.new_zeros(len(turns), *column.shape) for column in columns]
        for block, column in zip(blocks, columns, strict=True):
            block[self._rank] = column * here
        buffers = [b.to(loss.dtype) * here for b in self._buffers]
        votes = [torch.full_like(loss, float(ask())) for ask in self.asks]
        sums = iter(_totals(world, [*grads, loss, *blocks, *buffers, *votes], loss.dtype))
        reduced, total = [next(sums).to(g.dtype) for g in grads], next(sums)
        for name in self._names:
            block = next(sums).to(numbers[name].dtype)
            for rank in active:
                numbers[name][:, self._first[rank] + turns[rank].slot] = block[rank]
        for buffer in self._buffers:
            buffer.copy_(next(sums) / len(active))
        self._votes = [self._votes[1], list(sums)]
        return reduced, total


def _totals(world: World, pieces: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The pieces, added up over the ranks in one message of this dtype."""
    flat = world.sum(torch.cat([piece.reshape(-1).to(dtype) for piece in pieces]))
    parts = flat.split([piece.numel() for piece in pieces])
    return [part.view_as(piece) for part, piece in zip(parts, pieces, strict=True)]


def check_replicas(model: nn.Module, sync: StepSync) -> None:
    """Refuse to go on where the parameters differ between the ranks."""
    world = sync.world
    bits = [p.detach().contiguous().view(torch.uint8).sum(dtype=torch.int64) for p in model.parameters()]
    digest = torch.stack([k * each for k, each in enumerate(bits, 1)]).sum()
    both = torch.stack([digest, -digest])
    if not torch.equal(world.max(both.clone()), both):
        raise DistributedError(
            f"expected the same parameters on every rank (got others on rank {world.rank} in {world.where}): do not "
            "change them on one rank alone"
        )


def _by_part(parts: Iterable[Tensor]) -> Positions:
    """Positions by rank and part, from the parts of every rank's rows."""
    found: Positions = {}
    for rank, each in enumerate(parts):
        order = each.sort(stable=True).indices
        names, counts = each.unique(return_counts=True)
        found |= {(rank, part): at for part, at in zip(names.tolist(), order.split(counts.tolist()), strict=True)}
    return found


def _union(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The parts of both, ascending."""
    return tuple(sorted({*a, *b}))
