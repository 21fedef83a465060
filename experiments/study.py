"""What the studies share: options, and trainings from scratch of GCNs on one graph."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar

import torch
import typer

import lmc.data
from lmc.bench.compare import Partitions, shared_parts
from lmc.bench.epoch import wait
from lmc.cli.lists import parse_list
from lmc.cli.study import C, DataDir, GraphStudy, Hidden, Layers, R, Study
from lmc.engine import Run
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.methods import Method
from lmc.models import GCN
from lmc.train import adam, train_epoch

PARTITION_SEED = 0
"""All seeds share the partition; the clusters of a batch, the parameters and dropout depend on the seed."""
Rates = Annotated[str, typer.Option(help="Learning rates of Adam, comma-separated.")]
Seeds = Annotated[int, typer.Option(help="Number of seeds: 0, 1, ...")]


@dataclass(eq=False)
class Testbed:
    """Binds methods to new GCNs; the graph is moved to the device once and partitioned once for every number of
    parts."""

    __test__ = False  # no test, whatever its name starts with

    graph: Graph
    device: torch.device
    hidden: int
    layers: int
    partitions: Partitions = field(default_factory=dict)

    @cached_property
    def _on_device(self) -> Graph:
        return self.graph.to(self.device)

    def bind(self, method: Method, seed: int, norm: str = "none", dropout: float = 0.0) -> Run:
        """A method bound to a new GCN."""
        d, c = self.graph.num_features, self.graph.num_classes
        norm_name = None if norm == "none" else norm
        model = GCN(d, self.hidden, c, num_layers=self.layers, dropout=dropout, norm=norm_name, seed=seed)
        parts = shared_parts(method, self.graph, PARTITION_SEED, self.partitions)
        return method.bind(self._on_device, model, parts=parts, device=self.device, seed=seed)


@dataclass(frozen=True, kw_only=True)
class TrainingStudy(GraphStudy[C, R]):
    """A study that trains GCNs of one shape on one graph."""

    shared: ClassVar[tuple[str, ...]] = ("layers", "hidden")

    layers: Layers = 3
    hidden: Hidden = 256

    @cached_property
    def testbed(self) -> Testbed:
        """Where the methods are bound and trained."""
        return Testbed(self.graph, self.on, self.hidden, self.layers)

    def facts(self) -> list[tuple[str, str]]:
        return [*super().facts(), ("model", f"GCN, {self.layers} layers of {self.hidden}")]


@dataclass(frozen=True, kw_only=True)
class GraphsStudy(Study[C, R]):
    """A study that trains GCNs on several graphs."""

    datasets: Annotated[str, typer.Argument(help="Names or paths, comma-separated.")]
    layers: Layers = 3
    hidden: Hidden
    data_dir: DataDir = None

    def subject(self) -> str:
        return self.datasets

    @cached_property
    def graphs(self) -> dict[str, Graph]:
        """The graphs by name."""
        names = parse_list(self.datasets, "DATASETS", str)
        return {name: lmc.data.load(name, data_dir=self.data_dir) for name in names}

    @cached_property
    def testbeds(self) -> dict[str, Testbed]:
        """Where the methods are bound and trained, by graph."""
        return {name: Testbed(graph, self.on, self.hidden, self.layers) for name, graph in self.graphs.items()}

    def settings(self) -> dict[str, Any]:
        return super().settings() | {f"data of {name}": graph.checksum for name, graph in self.graphs.items()}

    def facts(self) -> list[tuple[str, str]]:
        graphs = [("graph", repr(graph)) for graph in self.graphs.values()]
        return [*graphs, ("model", f"GCN, {self.layers} layers of {self.hidden}")]


def train_epochs(run: Run, epochs: int, lr: float) -> Iterator[tuple[int, float]]:
    """Train with Adam from exact histories on: (epochs done, seconds of training so far) after every epoch.

    What the caller does between two epochs is not counted.
    """
    device = run.problem.device
    optimizer = adam(run.problem.model, lr)
    run.refresh()
    wait(device)
    seconds = 0.0
    for epoch in range(epochs):
        start = time.perf_counter()
        train_epoch(run, optimizer, epoch=epoch)
        wait(device)
        seconds += time.perf_counter() - start
        yield epoch + 1, seconds


def parse_norm(text: str) -> tuple[str, float]:
    """ "batch:0.5" -> ("batch", 0.5): a norm and its dropout rate."""
    name, mark, rate = text.partition(":")
    try:
        dropout = float(rate) if mark else 0.0
    except ValueError:
        dropout = -1.0
    if name not in ("none", "layer", "batch") or not 0 <= dropout < 1:
        raise ConfigError(f"expected norms as none, layer or batch, with a dropout below 1 as batch:0.5 (got {text!r})")
    return name, dropout
