"""What every rank of a run on a graph that is too large for one machine keeps, exchanges and takes; nothing is loaded.

Bytes are those of :func:`lmc.diagnostics.plan` for the rows that a rank owns and mirrors. Ratios that depend on the
graph, mirrors per owned row and halo rows per core row, are given, or measured on a smaller graph that is divided.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from lmc.bench.rank_model import Network, RowBytes, all_reduce, rank_lists
from lmc.diagnostics.plan import USABLE, Plan, plan_of, settle
from lmc.diagnostics.probe import BatchSize, batch_sizes, probe
from lmc.graph import CSR, Graph
from lmc.graph.csr import pointer_dtype
from lmc.methods import ClusterMethod
from lmc.models import Model
from lmc.stores import Placement

EVICTED = ("histories", "batches", "features", "structure")
"""What leaves the GPU first where it is too small; ``lmc train`` advises the same order."""


@dataclass(frozen=True)
class GraphSize:
    """A graph in numbers; ``edges`` are undirected."""

    nodes: int
    edges: int
    features: int
    classes: int


GRAPHS = {"papers100M": GraphSize(111_059_956, 1_615_685_872, 128, 172)}
"""Published sizes; every directed edge of ogbn-papers100M counts as an undirected one."""


@dataclass(frozen=True)
class Ratios:
    """What depends on the structure of a graph.

    Args:
        mirrors: mirrors per owned row, which is also how often an owned row is pushed.
        fetched: rows of other ranks that a step reads, per core row.
        halo: halo rows per core row.
        core_edges, cross_edges, halo_edges: entries of a batch over those of its core rows: within the core, from the
            core to the halo, and within the halo.
    """

    mirrors: float
    fetched: float
    halo: float
    core_edges: float
    cross_edges: float
    halo_edges: float


def measured_ratios(graph: Graph, parts: Tensor, method: ClusterMethod, ranks: int, seed: int = 0) -> Ratios:
    """The ratios of a graph that is divided into parts and among ranks."""
    lists = rank_lists(graph, parts, method, ranks, seed)
    sizes = batch_sizes(graph, method.clusters(graph, parts, seed))
    core, halo, *edges = (sum(values) for values in zip(*map(dataclasses.astuple, sizes), strict=True))
    entries = edges[0] + edges[1]
    fetched = float(lists.fetched.sum()) / graph.num_nodes
    return Ratios(lists.mirror_ratio, fetched, halo / core, *(count / entries for count in edges))


@dataclass(frozen=True)
class Machine:
    """What a rank has: bytes of its GPU and of its share of the host, the network, bytes a second between the GPU and
    the host or the disk, and core rows of steps a second."""

    gpu: float
    host: float
    network: Network
    host_bandwidth: float
    disk_bandwidth: float
    rows_per_second: float


@dataclass(frozen=True)
class RankPlan:
    """One rank of W.

    Args:
        places: bytes and tier of histories, features, structure and batches; and of what is always on the GPU or host.
        sent: bytes of rows that the rank sends in a step; ``moved``: bytes between its GPU and its host or disk.
        compute, exchange, transfer: seconds of a step, without overlap; ``transfer`` is that of ``moved``.
    """

    ranks: int
    owned: int
    mirrors: int
    halo: float
    places: dict[str, tuple[float, str]]
    steps: int
    sent: float
    moved: float
    compute: float
    exchange: float
    transfer: float

    @property
    def epoch(self) -> float:
        """Seconds of an epoch."""
        return self.steps * (self.compute + self.exchange + self.transfer)

    @property
    def bound(self) -> str:
        """What takes the largest part of a step."""
        parts = {"compute": self.compute, "network": self.exchange, "transfers": self.transfer}
        return max(parts, key=parts.__getitem__)

    def tier(self, name: str) -> float:
        """Bytes on a tier."""
        return sum(size for size, tier in self.places.values() if tier == name)


def stand_in(size: GraphSize, nodes: int, entries: int) -> Graph:
    """A graph of so many nodes and entries without data: its tensors have shapes and types only."""

    def empty(*shape: int, dtype: torch.dtype = torch.bool) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    indptr = empty(nodes + 1, dtype=pointer_dtype(entries))
    adj = CSR(indptr, empty(entries, dtype=torch.int32), None, nodes, symmetric=True)
    x, y = empty(nodes, size.features, dtype=torch.float32), empty(nodes, dtype=torch.int64)
    return Graph(adj, x, y, empty(nodes), empty(nodes), empty(nodes), size.classes, "stand-in", "classes")


def plan_rank(
    size: GraphSize, model: Model, method: ClusterMethod, ranks: int, core: int, ratios: Ratios, machine: Machine,
    precision: str = "float32",
) -> RankPlan:  # fmt: skip
    """The plan of a rank that owns 1/W of the nodes and entries.

    Entries between local nodes are counted as if mirrors had as many as owned rows, which is an upper bound on the
    lookalikes. An epoch of IMC has one sweep, of which the rows that are sent are counted. Nothing of a step overlaps.

    Args:
        core: core rows of a step.
        precision: of rows and tables, "float32" or "bfloat16".
    """
    owned, degree = -(-size.nodes // ranks), 2 * size.edges / size.nodes
    core = min(core, owned)
    mirrors = min(round(ratios.mirrors * owned), size.nodes - owned)
    local = owned + mirrors
    graph = stand_in(size, local, round(local * degree))
    edges = (round(share * core * degree) for share in (ratios.core_edges, ratios.cross_edges, ratios.halo_edges))
    batch = BatchSize(core, round(ratios.halo * core), *edges)
    settled = settle(dataclasses.replace(method, clusters_per_batch=1), graph, model, core, 1)
    found = probe(graph, model, settled, batch, Placement(device="cpu", precision=precision))
    steps = -(-owned // core)
    kept, row = sizes_of(plan_of(graph, model, found, batch, steps)), RowBytes.of(found.run)
    rows = batch.rows if "halo" in method.traits.reads else core
    places = placed(kept, found.batch, rows / local, machine)
    pushed, fetched = core * ratios.mirrors * (ranks > 1), core * ratios.fetched * (ranks > 1)
    sent = pushed * (sum(row.push) + sum(row.sweep)) + fetched * sum(row.fetch)
    moved = {"GPU": 0.0, "host": 0.0, "disk": 0.0}
    for name, number in (("histories", rows + core), ("features", rows)):  # histories of the core return
        moved[places[name][1]] += kept[name] / local * number
    moved[places["structure"][1]] += found.batch  # batches are cut out where it lies
    away = moved["host"] + moved["disk"]
    transfer = moved["host"] / machine.host_bandwidth + moved["disk"] / machine.disk_bandwidth
    gradient, messages = all_reduce(ranks, sum(p.nbytes for p in model.parameters()))
    messages += (ranks - 1) * (len(row.push) + len(row.fetch) + len(row.sweep) / steps)
    network = machine.network
    exchange = (sent + gradient) / network.bandwidth + messages * network.latency
    return RankPlan(
        ranks, owned, mirrors, ratios.halo, places, steps, sent, away, core / machine.rows_per_second, exchange,
        transfer,
    )  # fmt: skip


def sizes_of(found: Plan) -> dict[str, float]:
    """The bytes of a plan by what can be kept elsewhere; "GPU" and "host" are what cannot."""
    groups = {"history": "histories", "batches": "batches", "structure": "structure", "P X": "features"}
    groups |= {"features": "features", "features as given": "features as given"}
    sizes = dict.fromkeys([*EVICTED, "features as given"], 0.0)
    sizes["step and parameters"] = float(found.step)
    for item in found.items:
        name = item.name if item.name in groups else item.name.split()[0]
        sizes[groups.get(name, "step and parameters")] += item.size
    return sizes


def placed(sizes: dict[str, float], batch: int, share: float, machine: Machine) -> dict[str, tuple[float, str]]:
    """Where everything lies: on the GPU, and where that is full, on the host or else on disk, in the order EVICTED.

    Args:
        batch: bytes of one batch, which is on the GPU where kept ones are not.
        share: rows that a step reads over local rows: of tables elsewhere, those of two steps are in transfer.
    """
    places = {name: (size, "GPU") for name, size in sizes.items()}
    places["features as given"] = sizes["features as given"], "host"
    places["rows in transfer"] = 0.0, "GPU"
    for name in EVICTED:
        if _held(places, "GPU") <= USABLE * machine.gpu:
            break
        size = sizes[name]
        if name == "batches":  # made again for every step, not kept elsewhere
            places[name] = float(batch), "GPU"
            continue
        fits = _held(places, "host") + size <= USABLE * machine.host
        places[name] = size, "host" if fits else "disk"
        if name != "structure":
            places["rows in transfer"] = places["rows in transfer"][0] + 2 * share * size, "GPU"
    if _held(places, "host") > USABLE * machine.host:
        places["features as given"] = sizes["features as given"], "disk"
    return places


def _held(places: dict[str, tuple[float, str]], tier: str) -> float:
    return sum(size for size, where in places.values() if where == tier)
