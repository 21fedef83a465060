"""The graph on which a data set of the paper is measured: its files where they are at hand, else a lookalike."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

import lmc.data
from lmc.bench.compare import Partitions, shared_parts
from lmc.data import lookalikes
from lmc.data.catalog import REAL
from lmc.data.lookalikes import LOOKALIKES
from lmc.data.registry import find
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.methods import Method

PARTITION_SEED = 0
"""All seeds share the partition and the lookalike."""
TINY, AUTO = "tiny", "auto"
EDGES = {"cuda": 150_000, "cpu": 40_000}
"""The most undirected edges of a lookalike at the scale "auto", by device."""
NODES = {"cuda": (8_000, 20_000), "cpu": (0, 400_000)}
"""The least and the most nodes of a lookalike at the scale "auto", whatever the number of its edges, by device."""
TINY_NODES = 1_600
WIDTHS = {(TINY, "cuda"): 32, (TINY, "cpu"): 32, (AUTO, "cpu"): 64}
"""The largest hidden width at a scale on a device; the paper's where there is none."""


def check_scale(scale: str) -> str:
    """Refuse what is neither "auto", "tiny" nor a share of the original size."""
    try:
        if scale in (TINY, AUTO) or 0 < float(scale) <= lookalikes.LARGEST:
            return scale
    except ValueError:
        pass
    raise ConfigError(f"expected auto, tiny, or a share of the original size for --scale (got {scale!r}): use one")


def lookalike_of(dataset: str, scale: str, device: str) -> str:
    """The name of the lookalike of a data set with its scale; never so small that a class has no nodes."""
    name, share = lookalikes.parse(REAL[dataset].lookalike) or (REAL[dataset].lookalike, None)
    if name == "tiny-like":
        return name
    spec = LOOKALIKES[name]
    if scale == TINY:
        wanted = TINY_NODES / spec.nodes
    elif scale == AUTO:
        least, most = (nodes / spec.nodes for nodes in NODES[device])
        wanted = min(share or 1.0, most, max(EDGES[device] / spec.edges, least))
    else:
        wanted = float(scale) * (share or 1.0)
    wanted = max(wanted, 1.01 * spec.least_nodes / spec.nodes)
    return name if wanted == 1 else f"{name}@{wanted:.3g}"


@dataclass(eq=False)
class Graphs:
    """Loads every graph once and partitions it once for every number of parts; nothing is downloaded."""

    scale: str
    device: torch.device
    data_dir: Path | None = None
    _loaded: dict[str, tuple[Graph, Graph, Partitions]] = field(default_factory=dict)

    def source(self, dataset: str) -> tuple[str, str]:
        """The graph of a data set, and its kind: "real" or "lookalike"."""
        if find(dataset, self.data_dir) is not None:
            return dataset, "real"
        return lookalike_of(dataset, self.scale, self.device.type), "lookalike"

    def load(self, dataset: str) -> tuple[Graph, Graph, Partitions]:
        """The graph, the same on the device, and its partitions."""
        if dataset not in self._loaded:
            name, kind = self.source(dataset)
            graph = lmc.data.load(name, data_dir=self.data_dir if kind == "real" else None)
            graph = replace(graph, inductive=REAL[dataset].inductive)
            self._loaded[dataset] = graph, graph.to(self.device), {}
        return self._loaded[dataset]

    def parts(self, dataset: str, method: Method) -> Tensor | None:
        """The parts of a method on this graph."""
        graph, _, known = self.load(dataset)
        return shared_parts(method, graph.training_graph, PARTITION_SEED, known)


_shared: dict[tuple[str, str, Path | None], Graphs] = {}


def shared_graphs(scale: str, device: torch.device, data_dir: Path | None) -> Graphs:
    """The graphs that all items of one process share."""
    key = scale, str(device), data_dir
    return _shared.setdefault(key, Graphs(scale, device, data_dir))
