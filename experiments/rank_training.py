"""What the ranks of the study of loss curves do; the imports are few, since every rank has to make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

import torch

import lmc.data
from lmc.engine import Distributed, Run
from lmc.graph import Graph
from lmc.methods import ClusterMethod, Method
from lmc.models import GCN
from lmc.train import adam


@lru_cache(maxsize=1)
def training_graph(dataset: str) -> Graph:
    """The graph that is trained on; the jobs of a process share it."""
    return lmc.data.load(dataset).training_graph


@dataclass(frozen=True)
class Job:
    """What every rank trains: a GCN without dropout by one method from one seed."""

    dataset: str
    method: Method
    sync: str
    hidden: int
    layers: int
    lr: float
    seed: int
    epochs: int

    @property
    def dtype(self) -> torch.dtype:
        """Where curves agree to rounding, float64."""
        return torch.float64 if self.sync == "layer" else torch.float32

    def bind(self, distributed: bool) -> tuple[Run, torch.optim.Optimizer]:
        """The run of this process, alone or as one of the ranks, with exact histories."""
        graph = training_graph(self.dataset)
        model = GCN(graph.num_features, self.hidden, graph.num_classes, num_layers=self.layers, seed=self.seed)
        parts = self.method.parts_of(graph, 0) if isinstance(self.method, ClusterMethod) else None
        options = Distributed(sync=self.sync) if distributed else False  # type: ignore[arg-type]
        run = self.method.bind(
            graph, model.to(self.dtype), parts=parts, device="cpu", seed=self.seed, distributed=options
        )
        run.refresh()
        return run, adam(model, self.lr)


@dataclass(frozen=True)
class Curve:
    """The loss of every step, and the nodes in the core of its batch on this rank."""

    losses: list[float]
    cores: list[list[int]]
    steps: int  # in an epoch

    @property
    def by_epoch(self) -> list[float]:
        """The mean loss of the steps of every epoch."""
        return [fmean(self.losses[k : k + self.steps]) for k in range(0, len(self.losses), self.steps)]


def train_curve(job: Job, distributed: bool) -> Curve:
    """Train in this process, alone or as one of the ranks."""
    run, optimizer = job.bind(distributed)
    losses, cores = [], []
    for _ in range(job.epochs):
        for batch in run.batches():
            losses.append(float(run.step(batch, optimizer).loss))
            cores.append(batch.n_id[: batch.num_core].tolist())
    return Curve(losses, cores, run.num_batches)


def on_union(job: Job, seen: Sequence[Curve]) -> Curve:
    """One process that trains on the union of the batches that the ranks had."""
    run, optimizer = job.bind(distributed=False)
    row, losses, cores = run.clusters.order.argsort(), [], []
    for step in zip(*(rank.cores for rank in seen), strict=True):
        core = row[torch.tensor([node for nodes in step for node in nodes])].sort().values
        whole = core.numel() == row.numel()
        batch = run.source.make(slice(0, core.numel()) if whole else core, float(seen[0].steps))
        losses.append(float(run.step(batch, optimizer).loss))
        cores.append(core.tolist())
    return Curve(losses, cores, seen[0].steps)
