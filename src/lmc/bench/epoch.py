"""Training runs, and PyG's full batch, that are set up to be timed epoch by epoch; clocks for a CPU and a GPU."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, median

import torch
import torch.nn.functional as F
from torch import Tensor

from lmc.diagnostics import peak_bytes
from lmc.engine import Run
from lmc.errors import ConfigError
from lmc.graph import Aggregation, Batch, Graph
from lmc.kernels.beside import STREAMS, shared_stream
from lmc.methods import Method
from lmc.models import GCN, GCNII, Model, RecGCN
from lmc.stores import Placement
from lmc.train import adam, train_epoch, train_step

MODELS = ("gcn", "gcnii", "recgcn")
FULL = "full"
"""The spec of the full batch."""
WHOLE = "-"
"""The parts/clusters of a batch that is the whole graph."""


def wait(device: torch.device) -> None:
    """Wait until all work on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def elapsed_ms(call: Callable[[], object], device: torch.device) -> float:
    """The time of one call in milliseconds, with all work on the device that it started."""
    wait(device)
    start = time.perf_counter()
    call()
    wait(device)
    return 1000 * (time.perf_counter() - start)


def allocated_bytes(device: torch.device) -> int | None:
    """Bytes of live tensors on the device; None on a CPU, where they are not counted."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else None


def load_libraries(device: torch.device) -> None:
    """Let libraries allocate what they keep for the whole process, so that no line is charged with it."""
    if device.type != "cuda":
        return
    x = torch.ones(8, 8, device=device)
    for stream in (torch.cuda.current_stream(device), *(shared_stream(device, name) for name in STREAMS)):
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            x @ x


def free(device: torch.device) -> None:
    """Free the memory of finished runs, recorded steps included."""
    gc.collect()  # a run and the batches that it draws refer to each other
    if device.type == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def matmul_precision(device: torch.device, tf32: bool = True) -> Iterator[None]:
    """TF32 products on a GPU, as training there uses them; afterwards the previous precision is set again."""
    before = torch.get_float32_matmul_precision()
    if tf32 and device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class Setup:
    """The shape of the model that is timed, and how often: ``repeat`` epochs after ``warmup`` epochs."""

    hidden: int = 256
    layers: int = 3
    dropout: float = 0.5
    norm: str | None = None
    lr: float = 0.01
    seed: int = 0
    warmup: int = 1
    repeat: int = 3
    precision: str = "float32"

    def __post_init__(self) -> None:
        if self.repeat < 1 or self.warmup < 0:
            raise ConfigError(f"expected repeat >= 1 and warmup >= 0 (got {self.repeat} and {self.warmup})")
        if self.norm not in (None, "layer", "batch"):
            raise ConfigError(f'expected norm None, "layer" or "batch" (got {self.norm!r})')


@dataclass(eq=False)
class Timed:
    """Something that trains an epoch when ``epoch()`` is called, and the times of its epochs.

    ``resident_bytes`` live between steps (graph, batches, histories, optimiser, recorded steps); other runs of the
    process are not counted.
    """

    epoch: Callable[[], float]
    steps: int  # in an epoch
    step_bytes: int  # measured peak of one step, beyond what lives between steps
    device: torch.device
    resident_bytes: int | None = None  # None on a CPU
    nnz_share: float | None = None  # non-zeros of the batches' operators, forward and backward, over those of the graph
    halo_ratio: float | None = None  # halo rows over core rows
    run: Run | None = None  # None for PyG
    times: dict[int, list[float]] = field(default_factory=dict)  # of epochs, by the number of sweeps in them

    def warm_up(self, epochs: int, before: int | None) -> Timed:
        """Train epochs that are not timed; ``before``: bytes on the device before this was set up.

        The second visit of a batch on a GPU records its step as a CUDA graph: three epochs contain that.
        """
        for _ in range(epochs):
            self.epoch()
        wait(self.device)
        now = allocated_bytes(self.device)
        self.resident_bytes = None if now is None or before is None else now - before
        return self

    def time_epoch(self) -> None:
        """Train an epoch and add its time to those of epochs with as many sweeps."""
        before = 0 if self.run is None else self.run.refreshed
        spent = elapsed_ms(self.epoch, self.device)
        sweeps = 0 if self.run is None else self.run.refreshed - before
        self.times.setdefault(sweeps, []).append(spent)

    @property
    def ms(self) -> float:
        """The median time of an epoch, in milliseconds; where some epochs have sweeps, the medians of those that have
        and of those that have not, each counted as often as there were such epochs."""
        return sum(len(each) * median(each) for each in self.times.values()) / sum(map(len, self.times.values()))


def build(name: str, graph: Graph, setup: Setup) -> Model:
    """A model: GCN as set up; GCNII with one layer more; RecGCN without dropout, which would solve for histories in
    a part of the steps only."""
    d, c = graph.num_features, graph.num_classes
    if name == "recgcn":
        return RecGCN(d, setup.hidden, c, seed=setup.seed)
    cls, layers = (GCN, setup.layers) if name == "gcn" else (GCNII, setup.layers + 1)
    return cls(d, setup.hidden, c, num_layers=layers, dropout=setup.dropout, norm=setup.norm, seed=setup.seed)


def ready(
    method: Method, graph: Graph, setup: Setup, device: torch.device, model: str = "gcn", tier: str = "device"
) -> tuple[Run, torch.optim.Adam]:
    """A method bound to a new model, with exact histories, and the optimiser of its parameters."""
    network = build(model, graph, setup)
    placement = Placement(device=device, history=tier, precision=setup.precision)
    run = method.bind(graph, network, placement=placement, seed=setup.seed)
    run.refresh()
    return run, adam(network, setup.lr)


def timed_run(
    method: Method, graph: Graph, setup: Setup, device: torch.device, model: str = "gcn", tier: str = "device"
) -> Timed:
    """A warmed-up training run."""
    load_libraries(device)
    before = allocated_bytes(device)
    run, optimizer = ready(method, graph, setup, device, model, tier)
    batches = list(run.batches())
    largest = max(batches, key=lambda b: b.num_core + b.num_halo)
    # the peak is that of an eager step: the memory of a recorded step is never freed
    step = partial(train_step, run, optimizer, largest.unrecorded())
    step()  # makes the state of the optimiser, which lives between steps
    step_bytes = peak_bytes(step, device)
    nnz_share = sum(map(_non_zeros, batches)) / (2 * run.problem.P.nnz)
    ratio = halo_ratio(batches)
    del batches, largest  # batches that the run does not keep are not resident
    timed = Timed(
        # as in the training loop, the losses are read once an epoch
        lambda: float(sum(train_epoch(run, optimizer))),
        run.num_batches, step_bytes, device, None, nnz_share, ratio, run,
    )  # fmt: skip
    return timed.warm_up(setup.warmup, before)


def halo_ratio(batches: list[Batch]) -> float:
    """Halo rows of the batches over their core rows."""
    return sum(b.num_halo for b in batches) / sum(b.num_core for b in batches)


def _non_zeros(batch: Batch) -> float:
    """Non-zeros of a layer's operator, forward and backward, mean over layers (the first may be precomputed)."""
    each = [op.forward.nnz + op.backward.nnz for op in batch.operators if isinstance(op, Aggregation)]
    return fmean(each) if each else 0


def timed_pyg(graph: Graph, setup: Setup, device: torch.device) -> Timed:
    """A warmed-up full batch of ``torch_geometric.nn.GCN`` on ``edge_index``, as its documentation shows it."""
    from torch_geometric.nn import models

    before, on = allocated_bytes(device), graph.to(device)
    edge_index = torch.stack([on.adj.row_index(), on.adj.indices.long()])
    x = on.x if isinstance(on.x, Tensor) else on.x.as_torch().to_dense()
    norm = {"layer": "LayerNorm", "batch": "BatchNorm"}.get(setup.norm or "")
    model = models.GCN(
        graph.num_features, setup.hidden, setup.layers, graph.num_classes, dropout=setup.dropout, norm=norm
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=setup.lr)
    loss_of = F.binary_cross_entropy_with_logits if on.multi_label else F.cross_entropy

    def step() -> float:
        model.train()
        optimizer.zero_grad(set_to_none=True)
        loss: Tensor = loss_of(model(x, edge_index)[on.train], on.y[on.train])
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return Timed(step, 1, peak_bytes(step, device), device).warm_up(setup.warmup, before)
