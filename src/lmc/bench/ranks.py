"""Epochs of one process and of several ranks on this machine, timed in turn, and models of more ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

import lmc.data
from lmc.bench.compare import Partitions, shared_parts
from lmc.bench.epoch import Setup, build, wait
from lmc.bench.launch import on_ranks
from lmc.bench.rank_model import (
    Network,
    RankLists,
    RowBytes,
    SingleRankTimings,
    Split,
    counted_bytes,
    model_epoch,
    rank_lists,
)
from lmc.engine import Distributed, Run
from lmc.engine.distributed import World
from lmc.graph import Graph
from lmc.methods import ClusterMethod
from lmc.train import adam, train_step

MEASURED, MODELLED = "measured", "modelled"
HERE = "this machine"
"""The network of ranks on one machine, whose bandwidth and latency are measured."""
CPU = torch.device("cpu")
PROBED = 2**24
"""Bytes of the exchange that measures the bandwidth."""
PROBES = 5
"""Exchanges of which the median time is taken."""


@dataclass(frozen=True)
class RankCell:
    """Methods that are measured or modelled together: the number of ranks, how, on which network, and their specs."""

    ranks: int
    how: str
    network: str
    methods: str


@dataclass(frozen=True, kw_only=True)
class RankRecord(RankCell):
    """An epoch of one method. Seconds are means over ranks; bytes are those of rows, summed over ranks.

    Args:
        seconds: of an epoch; ``compute``, ``wait`` for slower ranks and ``transfer`` add up to it.
        latency: the part of ``transfer`` that is latencies of messages; None where it was measured.
        alone: seconds of an epoch of one process, timed in turn with the ranks; of a model, those of the model.
        sweeps: in an epoch.
        counted, sent: bytes of an epoch, from the lists of rows and as the ranks sent them; None where none were sent.
        mirrors: mirrors over owned rows, mean over ranks.
        bandwidth, seconds_per_message: of the network.
    """

    method: str
    steps: int
    seconds: float
    compute: float
    wait: float
    transfer: float
    latency: float | None = None
    alone: float | None = None
    sweeps: float = 0.0
    counted: float = 0.0
    sent: float | None = None
    mirrors: float = 0.0
    bandwidth: float | None = None
    seconds_per_message: float | None = None

    @property
    def speed_up(self) -> float | None:
        """The epoch takes one process so many times as long."""
        return None if self.alone is None else self.alone / self.seconds

    @property
    def efficiency(self) -> float | None:
        """The speed-up over the number of ranks."""
        return None if self.speed_up is None else self.speed_up / self.ranks

    @property
    def bound(self) -> str:
        """What takes the largest part of the epoch."""
        parts = {"compute": self.compute, "slowest rank": self.wait, "transfer": self.transfer}
        if self.latency is not None:
            del parts["transfer"]
            parts |= {"bandwidth": self.transfer - self.latency, "latency": self.latency}
        return max(parts, key=parts.__getitem__)


Timed = tuple[float, list[float]]
"""Seconds of an epoch or of a sweep, and of every collective in it."""


@dataclass(eq=False)
class RankTimings:
    """What one process saw of a method: every epoch without its sweeps, every sweep, and the bytes that it sent."""

    epochs: list[Timed] = field(default_factory=list)
    sweeps: list[Timed] = field(default_factory=list)
    sent: int = 0

    @property
    def seconds(self) -> float:
        """Of an epoch with its sweeps."""
        return median(t for t, _ in self.epochs) + sum(t for t, _ in self.sweeps) / len(self.epochs)


class Timer:
    """A run whose steps and sweeps are timed.

    Args:
        clock: the processor time of the process, or the time that passes.

    Attributes:
        seen: what was timed so far.
        steps: seconds of every step, epoch by epoch, by the first node of its batch.
    """

    def __init__(self, run: Run, lr: float, clock: Callable[[], float] = time.perf_counter) -> None:
        run.refresh()
        self.run, self._refresh, self._optimizer = run, run.refresh, adam(run.problem.model, lr)
        self._clock = clock
        run.refresh = self._sweep  # type: ignore[method-assign]
        self.world = None if run.sync is None else run.sync.world
        self.start()

    def start(self) -> None:
        """Forget what was timed so far."""
        self.seen, self.steps = RankTimings(), list[dict[int, float]]()
        self._sent = 0 if self.world is None else self.world.sent

    def epoch(self) -> None:
        """Train an epoch."""
        steps: dict[int, float] = {}
        with self._collectives() as waits:
            started, swept = self._now(), len(self.seen.sweeps)
            for batch in self.run.batches():
                train_step(self.run, self._optimizer, batch)
                now, sweeps = self._now(), self.seen.sweeps[swept:]
                node = -1 - len(steps) if batch.idle else int(batch.n_id[0])
                steps[node] = now - started - sum(seconds for seconds, _ in sweeps)
                started, swept = now, len(self.seen.sweeps)
        self.steps.append(steps)
        self.seen.epochs.append((sum(steps.values()), waits))
        self.seen.sent = 0 if self.world is None else self.world.sent - self._sent

    def _sweep(self) -> None:
        with self._collectives() as waits:
            started = self._now()
            self._refresh()
            seconds = self._now() - started
        self.seen.sweeps.append((seconds, waits))

    def _now(self) -> float:
        wait(self.run.problem.device)
        return self._clock()

    @contextmanager
    def _collectives(self) -> Iterator[list[float]]:
        """The seconds of the collectives within, without those of a sweep."""
        waits: list[float] = []
        before = None if self.world is None else self.world.waits
        if self.world is not None:
            self.world.waits = waits
        yield waits
        if self.world is not None:
            self.world.waits = before


def time_ranks(
    dataset: str, methods: Mapping[str, ClusterMethod], setup: Setup
) -> tuple[dict[str, RankTimings], dict[str, RankTimings], Network]:
    """Time epochs on this rank, method after method; rank 0 times one process in turn, while the others wait.

    Returns what this rank saw of every method, what rank 0 saw of one process, and the network between the ranks.
    """
    graph, known, world = lmc.data.load(dataset).training_graph, Partitions(), World(Distributed(), CPU)
    ranks = {label: Timer(bound(graph, m, setup, known, Distributed()), setup.lr) for label, m in methods.items()}
    alone = {label: Timer(bound(graph, m, setup, known), setup.lr) for label, m in methods.items() if world.rank == 0}
    _time([timers[label] for label in methods for timers in (alone, ranks) if label in timers], setup, world)
    found = [{label: timer.seen for label, timer in timers.items()} for timers in (ranks, alone)]
    return found[0], found[1], probe_network(world)


def _time(timers: Sequence[Timer], setup: Setup, world: World | None = None) -> None:
    """Train epochs of all timers in turn: those of the warm-up, and then those that count."""
    for k in range(setup.warmup + setup.repeat):
        for timer in timers:
            if k == setup.warmup:
                timer.start()
            if world is not None and timer.world is not None:
                world.any(False)  # all ranks start together
            timer.epoch()


def probe_network(world: World) -> Network:
    """The bandwidth out of a rank and the seconds of a message, from large and from small exchanges."""

    def seconds(size: int) -> float:
        each = [size // world.ranks] * world.ranks
        rows = torch.zeros(sum(each), dtype=torch.uint8, device=world.device)
        found = []
        for _ in range(PROBES):
            world.any(False)
            started = time.perf_counter()
            world.wait(world.exchange(rows, each, each)[1])
            found.append(float(world.max(torch.tensor([time.perf_counter() - started], dtype=torch.float64))))
        return median(found)

    peers = max(1, world.ranks - 1)
    small, large = seconds(world.ranks), seconds(PROBED)
    return Network(PROBED * peers / world.ranks / max(large - small, 1e-9), small / peers)


def bound(
    graph: Graph, method: ClusterMethod, setup: Setup, known: Partitions, distributed: bool | Distributed = False,
    parts: Tensor | None = None, device: str = "cpu",
) -> Run:  # fmt: skip
    """A method bound to a new GCN, in this process or as one of the ranks."""
    if parts is None:
        parts = shared_parts(method, graph, setup.seed, known)
    return method.bind(
        graph, build("gcn", graph, setup), parts=parts, device=device, seed=setup.seed, distributed=distributed
    )


def split_of(seen: Sequence[tuple[float, list[float]]]) -> Split:
    """How the ranks spent one epoch or one sweep, from its seconds and those of its collectives on every rank.

    The rank that arrives last at a collective does not wait for another, so the least time in it is the transfer.
    """
    waits = torch.tensor([each for _, each in seen], dtype=torch.float64)
    transfer = float(waits.amin(0).sum()) if waits.numel() else 0.0
    inside = float(waits.sum()) / len(seen)
    total = sum(seconds for seconds, _ in seen) / len(seen)
    return Split(total - inside, inside - transfer, transfer)


def middle(splits: Sequence[Split]) -> Split:
    """The one with the median of the seconds."""
    return sorted(splits, key=lambda split: split.seconds)[len(splits) // 2] if splits else Split(0.0, 0.0, 0.0)


def measure_ranks(
    cell: RankCell, dataset: str, graph: Graph, methods: Mapping[str, ClusterMethod], setup: Setup
) -> list[RankRecord]:
    """Start the ranks and time their epochs."""
    answers = on_ranks(cell.ranks, time_ranks, dataset, dict(methods), setup)
    _, alone, network = answers[0]
    records, known = [], Partitions()
    for label, method in methods.items():
        seen = [of_rank[label] for of_rank, _, _ in answers]
        epochs, sweeps = (
            [split_of(each) for each in zip(*(getattr(rank, name) for rank in seen), strict=True)]
            for name in ("epochs", "sweeps")
        )
        share = len(sweeps) / setup.repeat
        split = middle(epochs) + middle(sweeps) * share
        lists, row = lists_of(graph, method, cell.ranks, setup, known), RowBytes.of(bound(graph, method, setup, known))
        sent = sum(rank.sent for rank in seen) / setup.repeat
        records.append(_record(cell, label, lists, row, split, share, network, alone=alone[label].seconds, sent=sent))
    return records


def _record(
    cell: RankCell, label: str, lists: RankLists, row: RowBytes, split: Split, sweeps: float, network: Network,
    **more: Any,
) -> RankRecord:  # fmt: skip
    """The line of a method."""
    return RankRecord(
        **vars(cell), **vars(split), **more, method=label, steps=lists.steps, seconds=split.seconds, sweeps=sweeps,
        counted=counted_bytes(lists, row, sweeps), mirrors=lists.mirror_ratio, bandwidth=network.bandwidth,
        seconds_per_message=network.latency,
    )  # fmt: skip


def lists_of(graph: Graph, method: ClusterMethod, ranks: int, setup: Setup, known: Partitions) -> RankLists:
    """The batches and rows of a method on so many ranks."""
    parts = shared_parts(method, graph, setup.seed, known)
    assert parts is not None
    return rank_lists(graph, parts, method, ranks, setup.seed)


def model_ranks(
    cell: RankCell, graph: Graph, methods: Mapping[str, ClusterMethod], setup: Setup, network: Network, device: str,
    alone: Mapping[str, float],
) -> list[RankRecord]:  # fmt: skip
    """Time the batches of so many ranks in this process, count what they would exchange, and add up.

    On a CPU the model takes the processor time, which other processes of the machine change less.

    Args:
        alone: seconds of an epoch of one process, by method; with one rank, those of this measurement are taken.
    """
    known, clock = Partitions(), time.perf_counter
    if cell.how == MODELLED and torch.device(device).type == "cpu":
        clock = time.process_time
    lists = {label: lists_of(graph, method, cell.ranks, setup, known) for label, method in methods.items()}
    timers = {}
    for label, method in methods.items():
        parts = lists[label].batch.unique(return_inverse=True)[1]
        each = replace(method, num_parts=None, clusters_per_batch=1)  # a part is the batch of a rank
        timers[label] = Timer(bound(graph, each, setup, known, parts=parts, device=device), setup.lr, clock)
    _time(list(timers.values()), setup)
    records = []
    for label, timer in timers.items():
        of = lists[label]
        seen = _seen_alone(timer, of, setup.repeat)
        row, parameters = RowBytes.of(timer.run), sum(p.nbytes for p in timer.run.parameters.values())
        split, latency = model_epoch(of, row, seen, parameters, network)
        base = split.seconds if cell.ranks == 1 else alone.get(label)
        records.append(_record(cell, label, of, row, split, seen.sweeps, network, latency=latency, alone=base))
    return records


def _seen_alone(timer: Timer, lists: RankLists, epochs: int) -> SingleRankTimings:
    """The steps of all batches and the sweeps of one process."""
    sweeps = [seconds for seconds, _ in timer.seen.sweeps]
    steps = {int(lists.batch[node]): median(epoch[node] for epoch in timer.steps) for node in timer.steps[0]}
    return SingleRankTimings(steps, median(sweeps) if sweeps else 0.0, len(sweeps) / epochs)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
