"""Trainings from scratch on one graph: new GCNs for every seed, one partition for all of them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from lmc.bench.compare import Partitions, shared_parts
from lmc.bench.epoch import wait
from lmc.engine import Run
from lmc.errors import ConfigError
from lmc.graph import Graph
from lmc.methods import Method
from lmc.models import GCN
from lmc.train import adam, train_epoch

PARTITION_SEED = 0
"""All seeds share the partition; the clusters of a batch, the parameters and dropout depend on the seed."""


class Testbed:
    """Binds methods to new GCNs; the graph is moved to the device once and partitioned once for every number of
    parts."""

    __test__ = False  # no test, whatever its name starts with

    def __init__(self, graph: Graph, device: torch.device, *, hidden: int, layers: int) -> None:
        self.graph, self.device = graph, device
        self.hidden, self.layers = hidden, layers
        self._on_device = graph.to(device)
        self._partitions: Partitions = {}

    def bind(self, method: Method, seed: int, norm: str = "none", dropout: float = 0.0) -> Run:
        """A method bound to a new GCN."""
        graph = self._on_device
        model = GCN(
            graph.num_features,
            self.hidden,
            graph.num_classes,
            num_layers=self.layers,
            dropout=dropout,
            norm=None if norm == "none" else norm,
            seed=seed,
        )
        parts = shared_parts(method, self.graph, PARTITION_SEED, self._partitions)
        return method.bind(graph, model, parts=parts, device=self.device, seed=seed)


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
