"""Where the cells of a benchmark are trained: one graph on one device, every method in every division of it."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from lmc.bench.measure import wait
from lmc.graph import Graph
from lmc.methods import ClusterMethod, Method, Run
from lmc.models import GCN
from lmc.train.optimiser import adam

PARTITION_SEED = 0
"""All seeds share the parts; which parts make a batch, the parameters and dropout are the seed's own."""


class Testbed:
    """Binds methods to fresh models; the graph is moved to the device once, and cut once for every number of parts.

    Args:
        methods: by division ("80/10") and label.
    """

    def __init__(
        self,
        graph: Graph,
        methods: Mapping[str, Mapping[str, Method]],
        device: torch.device,
        *,
        hidden: int,
        layers: int,
    ) -> None:
        self.graph, self.methods, self.device = graph, methods, device
        self.hidden, self.layers = hidden, layers
        self._on_device = graph.to(device)
        self._cuts: dict[tuple[int | None, str], Tensor] = {}

    def bind(self, config: str, label: str, seed: int, norm: str = "none", dropout: float = 0.0) -> Run:
        """A method with a new GCN."""
        graph, method = self._on_device, self.methods[config][label]
        model = GCN(
            graph.num_features,
            self.hidden,
            graph.num_classes,
            num_layers=self.layers,
            dropout=dropout,
            norm=None if norm == "none" else norm,
            seed=seed,
        )
        return method.bind(graph, model, parts=self._parts(method), device=self.device, seed=seed)

    def _parts(self, method: Method) -> Tensor | None:
        if not isinstance(method, ClusterMethod):
            return None
        key = method.num_parts, method.partition
        if key not in self._cuts:
            self._cuts[key] = method.parts_of(self.graph, PARTITION_SEED)
        return self._cuts[key]


def train_epochs(run: Run, epochs: int, lr: float) -> Iterator[tuple[int, float]]:
    """Adam from exact histories on: (epochs done, seconds of training so far) after every epoch.

    What the caller does between two epochs is not counted.
    """
    device = run.problem.device
    optimizer = adam(run.problem.model, lr)
    run.refresh()
    wait(device)
    seconds = 0.0
    for epoch in range(epochs):
        start = time.perf_counter()
        for batch in run.batches(epoch):
            optimizer.zero_grad(set_to_none=True)
            run.accumulate(batch)
            optimizer.step()
        wait(device)
        seconds += time.perf_counter() - start
        yield epoch + 1, seconds


def free(device: torch.device) -> None:
    """Hand back what a finished run held, recorded steps included."""
    gc.collect()  # a run and the batches it was drawing hold each other
    if device.type == "cuda":
        torch.cuda.empty_cache()
