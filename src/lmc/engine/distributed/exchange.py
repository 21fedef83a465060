"""The exchange of rows between the ranks that own them and the ranks that mirror them.

The rows that rank s sends to rank r are a fixed list, and r keeps them in the same order behind its own rows. So a
*position* in that list names a row on both sides, and no row numbers are sent. A :class:`Route` chooses positions for
every pair of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from lmc.engine.distributed.world import World
from lmc.graph import CSR, Shard
from lmc.graph.csr import pointers, row_entries
from lmc.graph.normalise import row_sums
from lmc.stores import Table

MESSAGE = 2**23
"""Bytes of the rows that a rank of mean size owns, in one message of an exact pass; it bounds the memory of buffers."""


@dataclass(frozen=True, eq=False)
class Route:
    """Rows to send to every rank, and the mirrors at which the rows of every rank arrive; local row numbers."""

    send: list[Tensor]
    receive: list[Tensor]

    @property
    def send_counts(self) -> list[int]:
        return [rows.numel() for rows in self.send]

    @property
    def receive_counts(self) -> list[int]:
        return [rows.numel() for rows in self.receive]

    def pieces(self, number: int) -> Iterator[Route]:
        """The route in several pieces, which sender and receiver cut at the same positions."""
        send, receive = ([rows.tensor_split(number) for rows in every] for every in (self.send, self.receive))
        for piece in zip(zip(*send, strict=True), zip(*receive, strict=True), strict=True):
            yield Route(list(piece[0]), list(piece[1]))


@dataclass(frozen=True, eq=False)
class Arrival:
    """Rows on their way to the mirrors of this rank: those of one rank after those of another, table by table."""

    world: World
    tables: tuple[Table, ...]
    route: Route
    rows: Tensor
    work: Any

    def finish(self) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Wait for the rows; yields the mirrors of every rank and their rows of every table, which are not written to
        it yet."""
        self.world.wait(self.work)
        widths = [table.data().shape[1] for table in self.tables]
        sizes = [rows.numel() * sum(widths) for rows in self.route.receive]
        for mirrors, block in zip(self.route.receive, self.rows.split(sizes), strict=True):
            yield mirrors, _by_table(block, mirrors.numel(), widths)

    def write(self) -> None:
        """Wait for the rows, and overwrite the mirrors with them."""
        for mirrors, arrived in self.finish():
            for table, rows in zip(self.tables, arrived, strict=True):
                table.push(mirrors, rows)


class Exchange:
    """What a problem on a shard needs of the other ranks.

    Args:
        shard: the local graph, in run order.
        device: where tables and rows are used.
        seed: that of the run, from which every rank derives its own.
    """

    def __init__(self, world: World, shard: Shard, device: torch.device, seed: int = 0) -> None:
        self.world, self.shard, self.device, self.seed = world, shard, device, seed
        self.degree = shard.degree.to(device)
        mirrors = torch.arange(shard.num_owned, shard.num_local, device=device)
        self.sent_to = list(shard.send.to(device).split(shard.send_counts))
        """Owned rows that each rank mirrors."""
        self.mirrors_of = list(mirrors.split(shard.receive_counts))
        """Mirrors whose owner is each rank."""
        self.all = Route(self.sent_to, self.mirrors_of)
        self._buffers: dict[str, Tensor] = {}

    def on(self, adj: CSR) -> Exchange:
        """The same on a graph with some of the edges; degrees and sums of mirrors are those of their owners."""
        weights = torch.ones(adj.nnz) if adj.values is None else adj.values
        degrees = adj.degrees() + (0 if adj.symmetric else adj.t().degrees())
        sums = torch.stack([degrees.double(), row_sums(adj, weights).double()], 1)
        self.publish_dense(sums)
        graph = replace(self.shard.graph, adj=adj)
        shard = replace(self.shard, graph=graph, degree=sums[:, 0].long(), strength=sums[:, 1])
        return Exchange(self.world, shard, self.device, self.seed)

    def publish(self, *tables: Table) -> None:
        """Overwrite all mirrors with the rows of their owners, as they are."""
        if not tables:
            return
        for route in self._pieces(*tables):
            self.start(tables, route).write()

    def start(
        self, tables: Sequence[Table], route: Route, dtype: torch.dtype | None = None, buffers: str = ""
    ) -> Arrival:
        """Start to send the rows of a route, of all tables in one message, in the widest of their dtypes or another.

        Args:
            buffers: the name of buffers that are kept for the next message of this name, which has to wait until this
                one has arrived.
        """
        dtype = dtype or reduce(torch.promote_types, (table.data().dtype for table in tables))
        widths = [table.data().shape[1] for table in tables]
        given, taken = ([count * sum(widths) for count in each] for each in (route.send_counts, route.receive_counts))
        message = self._buffer(f"{buffers} sent" if buffers else "", sum(given), dtype)
        out = self._buffer(f"{buffers} received" if buffers else "", sum(taken), dtype)
        for rows, block in zip(route.send, message.split(given), strict=True):
            for table, target in zip(tables, _by_table(block, rows.numel(), widths), strict=True):
                _read(table, rows, target)
        _, work = self.world.exchange(message, given, taken, out)
        return Arrival(self.world, tuple(tables), route, out, work)

    def _buffer(self, name: str, size: int, dtype: torch.dtype) -> Tensor:
        """Room for a message; without a name, for this one alone."""
        kept = self._buffers.get(name)
        if kept is None or kept.numel() < size or kept.dtype != dtype:
            kept = torch.empty(size, dtype=dtype, device=self.device)
            if name:
                self._buffers[name] = kept
        return kept[:size]

    def collect(self, table: Table) -> None:
        """Add the rows of all mirrors to those of their owners, and publish the sums."""
        for route in self._pieces(table):
            sums = self.sent(table.pull(torch.cat(route.receive)), route.receive_counts, route.send_counts)
            for rows, values in zip(route.send, sums.split(route.send_counts), strict=True):
                table.add(rows, values)  # one rank at a time, since rows have to be distinct
        self.publish(table)

    def _pieces(self, *tables: Table) -> Iterator[Route]:
        """The rows of all mirrors, in the same number of pieces on every rank."""
        row = sum(table.data().shape[1] * table.data().dtype.itemsize for table in tables)
        return self.all.pieces(1 + self.shard.num_nodes // self.shard.ranks * row // MESSAGE)

    def publish_dense(self, rows: Tensor) -> None:
        """The same as :meth:`publish` for a matrix in memory."""
        rows[self.shard.num_owned :] = self.sent(rows[torch.cat(self.sent_to).to(rows.device)])

    def publish_sparse(self, matrix: CSR) -> CSR:
        """The same for a sparse matrix, whose rows are replaced."""
        lengths, (columns, values) = self.rows_of_mirrors(matrix, matrix.indices, matrix.data)
        mine = matrix.leading(self.shard.num_owned)
        return CSR(
            pointers(torch.cat([mine.degrees(), lengths])),
            torch.cat([mine.indices, columns]),
            torch.cat([mine.data, values]),
            matrix.num_cols,
        )

    def rows_of_mirrors(self, matrix: CSR, *entries: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The rows of mirrors as their owners have them: their lengths, and their part of each of ``entries``, which
        hold one element for every stored entry of the matrix."""
        send = torch.cat(self.sent_to).to(matrix.device)
        at, starts = row_entries(matrix, send)
        lengths = self.sent(starts.diff())
        counts = (_sums(starts.diff(), self.all.send_counts), _sums(lengths, self.all.receive_counts))
        return lengths, [self.sent(each[at], *counts) for each in entries]

    def local_rows(self, nodes: Tensor) -> Tensor:
        """The rows of nodes of the whole graph; -1 where another rank owns them."""
        row = torch.full((self.shard.num_nodes,), -1, dtype=torch.int64)
        row[self.shard.ids[: self.shard.num_owned]] = torch.arange(self.shard.num_owned)
        return row[nodes.cpu()]

    def joined(self, rows: Tensor, at: Tensor, num: int) -> Tensor:
        """All ``num`` rows of a result, of which this rank has ``rows`` and the others have the rest."""
        result = torch.zeros(num, *rows.shape[1:], dtype=rows.dtype, device=self.device)
        result[at.to(self.device)] = rows.to(self.device)
        return self.world.sum(result).to(rows.device)

    def sent(
        self, rows: Tensor, send_counts: list[int] | None = None, receive_counts: list[int] | None = None
    ) -> Tensor:
        """Rows of other ranks, on the device of those that are sent; by default the rows of all mirrors."""
        send_counts, receive_counts = send_counts or self.all.send_counts, receive_counts or self.all.receive_counts
        out, work = self.world.exchange(rows.to(self.device), send_counts, receive_counts)
        self.world.wait(work)
        return out.to(rows.device)


def publish(exchange: Exchange | None, *tables: Table) -> None:
    """In a distributed run, overwrite the mirrors of tables with the rows of their owners."""
    if exchange is not None:
        exchange.publish(*tables)


def mirrored(X: Tensor | CSR | Table, exchange: Exchange | None) -> Tensor | CSR | Table:
    """P X with the rows of mirrors, whose neighbours may be elsewhere, from their owners."""
    if exchange is None:
        return X
    if isinstance(X, CSR):
        return exchange.publish_sparse(X)
    exchange.publish_dense(X) if isinstance(X, Tensor) else exchange.publish(X)
    return X


def _read(table: Table, rows: Tensor, target: Tensor) -> None:
    """Write rows of a table to a message."""
    if table.tier == "device" and table.data().dtype == target.dtype:
        torch.index_select(table.data(), 0, rows, out=target)
    else:
        target.copy_(table.pull(rows))


def _by_table(block: Tensor, num_rows: int, widths: list[int]) -> list[Tensor]:
    """The rows [num_rows, width] of every table in a message."""
    parts = block.split([num_rows * width for width in widths])
    return [part.view(num_rows, width) for part, width in zip(parts, widths, strict=True)]


def _sums(lengths: Tensor, counts: list[int]) -> list[int]:
    """The sum of the lengths of every rank's rows."""
    return [int(each.sum()) for each in lengths.split(counts)]
