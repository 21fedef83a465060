"""The time and memory of one training epoch, method by method, in one process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lmc.bench.measure import allocated_bytes, median_ms
from lmc.diagnostics import peak_bytes
from lmc.errors import ConfigError
from lmc.graph import Aggregation, Batch, Graph
from lmc.methods import ClusterMethod, FullBatch, Method, Run
from lmc.models import GCN, Model
from lmc.stores import Placement
from lmc.train.optimiser import adam

PYG = "pyg-full"
FULL = FullBatch.name


@dataclass(frozen=True)
class Setup:
    """What is timed: a GCN of this shape on this device; medians of ``repeat`` epochs after ``warmup``."""

    hidden: int = 256
    layers: int = 3
    dropout: float = 0.5
    norm: str | None = None
    lr: float = 0.01
    seed: int = 0
    warmup: int = 1
    repeat: int = 3
    precision: str = "float32"
    history: str = "device"

    def __post_init__(self) -> None:
        if self.repeat < 1 or self.warmup < 0:
            raise ConfigError(f"expected repeat >= 1 and warmup >= 0 (got {self.repeat} and {self.warmup})")
        if self.norm not in (None, "layer", "batch"):
            raise ConfigError(f'expected norm None, "layer" or "batch" (got {self.norm!r})')


@dataclass(frozen=True)
class EpochTiming:
    """One line of the benchmark.

    Args:
        parts, clusters: the division of the graph; None for a full batch.
        ms: milliseconds of an epoch.
        vs_pyg, vs_full: ms over that of PyG's full batch, and of ours; None where that was not timed.
        nnz_share: non-zeros of the batches' operators, forward and backward, over those of the whole graph's.
        vs_work: ms / (nnz_share * full batch ms): 1 where time is proportional to the work.
        step_mb: measured peak of one step, beyond what lives between steps.
        resident_mb: what lives between steps (graph, batches, histories, optimiser, recorded steps); None on a CPU.
        halo_ratio: halo rows over core rows, in the mean.
    """

    method: str
    parts: int | None
    clusters: int | None
    steps: int
    ms: float
    vs_pyg: float | None
    vs_full: float | None
    nnz_share: float
    vs_work: float | None
    step_mb: float
    resident_mb: float | None
    halo_ratio: float


def time_epochs(
    graph: Graph, methods: Mapping[str, Method], setup: Setup, device: torch.device, *, pyg: bool = True
) -> Iterator[EpochTiming]:
    """Time PyG's full batch (where ``pyg``), our full batch, then ``methods``; one line each as it is measured.

    Every line is set up, measured and freed before the next, so that memory figures do not mix.
    """
    pyg_ms = full_ms = None
    if pyg:
        timing = time_pyg(graph, setup, device)
        pyg_ms = timing.ms
        yield timing
    for label, method in {FULL: FullBatch(), **methods}.items():
        before = allocated_bytes(device)
        timing = time_run(label, *ready(method, graph, setup, device), setup, before)
        full_ms = timing.ms if full_ms is None else full_ms
        yield dataclasses.replace(
            timing,
            vs_pyg=None if pyg_ms is None else timing.ms / pyg_ms,
            vs_full=timing.ms / full_ms,
            vs_work=timing.ms / (timing.nnz_share * full_ms) if timing.nnz_share else None,
        )


def time_pyg(graph: Graph, setup: Setup, device: torch.device) -> EpochTiming:
    """An epoch of PyG's full batch."""
    before = allocated_bytes(device)
    step = pyg_step(graph, setup, device)
    ms = median_ms(step, device, setup.warmup, setup.repeat)
    return EpochTiming(
        method=PYG,
        parts=None,
        clusters=None,
        steps=1,
        ms=ms,
        vs_pyg=1.0,
        vs_full=None,
        nnz_share=1.0,
        vs_work=None,
        step_mb=peak_bytes(step, device) / 1e6,
        resident_mb=_resident(before, device),
        halo_ratio=0.0,
    )


def ready(
    method: Method, graph: Graph, setup: Setup, device: torch.device, model: Model | None = None
) -> tuple[Run, torch.optim.Adam]:
    """A method bound to a model, by default a GCN, with exact histories, and the optimiser of its parameters."""
    if model is None:
        model = GCN(
            graph.num_features,
            setup.hidden,
            graph.num_classes,
            num_layers=setup.layers,
            dropout=setup.dropout,
            norm=setup.norm,
            seed=setup.seed,
        )
    placement = Placement(device=device, history=setup.history, precision=setup.precision)
    run = method.bind(graph, model, placement=placement, seed=setup.seed)
    run.refresh()
    optimizer = adam(model, setup.lr)
    return run, optimizer


def time_run(
    label: str, run: Run, optimizer: torch.optim.Optimizer, setup: Setup, before: int | None = None
) -> EpochTiming:
    """An epoch of a bound method, without ratios; ``before``: what lived on the device before it was bound."""
    device = run.problem.device
    batches = list(run.batches())
    largest = max(batches, key=lambda b: b.num_core + b.num_halo)
    # before any step is recorded: a replay allocates nothing, its memory being set aside for good
    step_mb = peak_bytes(partial(train_step, run, optimizer, largest), device) / 1e6
    nnz_share = sum(_non_zeros(b) for b in batches) / (2 * run.problem.P.nnz)
    halo_ratio = sum(b.num_halo for b in batches) / sum(b.num_core for b in batches)
    del batches, largest  # those that the run does not keep are not resident
    divided = isinstance(run.method, ClusterMethod)
    return EpochTiming(
        method=label,
        parts=run.clusters.num_parts if divided else None,
        clusters=run.clusters.per_batch if divided else None,
        steps=run.num_batches,
        ms=median_ms(lambda: train_epoch(run, optimizer), device, setup.warmup, setup.repeat),
        vs_pyg=None,
        vs_full=None,
        nnz_share=nnz_share,
        vs_work=None,
        step_mb=step_mb,
        resident_mb=_resident(before, device),
        halo_ratio=halo_ratio,
    )


def train_epoch(run: Run, optimizer: torch.optim.Optimizer) -> float:
    """One epoch of training steps; the sum of their losses."""
    losses = [train_step(run, optimizer, batch) for batch in run.batches()]
    return float(sum(losses))  # as the training loop: the loss is read once an epoch


def train_step(run: Run, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
    """Forward, backward, optimiser; the loss, on the device."""
    optimizer.zero_grad(set_to_none=True)
    loss = run.accumulate(batch).loss
    optimizer.step()
    run.problem.model.project()
    return loss


def pyg_step(graph: Graph, setup: Setup, device: torch.device) -> Callable[[], float]:
    """One full-batch step of ``torch_geometric.nn.GCN`` on ``edge_index``, as its documentation shows it."""
    from torch_geometric.nn import models

    on = graph.to(device)
    edge_index = torch.stack([on.adj.row_index(), on.adj.indices.long()])
    x = on.x if isinstance(on.x, Tensor) else on.x.as_torch().to_dense()
    norm = {"layer": "LayerNorm", "batch": "BatchNorm"}.get(setup.norm or "")
    model: nn.Module = models.GCN(
        graph.num_features, setup.hidden, setup.layers, graph.num_classes, dropout=setup.dropout, norm=norm
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=setup.lr)

    def step() -> float:
        model.train()
        optimizer.zero_grad(set_to_none=True)
        logits = model(x, edge_index)[on.train]
        if on.multi_label:
            loss = F.binary_cross_entropy_with_logits(logits, on.y[on.train])
        else:
            loss = F.cross_entropy(logits, on.y[on.train])
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def _non_zeros(batch: Batch) -> float:
    """Of a layer's operator, forward and backward, in the mean (the first layer's may be computed in advance)."""
    each = [op.forward.nnz + op.backward.nnz for op in batch.operators if isinstance(op, Aggregation)]
    return sum(each) / len(each) if each else 0


def _resident(before: int | None, device: torch.device) -> float | None:
    now = allocated_bytes(device)
    return None if now is None or before is None else (now - before) / 1e6
