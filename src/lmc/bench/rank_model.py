"""What W ranks exchange, counted from the parts of the nodes, and a model of the time of their epochs.

    T(W) = sum over steps of (the slowest rank's step + bytes / bandwidth + messages x latency)

The batches are those that W ranks would have, and a step is timed alone, in one process. Transfers do not overlap with
computation in the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from lmc.engine import Run
from lmc.engine.distributed.ownership import rank_seed
from lmc.graph import Graph, with_transpose
from lmc.graph.csr import entry_chunks
from lmc.methods import IMC, ClusterMethod
from lmc.partition import group_parts
from lmc.sampling import Clusters


@dataclass(frozen=True, eq=False)
class RankLists:
    """The batches of W ranks in their first epoch, and the rows that they exchange.

    Args:
        owner: the rank that owns each node, int64 [n].
        step: the step that has each node in its core, int64 [n].
        pushed: rows that rank s sends to rank r after step k, int64 [steps, s, r].
        fetched: rows that the batch of rank r reads of rank s before step k, int64 [steps, s, r].
    """

    owner: Tensor
    step: Tensor
    pushed: Tensor
    fetched: Tensor

    @property
    def ranks(self) -> int:
        return self.pushed.shape[1]

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return self.pushed.shape[0]

    @property
    def batch(self) -> Tensor:
        """A number of the batch of every node."""
        return self.owner * self.steps + self.step

    @property
    def owned(self) -> Tensor:
        """Nodes of every rank."""
        return torch.bincount(self.owner, minlength=self.ranks)

    @property
    def mirrored(self) -> Tensor:
        """Rows of rank s that rank r mirrors, int64 [s, r]."""
        return self.pushed.sum(0)

    @property
    def mirror_ratio(self) -> float:
        """Mirrors over owned rows, mean over ranks."""
        return float((self.mirrored.sum(0) / self.owned).mean())


def rank_lists(graph: Graph, parts: Tensor, method: ClusterMethod, ranks: int, seed: int) -> RankLists:
    """What the ranks of a distributed run would have and exchange; no rank is started."""
    owner = group_parts(graph, parts, ranks)[parts]
    step = torch.zeros_like(owner)
    for rank in range(ranks):
        nodes = (owner == rank).nonzero().squeeze(1)
        own = parts[nodes].unique(return_inverse=True)[1]
        per_batch = min(method.clusters_per_batch or 1, int(own.max()) + 1)
        clusters = Clusters.of(own, per_batch, method.redraw, rank_seed(seed, rank))
        for k, group in enumerate(clusters.epoch(0)):
            step[nodes[clusters.order[clusters.core(group)]]] = k
    steps = int(step.max()) + 1
    pushed, fetched = torch.zeros(2, steps * ranks**2, dtype=torch.int64)
    adj, batch = with_transpose(graph.adj.to("cpu")), owner * steps + step
    for row, entries in entry_chunks(adj):  # whole rows, so that a node is in one chunk
        col = adj.indices[entries].long()
        crossing = owner[row] != owner[col]
        row, col = row[crossing], col[crossing]
        node, to = _pairs(row, owner[col], ranks)
        pushed += torch.bincount((step[node] * ranks + owner[node]) * ranks + to, minlength=pushed.numel())
        node, reader = _pairs(row, batch[col], ranks * steps)
        key = (reader % steps * ranks + owner[node]) * ranks + reader // steps
        fetched += torch.bincount(key, minlength=fetched.numel())
    shape = steps, ranks, ranks
    return RankLists(owner, step, pushed.view(shape), fetched.view(shape))


def _pairs(a: Tensor, b: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """The different pairs of two lists, where numbers in the second are below ``num``."""
    key = (a * num + b).unique()
    return key // num, key % num


@dataclass(frozen=True)
class RowBytes:
    """Bytes of a row in every message: pushed after a step, fetched before it, and exchanged in a sweep."""

    push: tuple[int, ...]
    fetch: tuple[int, ...]
    sweep: tuple[int, ...]

    @classmethod
    def of(cls, run: Run) -> RowBytes:
        """Those of a method on a model, from the tables of a run."""
        traits, tables = run.method.traits, run.tables
        sums = {name for name, _, _ in traits.sums}
        names = [name for name in tables if "halo" in traits.reads and name not in sums]
        numbers = sum(name in run.numbers for name in traits.row_numbers)
        rows = [table.data() for name in names for table in tables[name].values()]
        fetched = [table.data() for name in sums & tables.keys() for table in tables[name].values()]
        # the rows that a layer sums, and sums where halo rows are computed; states whose sums are known are not sent
        read = ("Q", "M") if isinstance(run.method, IMC) and run.method.halo else ("Q",) if traits.sweeps else ()
        swept = [table.data()[0].nbytes for name in read for table in tables[name].values()]
        return cls(_message(rows, numbers), _message(fetched), tuple(swept))


def _message(tables: list[Tensor], numbers: int = 0) -> tuple[int, ...]:
    """All tables in one message, in the widest of their dtypes; none where there are no tables."""
    if not tables:
        return ()
    dtype = reduce(torch.promote_types, (table.dtype for table in tables))
    return ((sum(table.shape[1] for table in tables) + numbers) * dtype.itemsize,)


@dataclass(frozen=True)
class Network:
    """How ranks are connected: bytes per second into and out of every rank, and seconds of a message."""

    bandwidth: float
    latency: float


def counted_bytes(lists: RankLists, row: RowBytes, sweeps: float = 0.0) -> float:
    """Bytes of rows that all ranks send in an epoch with so many sweeps."""
    pushed, fetched = int(lists.pushed.sum()), int(lists.fetched.sum())
    return pushed * (sum(row.push) + sweeps * sum(row.sweep)) + fetched * sum(row.fetch)


@dataclass(frozen=True)
class Split:
    """Seconds of an epoch, mean over ranks: computing, waiting for slower ranks, and in transfers."""

    compute: float
    wait: float
    transfer: float

    @property
    def seconds(self) -> float:
        return self.compute + self.wait + self.transfer

    def __add__(self, other: Split) -> Split:
        return Split(self.compute + other.compute, self.wait + other.wait, self.transfer + other.transfer)

    def __mul__(self, times: float) -> Split:
        return Split(self.compute * times, self.wait * times, self.transfer * times)


@dataclass(frozen=True)
class SingleRankTimings:
    """What one process was seen to need: seconds of the step of every batch, of a sweep, and sweeps an epoch."""

    steps: dict[int, float]
    sweep: float = 0.0
    sweeps: float = 0.0

    @property
    def seconds(self) -> float:
        """Of an epoch."""
        return sum(self.steps.values()) + self.sweeps * self.sweep


def model_epoch(
    lists: RankLists, row: RowBytes, alone: SingleRankTimings, parameter_bytes: int, network: Network
) -> tuple[Split, float]:
    """The epoch of ``lists.ranks`` ranks, and the seconds of it that are latencies of messages.

    An exchange takes the time of the rank that sends or receives most, and a message to each of its peers.
    """
    W, by_batch = lists.ranks, torch.zeros(lists.ranks * lists.steps, dtype=torch.float64)
    for number, seconds in alone.steps.items():
        by_batch[number] = seconds
    times = by_batch.view(W, lists.steps)
    slowest, mean = float(times.amax(0).sum()), float(times.sum()) / W
    sent = [_exchange(rows, row.push) for rows in lists.pushed] + [_exchange(rows, row.fetch) for rows in lists.fetched]
    sent += lists.steps * [all_reduce(W, parameter_bytes)]
    largest = float(lists.owned.max()) / lists.owner.numel() * alone.sweep * alone.sweeps
    even = alone.sweep * alone.sweeps / W
    swept = [(alone.sweeps * size, alone.sweeps * count) for size, count in [_exchange(lists.mirrored, row.sweep)]]
    size, messages = (sum(values) for values in zip(*sent, *swept, strict=True))
    latency = messages * network.latency
    split = Split(mean + even, slowest - mean + largest - even, size / network.bandwidth + latency)
    return split, latency


def all_reduce(ranks: int, size: int) -> tuple[float, float]:
    """Bytes and messages of every rank in a sum of tensors over the ranks: 2 (W - 1) / W of the bytes, 2 log2 W."""
    return 2 * (ranks - 1) / ranks * size, float(2 * math.ceil(math.log2(ranks)))


def _exchange(rows: Tensor, messages: tuple[int, ...]) -> tuple[float, float]:
    """Bytes and messages of the busiest rank in an exchange of rows [s, r], one for each size of a row."""
    busiest = int(torch.maximum(rows.sum(1), rows.sum(0)).max())
    peers = int((rows > 0).sum(1).max())
    return float(busiest * sum(messages)), float(peers * len(messages))
